package cinnabar

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/na/sm"
	"cinnabar/verbs/auto"
)

// autoSM makes an engine that listens on the loopback and in shared memory.
func autoSM(t testing.TB, cfg *Config) *Engine {
	t.Helper()
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.AutoSM = true
	e, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", &c)
	return opened(t, e, err)
}

// swapArgs has memory that the handler reads, and memory that it writes to.
type swapArgs struct {
	From, To BulkHandle
	Text     string
}

type swapResult struct {
	Peer   string
	Handle BulkHandle // the argument From, as the server sends it on
	Text   string
}

// swap copies the memory From to the memory To. Text is any text.
var swap = NewRPC[swapArgs, swapResult]("autosm_swap")

// serveSwap serves swap.
func serveSwap(t testing.TB, e *Engine) {
	t.Helper()
	must(t, swap.Handle(e, func(ctx context.Context, in swapArgs) (swapResult, error) {
		info := InfoFrom(ctx)
		data := make([]byte, in.From.Len())
		b, err := e.Expose(ReadWrite, data)
		if err != nil {
			return swapResult{}, err
		}
		defer b.Close()
		if _, err := in.From.On(info.Peer).Pull(ctx, b); err != nil {
			return swapResult{}, err
		}
		if _, err := in.To.On(info.Peer).Push(ctx, b); err != nil {
			return swapResult{}, err
		}
		return swapResult{Peer: info.Peer.String(), Handle: in.From, Text: in.Text}, nil
	}))
}

// callSwap calls swap with memory of n bytes in several segments, and returns the address that the server sees.
func callSwap(t testing.TB, e *Engine, ep *Endpoint, n int, bound bool) (peer string) {
	t.Helper()
	from, to := noise(n), make([]byte, n)
	src, err := e.Expose(ReadOnly, from[:n/3], from[n/3:])
	must(t, err)
	defer src.Close()
	dst, err := e.Expose(WriteOnly, to[:n/2], to[n/2:])
	must(t, err)
	defer dst.Close()
	args := swapArgs{From: src.Handle(), To: dst.Handle(), Text: strings.Repeat("text ", n/5)}
	if bound {
		args.From, args.To = src.Bound(), dst.Bound()
	}
	got, err := swap.Call(patient(t), ep, args)
	must(t, err)
	if !bytes.Equal(from, to) || got.Text != args.Text {
		t.Errorf("%d bytes of memory and %d of text differ", n, len(got.Text))
	}
	if got.Handle.Len() != args.From.Len() {
		t.Errorf("the handle comes back with %d bytes, of %d", got.Handle.Len(), n)
	}
	pulled := make([]byte, n) // one's own memory
	b, err := e.Expose(ReadWrite, pulled)
	must(t, err)
	defer b.Close()
	if _, err := got.Handle.On(e.Self()).Pull(patient(t), b); err != nil || !bytes.Equal(pulled, from) {
		t.Errorf("the handle that comes back leads elsewhere: %v", err)
	}
	return got.Peer
}

// TestAutoSM calls and transfers between two engines on one host over shared memory, and with one that has none over TCP.
// parity: N06 H127
func TestAutoSM(t *testing.T) {
	server, client, plain := autoSM(t, nil), autoSM(t, nil), overTCP(t, nil)
	for _, e := range []*Engine{server, plain} {
		serveSwap(t, e)
	}
	if host, rest, _ := strings.Cut(server.Addr(), "#na+sm://"); host != "uid://"+sm.HostID() || !strings.Contains(rest, "#ofi+tcp://127.0.0.1:") {
		t.Errorf("the address is %s", server.Addr())
	}
	for _, tc := range []struct {
		name     string
		from, to *Engine
		peer     string
	}{
		{"shared memory", client, server, "na+sm://"},
		{"to a process without", client, plain, "ofi+tcp://"},
		{"from a process without", plain, server, "ofi+tcp://"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ep := find(t, tc.from, tc.to.Addr())
			for _, n := range []int{30, 3000, 300_000} {
				for _, bound := range []bool{false, true} {
					if peer := callSwap(t, tc.from, ep, n, bound); !strings.HasPrefix(peer, tc.peer) {
						t.Errorf("the call of %d bytes comes from %s, want %s", n, peer, tc.peer)
					}
				}
			}
		})
	}
	if !client.Self().Equal(find(t, client, client.Addr())) {
		t.Error("the own address is another one after Lookup")
	}
}

// TestAutoSMOverVerbs calls and transfers over shared memory beside ofi+verbs, and over the device's network.
// parity: N06
func TestAutoSMOverVerbs(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	open := func(shares bool) *Engine {
		dev, err := auto.Software(nil)
		must(t, err)
		t.Cleanup(func() { must(t, dev.Close()) })
		e, err := Listen(t.Context(), "ofi+verbs://127.0.0.1", &Config{Device: dev, AutoSM: shares})
		return opened(t, e, err)
	}
	server, client, plain := open(true), open(true), open(false)
	serveSwap(t, server)
	serveSwap(t, plain)
	for _, n := range []int{30, 300_000} {
		if peer := callSwap(t, client, find(t, client, server.Addr()), n, n > 1000); !strings.HasPrefix(peer, "na+sm://") {
			t.Errorf("the call comes from %s", peer)
		}
		if peer := callSwap(t, plain, find(t, plain, server.Addr()), n, n > 1000); !strings.HasPrefix(peer, "ofi+verbs") {
			t.Errorf("the call of a process without shared memory comes from %s", peer)
		}
		if peer := callSwap(t, server, find(t, server, plain.Addr()), n, n > 1000); !strings.HasPrefix(peer, "ofi+verbs") {
			t.Errorf("the call to a process without shared memory comes from %s", peer)
		}
	}
	if s := client.Stats(); s.RequestsShared == 0 || s.RequestsShared != s.RequestsSent || s.BytesRDMA != 0 {
		t.Errorf("%d of %d requests traveled over shared memory, %d bytes by RDMA", s.RequestsShared, s.RequestsSent, s.BytesRDMA)
	}
}

// TestAutoSMForwards sends handles on, from a process on the same host to one that is reached over TCP, and back. The last one reaches the
// memory by the address in the handle.
// parity: N06
func TestAutoSMForwards(t *testing.T) {
	type args struct {
		Handle BulkHandle
		Chain  []string `proc:"counted=uint32"` // the processes that follow
	}
	forward := NewRPC[args, struct{}]("autosm_forward")
	engines := []*Engine{autoSM(t, nil), autoSM(t, nil), overTCP(t, nil), autoSM(t, nil)}
	seen := make(chan string, 1)
	for _, e := range engines {
		must(t, forward.Handle(e, func(ctx context.Context, in args) (struct{}, error) {
			if len(in.Chain) > 0 {
				next, err := e.Lookup(in.Chain[0])
				if err != nil {
					return struct{}{}, err
				}
				_, err = forward.Call(ctx, next, args{in.Handle, in.Chain[1:]})
				return struct{}{}, err
			}
			owner, err := in.Handle.Owner(e)
			if err != nil {
				return struct{}{}, err
			}
			data := make([]byte, in.Handle.Len())
			b, err := e.Expose(ReadWrite, data)
			if err != nil {
				return struct{}{}, err
			}
			defer b.Close()
			if _, err := in.Handle.On(owner).Pull(ctx, b); err != nil {
				return struct{}{}, err
			}
			seen <- string(data)
			return struct{}{}, nil
		}))
	}
	data := noise(20_000)
	b, err := engines[0].Expose(ReadOnly, data)
	must(t, err)
	defer b.Close()
	for _, chain := range [][]int{{1}, {2}, {1, 2}, {2, 1}, {1, 2, 3}, {1, 3}, {2, 1, 3}, {1, 0}, {2, 0}} {
		var addrs []string
		for _, i := range chain {
			addrs = append(addrs, engines[i].Addr())
		}
		_, err := forward.Call(patient(t), find(t, engines[0], addrs[0]), args{b.Bound(), addrs[1:]})
		if err != nil {
			t.Errorf("by %v: %v", chain, err)
		} else if got := soon(t, "the data", seen); got != string(data) {
			t.Errorf("by %v: other data", chain)
		}
	}
}

// ownEncoding has a handle that its methods write, without the codec, or with it.
type ownEncoding struct{ Handle BulkHandle }

func (o *ownEncoding) AppendProc(b []byte) ([]byte, error) { return o.Handle.AppendProc(b) }
func (o *ownEncoding) DecodeProc(b []byte) (int, error)    { return o.Handle.DecodeProc(b) }

type ownEncodingWith struct{ Handle BulkHandle }

func (o *ownEncodingWith) AppendProcWith(c codec.Codec, b []byte) ([]byte, error) {
	return o.Handle.AppendProcWith(c, b)
}

func (o *ownEncodingWith) DecodeProcWith(c codec.Codec, b []byte) (int, error) {
	return o.Handle.DecodeProcWith(c, b)
}

// TestAutoSMInOwnEncoding sends handles in types with methods of their own. Without the codec they lead over the network.
// parity: N06
func TestAutoSMInOwnEncoding(t *testing.T) {
	server, client := autoSM(t, nil), autoSM(t, nil)
	ep := find(t, client, server.Addr())
	data := noise(20_000)
	b, err := client.Expose(ReadOnly, data)
	must(t, err)
	defer b.Close()
	pull := func(ctx context.Context, h BulkHandle) (struct{}, error) {
		info := InfoFrom(ctx)
		local, err := server.Alloc(ReadWrite, h.Len())
		if err != nil {
			return struct{}{}, err
		}
		defer local.Close()
		if _, err := h.On(info.Peer).Pull(ctx, local); err != nil {
			return struct{}{}, err
		}
		if !bytes.Equal(local.Bytes(), data) {
			return struct{}{}, codes.Fault
		}
		return struct{}{}, nil
	}
	with, without := NewRPC[ownEncodingWith, struct{}]("autosm_with"), NewRPC[ownEncoding, struct{}]("autosm_without")
	must(t, with.Handle(server, func(ctx context.Context, in ownEncodingWith) (struct{}, error) { return pull(ctx, in.Handle) }))
	must(t, without.Handle(server, func(ctx context.Context, in ownEncoding) (struct{}, error) { return pull(ctx, in.Handle) }))
	if _, err := with.Call(patient(t), ep, ownEncodingWith{b.Handle()}); err != nil {
		t.Errorf("with the codec: %v", err)
	}
	if _, err := without.Call(patient(t), ep, ownEncoding{b.Handle()}); err != nil {
		t.Errorf("without the codec: %v", err)
	}
}

// forged has a handle, which it writes with the keys of shared memory also into messages over a network.
type forged struct{ Handle BulkHandle }

func (f *forged) AppendProc(b []byte) ([]byte, error) {
	return f.Handle.d.AppendProc(b, 0, hg.OverSharedMemory), nil
}

func (f *forged) DecodeProc(b []byte) (int, error) { return f.Handle.DecodeProc(b) }

// forgedAddress is a bound handle with an address in shared memory, and without the handles and the flag of shared memory.
type forgedAddress struct{ Handle BulkHandle }

func (f *forgedAddress) AppendProc(b []byte) ([]byte, error) {
	const word = 8
	plain := f.Handle.d.Append(nil)
	near := f.Handle.d.AppendProc(nil, 0, hg.OverSharedMemory)
	near = near[len(near)-1-2*word-word:][:2*word] // size and address, with the room for the host and the context id behind them
	head := plain[:len(plain)-1-word]              // up to the empty address in shared memory
	core := head[len(head)-2*word-len(f.Handle.d.Bound()):]
	binary.LittleEndian.PutUint64(core, binary.LittleEndian.Uint64(core)+word)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(plain)+word))
	return append(append(append(b, head...), near...), 0), nil
}

func (f *forgedAddress) DecodeProc(b []byte) (int, error) { return f.Handle.DecodeProc(b) }

// TestAutoSMAddressFromTheNetwork sends a handle with the address of a process in shared memory over the network. The server does not
// connect to that process, because the peer may be on another host.
// parity: N06
func TestAutoSMAddressFromTheNetwork(t *testing.T) {
	server, client := autoSM(t, nil), autoSM(t, nil)
	b, err := client.Expose(ReadOnly, noise(20_000))
	must(t, err)
	defer b.Close()
	send := NewRPC[forgedAddress, struct{}]("autosm_forged")
	take := NewRPC[struct{ Handle BulkHandle }, struct{}]("autosm_forged")
	owners := make(chan na.Addr, 1)
	must(t, take.Handle(server, func(_ context.Context, in struct{ Handle BulkHandle }) (struct{}, error) {
		owner, err := in.Handle.Owner(server)
		if err != nil {
			return struct{}{}, err
		}
		owners <- owner.addr
		return struct{}{}, nil
	}))
	_, network, _ := strings.Cut(server.Addr(), "#ofi+tcp")
	if _, err := send.Call(patient(t), find(t, client, "ofi+tcp"+network), forgedAddress{b.Bound()}); err != nil {
		t.Fatal(err)
	}
	if owner := soon(t, "the owner", owners); server.core.RouteTo(owner) != hg.OverNetwork || !strings.HasPrefix(owner.String(), "ofi+tcp://") {
		t.Errorf("the owner is reached at %s", owner)
	}
}

// TestAutoSMFromTheNetwork sends a handle with the keys of shared memory over the network. They are addresses in the memory of any process
// of the server's user, so the server drops them.
// parity: N06
func TestAutoSMFromTheNetwork(t *testing.T) {
	server, client := autoSM(t, nil), autoSM(t, nil)
	b, err := client.Expose(ReadOnly, noise(20_000))
	must(t, err)
	defer b.Close()
	send := NewRPC[forged, struct{}]("autosm_forged")
	take := NewRPC[struct{ Handle BulkHandle }, struct{}]("autosm_forged")
	flags := make(chan uint32, 1)
	must(t, take.Handle(server, func(_ context.Context, in struct{ Handle BulkHandle }) (struct{}, error) {
		flags <- in.Handle.d.Flags()
		if _, err := in.Handle.Owner(server); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, nil
	}))
	_, network, _ := strings.Cut(server.Addr(), "#ofi+tcp")
	for addr, want := range map[string]uint32{"ofi+tcp" + network: 0, server.Addr(): wire.BulkSM} {
		if _, err := send.Call(patient(t), find(t, client, addr), forged{b.Bound()}); err != nil {
			t.Errorf("to %s: %v", addr, err)
		}
		if got := soon(t, "the handle", flags); got&wire.BulkSM != want {
			t.Errorf("to %s: the handle has the flags %#x, want %#x of HG_BULK_SM", addr, got, want)
		}
	}
}

// TestAutoSMFallsBack reaches peers over TCP that are not in shared memory, although their addresses name this host: one that has ended
// there, one that has another IP address, and one on another host.
// parity: N06
func TestAutoSMFallsBack(t *testing.T) {
	client, plain := autoSM(t, nil), overTCP(t, nil)
	serveSwap(t, plain)
	for name, addr := range map[string]string{
		"gone":         "uid://" + sm.HostID() + "#na+sm://2147483647-0#" + plain.Addr(),
		"another host": "uid://1#na+sm://2147483647-0#" + plain.Addr(),
	} {
		if peer := callSwap(t, client, find(t, client, addr), 10_000, false); !strings.HasPrefix(peer, "ofi+tcp://") {
			t.Errorf("%s: the call comes from %s", name, peer)
		}
	}
	for _, addr := range []string{"uid://1", "uid://1#na+sm://1-0", "uid://" + sm.HostID() + "#na+sm:///#" + plain.Addr()} {
		if _, err := client.Lookup(addr); codeOf(err) != codes.InvalidArg {
			t.Errorf("%s is looked up: %v", addr, err)
		}
	}
}

// TestAutoSMRestart ends a server and starts another at the same address in the network. The client's endpoint leads to that one over
// TCP, because its combined address names the first process in shared memory.
// parity: N06
func TestAutoSMRestart(t *testing.T) {
	server, client := autoSM(t, nil), autoSM(t, nil)
	serveSwap(t, server)
	ep := find(t, client, server.Addr())
	if peer := callSwap(t, client, ep, 100, false); !strings.HasPrefix(peer, "na+sm://") {
		t.Fatalf("the call comes from %s", peer)
	}
	_, at, _ := strings.Cut(server.Addr(), "#ofi+tcp")
	gone := ep.named.Done()
	must(t, server.Close())
	soon(t, "the end of the connection", gone)
	next, err := Listen(t.Context(), "ofi+tcp"+at, &Config{AutoSM: true})
	next = opened(t, next, err)
	serveSwap(t, next)
	if peer := callSwap(t, client, ep, 100, false); !strings.HasPrefix(peer, "ofi+tcp://") {
		t.Errorf("the call comes from %s", peer)
	}
}

// TestAutoSMLeavesNothing closes an engine, and one that could not open its network, and looks for their files.
// parity: N06
func TestAutoSMLeavesNothing(t *testing.T) {
	server := autoSM(t, nil)
	_, rest, _ := strings.Cut(server.Addr(), "#na+sm://")
	uri, at, _ := strings.Cut(rest, "#")
	region := filepath.Join("/dev/shm", "na_sm-"+uri)
	if _, err := os.Stat(region); err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("/dev/shm/na_sm-%d-*", os.Getpid())
	before, err := filepath.Glob(own)
	must(t, err)
	_, err = Listen(t.Context(), at, &Config{AutoSM: true})
	wantCode(t, err, codes.AddrInUse, "")
	after, err := filepath.Glob(own)
	must(t, err)
	if len(after) > len(before) {
		t.Errorf("the engine that was not opened leaves one of %v", after)
	}
	must(t, server.Close())
	if _, err := os.Stat(region); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", region, err)
	}
}

// TestAutoSMFirewalled opens no endpoint for others in shared memory for a firewalled engine, which calls and serves over shared memory.
// parity: N06 D15
func TestAutoSMFirewalled(t *testing.T) {
	server, peers := autoSM(t, nil), make(chan *Endpoint, 1)
	must(t, add.Handle(server, func(ctx context.Context, in addIn) (addOut, error) {
		peers <- InfoFrom(ctx).Peer
		return handleAdd(ctx, in)
	}))
	walled := autoSM(t, &Config{Firewalled: true})
	must(t, add.Handle(walled, handleAdd))
	_, err := add.Call(patient(t), find(t, server, walled.Addr()), addIn{})
	wantCode(t, err, codes.HostUnreach, "refused")
	callAdd(t, find(t, walled, server.Addr()))
	caller := soon(t, "the caller", peers)
	if !strings.HasPrefix(caller.String(), "na+sm://") {
		t.Errorf("the call comes from %s", caller)
	}
	callAdd(t, caller)
}

// TestAutoSMConfig: messages of another size than those of shared memory are refused.
func TestAutoSMConfig(t *testing.T) {
	for _, cfg := range []*Config{{AutoSM: true, MaxRequest: 8192}, {AutoSM: true, MaxResponse: 1024}} {
		_, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", cfg)
		wantCode(t, err, codes.InvalidArg, "4096")
	}
	e, err := Listen(t.Context(), "na+sm", &Config{AutoSM: true})
	if e = opened(t, e, err); strings.HasPrefix(e.Addr(), "uid://") || e.Config().AutoSM {
		t.Errorf("an engine on na+sm has the address %s", e.Addr())
	}
}
