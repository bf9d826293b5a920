package hg

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// panics reports whether f does.
func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

// short offers messages that are too short.
type short struct{ *natest.Endpoint }

func (short) Limits() na.Limits { return na.Limits{MaxRequest: 255, MaxResponse: 4096} }

func TestMisuse(t *testing.T) {
	n := natest.New(natest.Config{Direct: true})
	client := open(t, n, Config{})
	for name, f := range map[string]func(){
		"messages too short": func() { New(Config{}).Attach(short{client.ep}) },
		"call freed twice": func() {
			k := &Call{c: client.Class}
			k.Free()
		},
		"transfer freed twice": func() {
			x := &Transfer{c: client.Class}
			x.Free()
		},
		"request freed twice": func() {
			r := &Request{c: client.Class, f: wire.Request{Flags: wire.FlagNoResponse}}
			r.Free()
		},
		"call started twice": func() {
			k := &Call{c: client.Class}
			k.Start(nil, 1, CallOptions{}, nil)
		},
		"transfer started twice": func() {
			x := &Transfer{c: client.Class}
			x.Start(Pull, nil, nil, 0, nil, 0)
		},
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
	k := client.NewCall()
	k.Cancel()
	k.Start(nil, 1, CallOptions{}, nil)
	if err := k.Wait(t.Context()); codeFrom(t, err) != codes.InvalidArg {
		t.Errorf("call of nobody: %v", err)
	}
	k.Free()
	client.NewCall().Free()
	client.NewTransfer().Free()
	if client.Endpoint() != na.Endpoint(client.ep) {
		t.Error("another endpoint")
	}
}

// TestTagsRefused has a network on which all tags seem to be taken, and a process in which they are.
func TestTagsRefused(t *testing.T) {
	ep := newScripted()
	c := New(Config{})
	c.Attach(refusing{ep})
	k := c.NewCall()
	k.Start(&ep.peer, 1, CallOptions{}, nil)
	if err := k.Wait(t.Context()); codeFrom(t, err) != codes.InvalidArg {
		t.Error(err)
	}
	k.Free()
	const blocks = 1 << 12 // of tags, see wire.Tags
	var taken []uint32
	for i := range uint32(blocks) {
		c.tags.Start(i<<20 - 1)
		tag, ok := c.tags.Take()
		if !ok || tag != i<<20 {
			t.Fatalf("took tag %#x, %v", tag, ok)
		}
		taken = append(taken, tag)
	}
	c.tags.Start(1<<20 - 1)
	k = c.NewCall()
	k.Start(&ep.peer, 1, CallOptions{}, nil)
	if err := k.Wait(t.Context()); codeFrom(t, err) != codes.Again || !errors.Is(err, errNoTag) {
		t.Error(err)
	}
	k.Free()
	for _, tag := range taken { // each block has the tag of the test and no other, so it is free without it
		c.tags.Release(tag)
		c.tags.Start(tag - 1)
		if got, ok := c.tags.Take(); !ok || got != tag {
			t.Fatalf("took tag %#x, %v; want %#x", got, ok, tag)
		}
	}
}

// refusing receives nothing.
type refusing struct{ *scripted }

func (refusing) RecvExpected(op *na.Op, _ na.Addr, _ uint32, _ []byte) {
	op.Begin()
	op.Finish(0, &na.Error{Kind: na.Invalid, Op: "receive"})
}

// parity: H50
func TestReleaseInput(t *testing.T) {
	n := natest.New(natest.Config{})
	held := make(chan int64, 2)
	var server *node
	server = open(t, n, Config{Dispatch: handler(func(r *Request) {
		held <- server.Stats().OverflowBytes
		r.ReleaseInput()
		held <- server.Stats().OverflowBytes
		if r.Input() != nil || r.Context() != 0 {
			t.Error("the input is still there, or a context id from nowhere")
		}
		_ = r.Respond(context.Background(), nil)
	})})
	client := open(t, n, Config{})
	if _, err := call(t, client, server.ep.Addr(), 1, make([]byte, 10000)); err != nil {
		t.Error(err)
	}
	if before, after := <-held, <-held; before != 10000 || after != 0 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := natest.New(natest.Config{})
		begun, proceed := make(chan struct{}), make(chan struct{})
		server := open(t, n, Config{Dispatch: handler(func(r *Request) {
			close(begun)
			<-proceed
			echo(r)
		})})
		other, client := open(t, n, Config{Dispatch: handler(echo)}), open(t, n, Config{})
		k := client.NewCall()
		k.Start(server.ep.Addr(), 1, CallOptions{}, append(k.Input(), "early"...))
		<-begun
		server.Shutdown()
		if _, err := call(t, server, other.ep.Addr(), 1, nil); err != nil {
			t.Errorf("call after Shutdown: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := client.NewCall()
		late.Start(server.ep.Addr(), 1, CallOptions{}, nil)
		if err := late.Wait(ctx); codeFrom(t, err) != codes.Timeout {
			t.Errorf("call of who is shut down: %v", err)
		}
		late.Free()
		close(proceed)
		if err := k.Wait(t.Context()); err != nil || string(k.Output()) != "early" {
			t.Errorf("call from before: %q, %v", k.Output(), err)
		}
		k.Free()
	})
}

// transferred is told of transfers.
type transferred struct{ done chan error }

func (d transferred) TransferDone(x *Transfer) {
	err := x.Err()
	x.Free()
	d.done <- err
}

func TestTransferNotify(t *testing.T) {
	origin, target := pair(t, natest.Config{Chunk: 100})
	data := pattern(1000)
	d := travel(t, expose(t, origin, na.ReadOnly, data).Desc())
	told := transferred{make(chan error, 1)}
	got := make([]byte, 1000)
	x := target.NewTransfer()
	x.Notify(told)
	x.Start(Pull, origin.ep.Addr(), d, 0, [][]byte{got}, 1000)
	if err := <-told.done; err != nil || !bytes.Equal(got, data) {
		t.Error(err)
	}
}

// TestAbandonedTransfer leaves a transfer to itself that the network does not give back.
func TestAbandonedTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := newScripted()
		c := New(Config{})
		c.Attach(ep)
		d, err := ParseDesc(golden(t, "proc_pull")[wordSize:], OverNetwork)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x := c.NewTransfer()
		x.Start(Pull, &ep.peer, d, 0, [][]byte{make([]byte, 16)}, 16)
		start := time.Now()
		if n, err := x.Wait(ctx); n != 0 || codeFrom(t, err) != codes.Timeout || time.Since(start) != time.Second+settleTime {
			t.Errorf("%d, %v after %v", n, err, time.Since(start))
		}
		x.Cancel()
		x.Free()
		if got := c.Stats().TransfersActive; got != 1 {
			t.Errorf("%d transfers are active, want the one that the network has", got)
		}
		ep.flying["get"].Finish(0, &na.Error{Kind: na.Canceled})
		if got := c.Stats().TransfersActive; got != 0 {
			t.Errorf("%d transfers are active, want none", got)
		}
	})
}

// TestCancelLocalCopy cancels a copy within this process.
func TestCancelLocalCopy(t *testing.T) {
	n := natest.New(natest.Config{})
	me := open(t, n, Config{})
	b := expose(t, me, na.ReadWrite, make([]byte, 8<<20))
	mine := make([]byte, 8<<20)
	for range 20 {
		x := me.NewTransfer()
		x.Start(Push, me.ep.Addr(), b.Desc(), 0, [][]byte{mine}, 8<<20)
		x.Cancel()
		if n, err := x.Wait(t.Context()); err != nil && (codeFrom(t, err) != codes.Canceled || n == 8<<20) || err == nil && n != 8<<20 {
			t.Errorf("%d, %v", n, err)
		}
		x.Free()
	}
	for range 20 { // closing waits for the copy
		again := expose(t, me, na.ReadWrite, make([]byte, 8<<20))
		x := me.NewTransfer()
		x.Start(Push, me.ep.Addr(), again.Desc(), 0, [][]byte{mine}, 8<<20)
		again.Close()
		if _, err := x.Wait(t.Context()); err != nil && codeFrom(t, err) != codes.InvalidArg {
			t.Error(err)
		}
		x.Free()
	}
}

// TestCorruptOverflowOfResponse has a response with overflow whose checksum is not that of what is pulled.
func TestCorruptOverflowOfResponse(t *testing.T) {
	n := natest.New(natest.Config{})
	client, bad := open(t, n, Config{Checksums: wire.Checksums}), openRaw(n)
	mem, err := bad.ep.Register(make([]byte, 16), na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	head := make([]byte, wire.FormLong.Size())
	wire.PutResponse(head, wire.Response{Form: wire.FormLong, Flags: wire.FlagMoreData, CRC: 12345})
	bad.answer = wire.AppendLent(head, 16, mem.AppendHandle, nil)
	if _, err := call(t, client, bad.ep.Addr(), 1, nil); codeFrom(t, err) != codes.ChecksumError {
		t.Error(err)
	}
}
