//go:build linux

package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/regmem"
	"cinnabar/verbs"
	"cinnabar/verbs/auto"
	"cinnabar/verbs/iwarp"
)

// Offsets in the messages of verbs;ofi_rxm; docs/wire-ofiverbs.md describes them.
const (
	rxmType    = 1
	rxmData    = 48 // the tag of a request
	rxmTag     = 56 // of a response
	rxmHeader  = 64
	rxmCredit  = 6 // type of a packet that grants credits
	rxmSender  = 16
	rxmExtra   = 16 // bytes that this module appends to the private data of a connection
	rxmBuffer  = rxmHeader + 4096
	rxmBuffers = 64
)

// rxmTape is a recorded conversation of two programs in C, without the bytes of RDMA reads and writes.
type rxmTape struct {
	key, addr       uint64 // of the client's memory
	size            int
	request, accept []byte // private data
	steps           []rxmStep
}

type rxmStep struct {
	fromClient bool
	packet     []byte // nil: the server reads or writes the client's memory
}

func readRXMTape(t *testing.T, name string) *rxmTape {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "verbs", name+".hex"))
	must(t, err)
	tape := &rxmTape{}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "#":
		case word == "memory":
			_, err := fmt.Sscanf(rest, "%x %x %d", &tape.key, &tape.addr, &tape.size)
			must(t, err)
		case rest == "read" || rest == "write":
			tape.steps = append(tape.steps, rxmStep{})
		default:
			b, err := hex.DecodeString(rest)
			must(t, err)
			switch word {
			case "request":
				tape.request = b
			case "accept":
				tape.accept = b
			default:
				tape.steps = append(tape.steps, rxmStep{fromClient: word == ">", packet: b})
			}
		}
	}
	return tape
}

// relocated returns packet with another key and address of the client's memory.
func (tape *rxmTape) relocated(packet []byte, key, addr uint64) []byte {
	word := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
	packet = bytes.ReplaceAll(packet, word(tape.key), word(key))
	return bytes.ReplaceAll(packet, word(tape.addr), word(addr))
}

// memoryIn returns the key and the address of the memory in the handle that a request has at the place of the handle in the recorded request; ok is
// false if the recorded request has no handle. The address also stands before the handle, in the descriptor of the segment, where no peer reads it.
func (tape *rxmTape) memoryIn(recorded, packet []byte) (at verbs.RemoteAddr, ok bool) {
	key := bytes.Index(recorded, binary.LittleEndian.AppendUint64(nil, tape.key))
	addr := bytes.LastIndex(recorded, binary.LittleEndian.AppendUint64(nil, tape.addr))
	if key < 0 || addr < 0 || len(packet) != len(recorded) {
		return verbs.RemoteAddr{}, false
	}
	return verbs.RemoteAddr{RKey: binary.LittleEndian.Uint32(packet[key:]), Addr: binary.LittleEndian.Uint64(packet[addr:])}, true
}

// plainResponse returns a response without the fields that are left over from earlier uses of the sender's buffer.
func plainResponse(packet []byte) []byte {
	b := bytes.Clone(packet)
	clear(b[2:8])
	clear(b[16:32])
	return b
}

// plainRequest is plainResponse for a request: it also omits the tag, the sender's address, and the address in the descriptor of the segment.
func (tape *rxmTape) plainRequest(recorded, packet []byte) []byte {
	b := plainResponse(packet)
	clear(b[rxmData:rxmTag])
	clear(b[rxmHeader : rxmHeader+rxmSender])
	if i := bytes.Index(recorded, binary.LittleEndian.AppendUint64(nil, tape.addr)); i >= 0 && len(packet) == len(recorded) {
		clear(b[i : i+8])
	}
	return b
}

// rxmPeer is a queue pair that sends recorded packets.
type rxmPeer struct {
	t                  *testing.T
	dev                *verbs.Device
	pd                 *verbs.PD
	cq                 *verbs.CQ
	qp                 *verbs.QP
	recv, send, memory *verbs.MR
	packets            [][]byte // the packets that have come and were not returned by next, without those that grant credits
}

const rxmSend = 1 << 32 // id of a send, a read or a write

func newRXMPeer(t *testing.T, tape *rxmTape) *rxmPeer {
	t.Helper()
	p := &rxmPeer{t: t}
	var err error
	p.dev, err = iwarp.Open(iwarp.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, p.dev.Close()) })
	p.pd, err = p.dev.AllocPD()
	must(t, err)
	t.Cleanup(func() { must(t, p.pd.Close()) })
	p.cq, err = p.dev.CreateCQ(2 * rxmBuffers)
	must(t, err)
	t.Cleanup(func() { must(t, p.cq.Close()) })
	p.recv = p.region(make([]byte, rxmBuffers*rxmBuffer), verbs.LocalWrite)
	p.send = p.region(make([]byte, rxmBuffer), 0)
	p.memory = p.region(make([]byte, tape.size), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
	p.qp, err = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, MaxSendWR: rxmBuffers, MaxRecvWR: rxmBuffers, SignalAll: true})
	must(t, err)
	t.Cleanup(func() { must(t, p.qp.Close()) })
	for i := range rxmBuffers {
		_, err := p.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{p.recv.SGE(i*rxmBuffer, rxmBuffer)}}})
		must(t, err)
	}
	return p
}

func (p *rxmPeer) region(mem []byte, access verbs.Access) *verbs.MR {
	p.t.Helper()
	mr, err := p.pd.RegMR(mem, access)
	must(p.t, err)
	p.t.Cleanup(func() { must(p.t, mr.Close()) })
	return mr
}

// post posts a request and waits for its completion.
func (p *rxmPeer) post(wr verbs.SendWR) {
	p.t.Helper()
	wr.ID = rxmSend
	_, err := p.qp.PostSend([]verbs.SendWR{wr})
	must(p.t, err)
	for p.step() != rxmSend {
		continue
	}
}

// put sends a packet.
func (p *rxmPeer) put(packet []byte) {
	p.t.Helper()
	copy(p.send.Bytes(), packet)
	p.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{p.send.SGE(0, len(packet))}})
}

// step waits for a completion and returns its id. If the completion is that of a receive, step adds the packet to packets.
func (p *rxmPeer) step() uint64 {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var wc [1]verbs.WC
	_, err := p.cq.Wait(ctx, wc[:])
	must(p.t, err, wc[0].Err())
	if wc[0].Op == verbs.WCRecv {
		b := bytes.Clone(p.recv.Bytes()[int(wc[0].ID)*rxmBuffer:][:wc[0].Len])
		if b[rxmType] != rxmCredit {
			p.packets = append(p.packets, b)
		}
	}
	return wc[0].ID
}

// next returns the next packet that grants no credits. Packets that grant credits may come at any time, so the tape does not contain them.
func (p *rxmPeer) next() []byte {
	p.t.Helper()
	for len(p.packets) == 0 {
		p.step()
	}
	b := p.packets[0]
	p.packets = p.packets[1:]
	return b
}

// counters returns the bytes that hg_bw_read and hg_bw_write move: the numbers from 0 on, in 4 bytes each.
func counters(n int) []byte {
	b := make([]byte, 0, n)
	for i := range uint32(n / 4) {
		b = binary.LittleEndian.AppendUint32(b, i)
	}
	return b
}

type (
	// bwInit announces the client's memory to hg_perf_server.
	bwInit struct {
		Bulk                                                          cinnabar.BulkHandle
		Op, Handle, Handles, Count, SizeMax, Clients, Target, Targets uint32
		Checking                                                      bool
	}
	// bwMove asks hg_perf_server for a transfer.
	bwMove struct {
		Bulk         cinnabar.BulkHandle // the client's memory; no handle: the memory that bwInit has announced
		Handle, Size uint32
	}
)

// perfRPC returns a procedure of hg_perf_server, which has a number for a name.
func perfRPC[In any](id uint64) *cinnabar.RPC[In, none] {
	return cinnabar.NewRPC[In, none]("perf "+strconv.FormatUint(id, 10), cinnabar.WithID(id), cinnabar.WithFlavor(cinnabar.Mercury))
}

var (
	bwInitRPC  = perfRPC[bwInit](4)
	bwReadRPC  = perfRPC[bwMove](5)
	bwWriteRPC = perfRPC[bwMove](6)
)

// softwareEngine opens an engine on a software device. The engine asks no peer about checksums, because the recorded programs have not asked.
func softwareEngine(t *testing.T) *cinnabar.Engine {
	t.Helper()
	dev, err := auto.Software(nil)
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	e, err := cinnabar.Listen(t.Context(), "ofi+verbs://127.0.0.1", &cinnabar.Config{Device: dev, Checksums: cinnabar.NoChecksums})
	must(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// address returns the IP address and port of an engine over ofi+verbs.
func address(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	_, text, _ := strings.Cut(addr, "://")
	a, err := netip.ParseAddrPort(text)
	must(t, err)
	return a
}

var rxmTapes = []string{"rxe_sum", "rxe_push", "rxe_pull", "siw_sum", "siw_push", "siw_pull"}

// TestReplayVerbsClients plays clients in C that were recorded over RDMA devices to a server in Go, over the software device. The responses of the
// server, and the bytes that it writes, are those of the server in C.
// parity(recorded): N01 H125
func TestReplayVerbsClients(t *testing.T) {
	for _, name := range rxmTapes {
		t.Run(name, func(t *testing.T) {
			tape := readRXMTape(t, name)
			e := softwareEngine(t)
			serveRecorded(t, e)
			p := newRXMPeer(t, tape)
			write := strings.HasSuffix(name, "push")
			if !write {
				copy(p.memory.Bytes(), counters(tape.size))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			vc, err := verbs.Dial(ctx, p.qp, address(t, e.Addr()), verbs.ConnParam{PrivateData: tape.request})
			must(t, err)
			if got := vc.PrivateData(); len(got) < 17+rxmExtra || got[0] != tape.accept[0] || got[13] != tape.accept[13] {
				t.Errorf("the connection is accepted with\n%x, and in C with\n%x", got, tape.accept)
			}
			at := p.memory.Remote()
			for i, s := range tape.steps {
				switch {
				case s.fromClient:
					p.put(tape.relocated(s.packet, uint64(at.RKey), at.Addr))
				case s.packet != nil && s.packet[rxmType] != rxmCredit:
					if got := p.next(); !bytes.Equal(plainResponse(got), plainResponse(s.packet)) {
						t.Errorf("step %d: the server responds\n%x, and in C\n%x", i, got, s.packet)
					}
				}
			}
			if write && !bytes.Equal(p.memory.Bytes(), counters(tape.size)) {
				t.Error("the server has not written the bytes of the server in C")
			}
		})
	}
}

// serveRecorded serves Margo's tutorial and the transfers of hg_perf_server.
func serveRecorded(t *testing.T, e *cinnabar.Engine) {
	t.Helper()
	var memory cinnabar.RemoteBulk
	move := func(ctx context.Context, n uint32, read bool) (err error) {
		b := make([]byte, n)
		mode, transfer := cinnabar.WriteOnly, cinnabar.RemoteBulk.Pull
		if !read {
			copy(b, counters(len(b)))
			mode, transfer = cinnabar.ReadOnly, cinnabar.RemoteBulk.Push
		}
		local, err := e.Expose(mode, b)
		if err != nil {
			return err
		}
		defer func() { err = firstOf(err, local.Close()) }()
		if _, err := transfer(memory, ctx, local); err != nil {
			return err
		}
		if !bytes.Equal(b, counters(len(b))) {
			return fmt.Errorf("wrong bytes: %x", b)
		}
		return nil
	}
	must(t,
		tutorial.Handle(e, func(ctx context.Context, in tutorialIn) (out tutorialOut, err error) {
			values := make([]int32, in.N)
			local, err := e.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
			if err != nil {
				return out, err
			}
			defer func() { err = firstOf(err, local.Close()) }()
			if _, err := in.Bulk.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err != nil {
				return out, err
			}
			for _, v := range values {
				out.Ret += v
			}
			return out, nil
		}),
		bwInitRPC.Handle(e, func(ctx context.Context, in bwInit) (none, error) {
			memory = in.Bulk.On(cinnabar.InfoFrom(ctx).Peer)
			return none{}, nil
		}),
		bwReadRPC.Handle(e, func(ctx context.Context, in bwMove) (none, error) { return none{}, move(ctx, in.Size, false) }),
		bwWriteRPC.Handle(e, func(ctx context.Context, in bwMove) (none, error) { return none{}, move(ctx, in.Size, true) }),
	)
}

// TestReplayVerbsServers plays the servers of the same recordings to a client in Go, over the software device. The requests of the client are those of
// the client in C.
// parity(recorded): N01 H125
func TestReplayVerbsServers(t *testing.T) {
	for _, name := range rxmTapes {
		t.Run(name, func(t *testing.T) {
			tape := readRXMTape(t, name)
			p := newRXMPeer(t, tape)
			l, err := verbs.Listen(p.dev, netip.MustParseAddrPort("127.0.0.1:0"))
			must(t, err)
			defer func() { must(t, l.Close()) }()
			e := softwareEngine(t)
			to, err := e.Lookup("ofi+verbs://" + l.Addr().String())
			must(t, err)
			push := strings.HasSuffix(name, "push")
			if push {
				copy(p.memory.Bytes(), counters(tape.size))
			}
			ended := make(chan error, 1)
			go func() { ended <- callRecorded(t.Context(), e, to, name) }()
			p.accept(l, tape)
			at := p.memory.Remote()
			tags := map[string][]byte{} // of the client, by the recorded ones
			for i, s := range tape.steps {
				switch {
				case s.packet == nil:
					wr := verbs.SendWR{Op: verbs.OpRead, Remote: at, SGL: []verbs.SGE{p.memory.SGE(0, tape.size)}}
					if push {
						wr.Op = verbs.OpWrite
					}
					if p.post(wr); !push && !bytes.Equal(p.memory.Bytes(), counters(tape.size)) {
						t.Error("the client lends other bytes than the client in C")
					}
				case !s.fromClient:
					b := bytes.Clone(s.packet)
					copy(b[rxmTag:rxmHeader], tags[string(b[rxmTag:rxmHeader])]) // none in packets that grant credits
					p.put(b)
				case s.packet[rxmType] != rxmCredit:
					got := p.next()
					if a, ok := tape.memoryIn(s.packet, got); ok {
						at = a
					}
					want := tape.relocated(s.packet, uint64(at.RKey), at.Addr)
					if !bytes.Equal(tape.plainRequest(s.packet, got), tape.plainRequest(s.packet, want)) {
						t.Fatalf("step %d: the client requests\n%x, and in C\n%x", i, got, want)
					}
					tags[string(s.packet[rxmData:rxmTag])] = got[rxmData:rxmTag]
				}
			}
			must(t, <-ended)
		})
	}
}

// callRecorded makes the calls of the recorded client.
func callRecorded(ctx context.Context, e *cinnabar.Engine, to *cinnabar.Endpoint, name string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, kind, _ := strings.Cut(name, "_")
	if kind == "sum" {
		values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5}
		for range clientCalls {
			b, err := e.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
			if err != nil {
				return err
			}
			out, err := tutorial.Call(ctx, to, tutorialIn{int32(len(values)), b.Handle()})
			if err := firstOf(err, b.Close()); err != nil {
				return err
			}
			if out.Ret != 36 {
				return fmt.Errorf("the sum is %d", out.Ret)
			}
		}
		return nil
	}
	const size = 4096
	mode, op, rpc, memory := cinnabar.WriteOnly, uint32(0), bwReadRPC, make([]byte, size)
	if kind == "pull" {
		mode, op, rpc = cinnabar.ReadOnly, 1, bwWriteRPC
		copy(memory, counters(size))
	}
	b, err := e.Expose(mode, memory)
	if err != nil {
		return err
	}
	defer func() { err = firstOf(err, b.Close()) }()
	init := bwInit{Bulk: b.Handle(), Op: op, Handles: 1, Count: 1, SizeMax: size, Clients: 1, Targets: 1}
	if _, err := bwInitRPC.Call(ctx, to, init); err != nil {
		return err
	}
	if _, err := rpc.Call(ctx, to, bwMove{Size: size}); err != nil {
		return err
	}
	if !bytes.Equal(memory, counters(size)) {
		return fmt.Errorf("wrong bytes: %x", memory)
	}
	return nil
}

// accept accepts the client's connection as the recorded server has done, and compares the client's private data with the recorded client's.
func (p *rxmPeer) accept(l *verbs.Listener, tape *rxmTape) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	req, err := l.Accept(ctx)
	must(p.t, err)
	const end = 25 // of the structure
	got, want := bytes.Clone(req.PrivateData()), bytes.Clone(tape.request[:end])
	if len(got) != end+rxmExtra {
		p.t.Errorf("private data of %d bytes: %x", len(got), got)
	}
	for _, b := range [][]byte{got, want} {
		clear(b[5:7])    // port
		clear(b[13:end]) // receives, index and process
	}
	if !bytes.Equal(got[:end], want) {
		p.t.Errorf("the client connects with\n%x, and in C with\n%x", got[:end], want)
	}
	_, err = req.Accept(ctx, p.qp, verbs.ConnParam{PrivateData: tape.accept})
	must(p.t, err)
}
