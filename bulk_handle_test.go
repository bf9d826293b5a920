package cinnabar

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/testproc"
)

// parity: H75 H78 G66
func TestHandleBinary(t *testing.T) {
	e := bulkEngine(t, nil)
	for _, segs := range [][]int{{100}, {10, 20, 30}, repeat(3, 9), {0}, {0, 5, 0}} {
		b := expose(t, e, ReadOnly, pieces(make([]byte, 100), segs...)...)
		for _, h := range []BulkHandle{b.Handle(), b.Bound()} {
			data, err := h.AppendBinary([]byte("prefix"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(data, []byte("prefix")) {
				t.Error("the buffer's content is gone")
			}
			data = data[len("prefix"):]
			var got BulkHandle
			if err := got.UnmarshalBinary(data); err != nil {
				t.Fatal(err)
			}
			if got.String() != h.String() || got.bound() != h.bound() {
				t.Errorf("%v after the trip, want %v", got, h)
			}
			if again, err := got.AppendBinary(nil); err != nil || !bytes.Equal(again, data) {
				t.Errorf("passed on in other bytes, %v", err)
			}
			for n := range data {
				wantCode(t, new(BulkHandle).UnmarshalBinary(data[:n]), codes.ProtocolError, "deserialize")
			}
			argument, err := h.AppendProc(nil)
			if err != nil {
				t.Fatal(err)
			}
			for n := range argument {
				if _, err := new(BulkHandle).DecodeProc(argument[:n]); !errors.Is(err, codec.ErrOverflow) || codeOf(err) != codes.Overflow {
					t.Fatalf("%d of %d bytes: %v", n, len(argument), err)
				}
			}
			argument[8+8]++ // the count of segments
			_, err = new(BulkHandle).DecodeProc(argument)
			wantCode(t, err, codes.ProtocolError, "deserialize")
		}
	}
}

func TestHandleNull(t *testing.T) {
	var h BulkHandle
	if h != (BulkHandle{}) || h.Len() != 0 || h.Mode() != 0 || h.bound() || h.String() != "null bulk" {
		t.Errorf("the null handle is %v", h)
	}
	_, err := h.AppendBinary(nil)
	wantCode(t, err, codes.InvalidArg, "null")
	data, err := h.AppendProc([]byte("x"))
	if err != nil || !bytes.Equal(data, []byte("x\x00\x00\x00\x00\x00\x00\x00\x00")) {
		t.Errorf("as an argument it is %x, %v", data, err)
	}
	e := bulkEngine(t, nil)
	h = expose(t, e, ReadOnly, make([]byte, 1)).Handle()
	if n, err := h.DecodeProc(data[1:]); n != 8 || err != nil || h != (BulkHandle{}) {
		t.Errorf("decoded %v from %d bytes, %v", h, n, err)
	}
	_, err = h.Owner(e)
	wantCode(t, err, codes.InvalidArg, "not bound")
}

// FuzzBulkHandle feeds a handle anything. What is accepted is passed on in the same bytes, but without handles and addresses of shared
// memory, because AppendBinary writes for a network that is not known.
// parity: H78
func FuzzBulkHandle(f *testing.F) {
	e := bulkEngine(f, nil)
	for _, sizes := range [][]int{{16}, {10, 20, 30}, {0}} {
		b := expose(f, e, ReadOnly, pieces(make([]byte, 100), sizes...)...)
		for _, h := range []BulkHandle{b.Handle(), b.Bound()} {
			data, err := h.AppendBinary(nil)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
			data, err = h.AppendProc(make([]byte, 0, 4096))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data[8:])
		}
	}
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x18000" + strings.Repeat("\x00", 16))) // one empty segment, HG_BULK_SM
	shares := wire.NewBulk(wire.BulkReadOnly, []wire.Segment{{Base: 1, Length: 10}}, func(b []byte, _ int) []byte { return append(b, "network"...) },
		func(b []byte, _ int) []byte { return append(b, "shared memory"...) })
	f.Add(shares.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h BulkHandle
		if err := h.UnmarshalBinary(data); err != nil {
			return
		}
		parsed, err := wire.ParseBulk(data)
		if err != nil {
			t.Fatalf("the handle accepts what its parser refuses: %v", err)
		}
		network := parsed.Network()
		want := network.Append(nil)
		if parsed.Flags()&wire.BulkSM == 0 && !bytes.Equal(want, data) {
			t.Fatalf("the form for a network is %x, which differs though there is no shared memory", want)
		}
		again, err := h.AppendBinary(nil)
		if err != nil || !bytes.Equal(again, want) {
			t.Errorf("passed on as %x, %v, want %x", again, err, want)
		}
		_ = h.String()
		_ = h.On(e.Self()).Slice(0, h.Len()).Len()
		if ep, err := h.Owner(e); err == nil {
			_ = ep.String()
		}
	})
}

// argument is what an RPC might take.
type argument struct {
	N    int32
	Data BulkHandle
	Tail uint16
}

func plan(t *testing.T) codec.Plan {
	t.Helper()
	p, err := hgproc.Codec{}.Plan(reflect.TypeFor[argument]())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// carry encodes a handle among other arguments into a message of the given room and decodes it.
func carry(t *testing.T, h BulkHandle, room int) (got BulkHandle, size int) {
	t.Helper()
	in, out := argument{N: 7, Data: h, Tail: 9}, argument{}
	data, err := plan(t).Append(make([]byte, 0, room), &in)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := plan(t).Decode(data, &out); n != len(data) || err != nil {
		t.Fatalf("decoded %d of %d bytes, %v", n, len(data), err)
	}
	if out.N != 7 || out.Tail != 9 {
		t.Errorf("the fields beside the handle are %d and %d", out.N, out.Tail)
	}
	return out.Data, len(data)
}

// Small readable memory travels inside its handle: pulling it makes no traffic, pushing does.
// parity: H79
func TestHandleEager(t *testing.T) {
	p := newBulkPair(t)
	data := noise(64)
	theirs := expose(t, p.there, ReadWrite, pieces(data, 40, 24)...)
	h, _ := carry(t, theirs.Handle(), 4096)
	r := h.On(p.ep)
	local := expose(t, p.here, ReadWrite, make([]byte, 64))
	before := p.here.core.Stats()
	if n, err := r.Slice(3, 50).Pull(t.Context(), local); n != 50 || err != nil || !bytes.Equal(local.Bytes()[:50], data[3:53]) {
		t.Errorf("pull: %d, %v", n, err)
	}
	if n, err := r.StartPull(t.Context(), local).Wait(); n != 64 || err != nil || !bytes.Equal(local.Bytes(), data) {
		t.Errorf("pull: %d, %v", n, err)
	}
	if got := p.here.core.Stats().BytesRead; got != before.BytesRead {
		t.Errorf("%d bytes were read over the wire", got-before.BytesRead)
	}
	clear(local.Bytes())
	if n, err := r.Push(t.Context(), local); n != 64 || err != nil || !bytes.Equal(contents(theirs), make([]byte, 64)) {
		t.Errorf("push: %d, %v", n, err)
	}
	if got := p.here.core.Stats().BytesWritten; got != before.BytesWritten+64 {
		t.Errorf("%d bytes were written over the wire, want 64", got-before.BytesWritten)
	}
	again, err := h.AppendProc(nil)
	if err != nil || !bytes.Contains(again, data[:40]) {
		t.Errorf("passed on without the data inside, %v", err)
	}
}

// Without room, right or wish, nothing is embedded, and the bytes come over the wire.
// parity: H79
func TestHandleNotEager(t *testing.T) {
	p := newBulkPair(t)
	data := noise(64)
	for _, c := range []struct {
		name string
		h    BulkHandle
		room int
	}{
		{"no room", expose(t, p.there, ReadOnly, data).Handle(), 150},
		{"too large", expose(t, p.there, ReadOnly, append(data, make([]byte, 5000)...)).Handle(), 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, size := carry(t, c.h, c.room)
			if size > 150 {
				t.Errorf("%d bytes in the message", size)
			}
			before := p.here.core.Stats().BytesRead
			local := expose(t, p.here, WriteOnly, make([]byte, 64))
			if n, err := h.On(p.ep).Pull(t.Context(), local); n != 64 || err != nil || !bytes.Equal(local.Bytes(), data) {
				t.Errorf("pull: %d, %v", n, err)
			}
			if got := p.here.core.Stats().BytesRead - before; got != 64 {
				t.Errorf("%d bytes were read over the wire, want 64", got)
			}
		})
	}
	off := bulkEngine(t, &Config{NoEager: true})
	if _, size := carry(t, expose(t, off, ReadOnly, data).Handle(), 4096); size > 150 {
		t.Errorf("%d bytes in the message though embedding is off", size)
	}
	h, _ := carry(t, expose(t, p.there, ReadOnly, data).Handle(), 4096)
	ep, err := off.Lookup(p.there.Addr())
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	if _, err := h.On(ep).ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, data) || off.core.Stats().BytesRead != 0 {
		t.Errorf("what others embed is not used: %d bytes were read over the wire, %v", off.core.Stats().BytesRead, err)
	}
	secret := expose(t, p.there, WriteOnly, data)
	message, err := secret.Handle().AppendProc(make([]byte, 0, 4096))
	if err != nil || bytes.Contains(message, data[:8]) {
		t.Errorf("memory that peers may not read is in the handle, %v", err)
	}
}

// The handle of a view gives access to the view, and dies with the whole.
// parity: D23
func TestHandleOfView(t *testing.T) {
	p := newBulkPair(t)
	whole := expose(t, p.there, ReadWrite, pieces([]byte("0123456789"), 4, 6)...)
	view := whole.Slice(2, 5)
	r := p.remote(t, view)
	if r.Len() != 5 || r.h.d.Segments() != 2 {
		t.Fatalf("the view's handle is %v", r.h)
	}
	got := make([]byte, 5)
	if n, err := r.ReadAt(t.Context(), got, 0); n != 5 || err != nil || string(got) != "23456" {
		t.Errorf("read %q, %d, %v", got, n, err)
	}
	if _, err := r.WriteAt(t.Context(), []byte("xy"), 3); err != nil || string(contents(whole)) != "01234xy789" {
		t.Errorf("memory is %q, %v", contents(whole), err)
	}
	first, _ := view.Handle().AppendBinary(nil)
	second, _ := whole.Slice(2, 5).Handle().AppendBinary(nil)
	if !bytes.Equal(first, second) {
		t.Error("the same view has two descriptions")
	}
	if h := whole.Slice(4, 0).Handle(); h == (BulkHandle{}) || h.Len() != 0 {
		t.Errorf("an empty view is %v", h)
	}
	closeBulk(t, whole)
	if _, err := r.ReadAt(t.Context(), got, 0); err == nil {
		t.Error("the view's keys live on")
	}
}

// A bound handle goes from its owner through this process to a third one, which pulls from the owner.
// parity: H84
func TestBoundHandleThirdProcess(t *testing.T) {
	owner := bulkEngine(t, nil)
	data := noise(100_000)
	want := fmt.Sprintf("pulled %x", checksum(data))
	b := expose(t, owner, ReadWrite, data)
	h := travel(t, b.Bound()) // the process in the middle
	if !h.bound() || travel(t, b.Handle()).bound() {
		t.Fatal("bound and not bound are mixed up")
	}
	text, err := h.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := testproc.Run(t, testproc.Command{
		Args: []string{"-test.run=^TestBoundHandleHelper$", "-test.v"},
		Env:  []string{fmt.Sprintf("%s=%x", boundHandleEnv, text)},
	})
	must(t, p.Wait())
	if !strings.Contains(p.Stdout.String(), want) {
		t.Errorf("the third process has not printed %q", want)
	}
	if got := string(contents(b)[:5]); got != "third" {
		t.Errorf("memory begins %q after the third process's push", got)
	}
}

const boundHandleEnv = "CINNABAR_TEST_BOUND_HANDLE"

func checksum(b []byte) (sum uint64) {
	for _, c := range b {
		sum = sum*31 + uint64(c)
	}
	return sum
}

// TestBoundHandleHelper is the third process of TestBoundHandleThirdProcess.
func TestBoundHandleHelper(t *testing.T) {
	text := os.Getenv(boundHandleEnv)
	if text == "" {
		t.Skip("runs as a process of TestBoundHandleThirdProcess only")
	}
	var data []byte
	if _, err := fmt.Sscanf(text, "%x", &data); err != nil {
		t.Fatal(err)
	}
	var h BulkHandle
	if err := h.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	e := bulkEngine(t, nil)
	owner, err := h.Owner(e)
	if err != nil {
		t.Fatal(err)
	}
	local := expose(t, e, ReadWrite, make([]byte, h.Len()))
	if _, err := h.On(owner).Pull(t.Context(), local); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("pulled %x\n", checksum(local.Bytes()))
	if _, err := h.On(owner).WriteAt(t.Context(), []byte("third"), 0); err != nil {
		t.Fatal(err)
	}
}

// TestBoundHandleLeadsElsewhere checks that a peer which sends a handle with another address in it makes the receiver connect there only
// if the receiver's program follows the address, and that the receiver waits for no longer than its context lasts.
func TestBoundHandleLeadsElsewhere(t *testing.T) {
	elsewhere, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = elsewhere.Close() })
	data, err := expose(t, bulkEngine(t, nil), ReadOnly, make([]byte, 10)).Bound().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	port := elsewhere.Addr().(*net.TCPAddr).Port
	binary.BigEndian.PutUint16(data[88+8+16+2:], uint16(port)) // after the address's length, its prefix and its family
	var h BulkHandle
	if err := h.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	e := bulkEngine(t, nil)
	owner, err := h.Owner(e)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("127.0.0.1:%d", port); !strings.HasSuffix(owner.String(), want) {
		t.Fatalf("the owner is %v, want %s", owner, want)
	}
	marker, err := net.Dial("tcp4", elsewhere.Addr().String())
	must(t, err)
	defer func() { _ = marker.Close() }()
	first, err := elsewhere.Accept()
	must(t, err)
	defer func() { _ = first.Close() }()
	if first.RemoteAddr().String() != marker.LocalAddr().String() {
		t.Fatal("the engine connected before the program followed the address")
	}
	ctx, cancel := context.WithCancel(t.Context())
	local := expose(t, e, ReadWrite, make([]byte, 10))
	pulled := make(chan error, 1)
	go func() {
		_, err := h.On(owner).Pull(ctx, local)
		pulled <- err
	}()
	second, err := elsewhere.Accept()
	must(t, err)
	defer func() { _ = second.Close() }()
	cancel()
	wantCode(t, <-pulled, codes.Canceled, "")
}

// An address in a bound handle that is none is an error by name.
func TestBoundHandleBadOwner(t *testing.T) {
	e := bulkEngine(t, nil)
	data, err := expose(t, e, ReadOnly, make([]byte, 1)).Bound().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	addr := data[88:] // after the length of the address
	binary.LittleEndian.PutUint16(addr[8+16:], 77)
	var h BulkHandle
	if err := h.UnmarshalBinary(data); err != nil {
		return // refused as early as that
	}
	if _, err := h.Owner(e); err == nil {
		t.Error("an address of family 77 is one")
	} else if _, ok := errors.AsType[*Error](err); !ok {
		t.Errorf("error %T", err)
	}
}

// A handle in an RPC's arguments reaches the handler, which pulls from the caller and pushes back.
// parity: H77
func TestHandleAsArgument(t *testing.T) {
	double := NewRPC[argument, int64]("bulk_test_double")
	p := newBulkPair(t)
	err := double.Handle(p.there, func(ctx context.Context, in argument) (int64, error) {
		local, err := p.there.Alloc(ReadWrite, in.Data.Len())
		if err != nil {
			return 0, err
		}
		defer closeBulk(t, local)
		caller := in.Data.On(InfoFrom(ctx).Peer)
		if _, err := caller.Pull(ctx, local); err != nil {
			return 0, err
		}
		for i := range local.Bytes() {
			local.Bytes()[i] *= 2
		}
		return caller.Push(ctx, local)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 3, 1000, 100_000} {
		data := noise(size)
		b := expose(t, p.here, ReadWrite, data)
		want := bytes.Clone(data)
		for i := range want {
			want[i] *= 2
		}
		n, err := double.Call(t.Context(), p.ep, argument{N: 1, Data: b.Handle()})
		if err != nil || n != int64(size) || !bytes.Equal(data, want) {
			t.Errorf("%d bytes: %d, %v", size, n, err)
		}
	}
}
