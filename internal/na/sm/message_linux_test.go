package sm

import (
	"bytes"
	"testing"
	"time"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// TestRawClient has a client of C's kind call, one that sleeps and one that never does, at the same time.
func TestRawClient(t *testing.T) {
	server, _ := serve(t, Config{})
	sleeper, busy := newRaw(t, server), newRaw(t, server)
	sleeper.announce()
	busy.announceBusy()
	for i, n := range []int{0, 1, 40, 4095, 4096, 0, 77} {
		for _, c := range []*rawClient{sleeper, busy} {
			msg := bytes.Repeat([]byte{byte(i + 1)}, n)
			c.request(uint32(i), msg)
			d, got := c.answer()
			if d.tag() != uint32(i) || d.kind() != typeExpected || !bytes.Equal(got, msg) {
				t.Fatalf("%d bytes: %d came, tag %d, type %d", n, len(got), d.tag(), d.kind())
			}
		}
	}
	if sleeper.moreTokens() {
		t.Error("more tokens than messages")
	}
	sleeper.release()
	if err := busy.r.commands.push(makeCommand(busy.ident, busy.pair, commandReleased, 0)); err != nil {
		t.Fatal(err)
	}
	settled(t, server)
}

// TestTokens sends bursts; every answer has one token.
func TestTokens(t *testing.T) {
	server, _ := serve(t, Config{})
	c := newRaw(t, server)
	c.announce()
	for round := range 20 {
		n := round*3 + 1
		for i := range n {
			c.request(uint32(i), []byte("x"))
		}
		for range n {
			c.answer()
		}
		if c.moreTokens() {
			t.Fatalf("more tokens than %d answers", n)
		}
	}
	c.release()
	settled(t, server)
}

// TestLateDatagram has the command found in the ring before the datagram comes: answers that were sent meanwhile get
// their tokens.
func TestLateDatagram(t *testing.T) {
	server, h := serve(t, Config{})
	c := newRaw(t, server)
	c.announceBusy()
	for i := range 5 {
		c.request(uint32(i), []byte("early"))
	}
	eventually(t, "requests are served", func() bool { return h.requests.Load() == 5 })
	eventually(t, "answers are there", func() bool { return c.in.other.Load() == 5 })
	c.announce()
	for i := range 5 {
		if d, _ := c.answer(); d.tag() != uint32(i) {
			t.Errorf("answer %d has tag %d", i, d.tag())
		}
	}
	c.request(9, []byte("late"))
	if d, msg := c.answer(); d.tag() != 9 || string(msg) != "late" {
		t.Errorf("tag %d, %q", d.tag(), msg)
	}
	if c.moreTokens() {
		t.Error("more tokens than answers")
	}
	c.release()
	settled(t, server)
}

// TestManyInFlight has more requests in flight than there are buffers and slots, with messages that need either.
func TestManyInFlight(t *testing.T) {
	for _, n := range []int{0, 64, 300, 4096} {
		server, h := serve(t, Config{})
		client := open(t, Config{})
		to := lookup(t, client, server.own.String())
		const calls = 500
		msg := bytes.Repeat([]byte{'m'}, n)
		send, recv := make([]*signal, calls), make([]*signal, calls)
		bufs := make([][]byte, calls)
		for i := range calls {
			send[i], recv[i], bufs[i] = newSignal(), newSignal(), make([]byte, bufferSize)
			client.RecvExpected(&recv[i].op, to, uint32(i), bufs[i])
			client.SendRequest(&send[i].op, to, uint32(i), msg)
		}
		for i := range calls {
			if err := send[i].wait(t); err != nil {
				t.Fatal(err)
			}
			if err := recv[i].wait(t); err != nil || !bytes.Equal(bufs[i][:recv[i].op.N], msg) {
				t.Fatalf("call %d: %d bytes, %v", i, recv[i].op.N, err)
			}
		}
		if got := h.requests.Load(); got != calls {
			t.Errorf("%d requests", got)
		}
		shut(t, client)
		settled(t, server)
	}
}

// TestSelf has an endpoint call itself, with Listen and without.
func TestSelf(t *testing.T) {
	server, h := serve(t, Config{})
	c := newCaller(server, server.own)
	for i := range 100 {
		msg := bytes.Repeat([]byte{byte(i)}, i*41)
		if got, err := c.call(t, msg); err != nil || !bytes.Equal(got, msg) {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if lookup(t, server, server.own.String()) != na.Addr(server.own) || h.requests.Load() != 100 {
		t.Error("a lookup of the own address is another's")
	}
	mute := open(t, Config{})
	s := newSignal()
	mute.SendRequest(&s.op, mute.own, 1, []byte("nobody listens"))
	if err := s.wait(t); err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	c := newCaller(client, lookup(t, client, server.own.String()))
	if _, err := c.call(t, make([]byte, bufferSize+1)); na.KindOf(err) != na.Truncated {
		t.Errorf("a message of 4097 bytes: %v", err)
	}
	s := newSignal()
	client.RecvExpected(&s.op, c.to, 77, make([]byte, 3))
	twice := newSignal()
	client.RecvExpected(&twice.op, c.to, 77, make([]byte, 3))
	if err := twice.wait(t); na.KindOf(err) != na.Invalid {
		t.Errorf("a tag that is waited for: %v", err)
	}
	send := newSignal()
	client.SendRequest(&send.op, c.to, 77, []byte("four"))
	if err := s.wait(t); na.KindOf(err) != na.Truncated {
		t.Errorf("an answer longer than the buffer: %v", err)
	}
	other := open(t, Config{})
	s2 := newSignal()
	other.SendRequest(&s2.op, c.to, 1, nil)
	if err := s2.wait(t); na.KindOf(err) != na.Invalid {
		t.Errorf("another endpoint's address: %v", err)
	}
}

func TestCancel(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	s := newSignal()
	client.RecvExpected(&s.op, to, 1, make([]byte, 8))
	client.Cancel(&s.op)
	if err := s.wait(t); na.KindOf(err) != na.Canceled {
		t.Errorf("got %v", err)
	}
	client.Cancel(&s.op) // not in flight
	c := newCaller(client, to)
	if _, err := c.call(t, []byte("after")); err != nil {
		t.Error(err)
	}
}

// TestSequentialConnections has more connections in a server's life than its command ring has slots.
func TestSequentialConnections(t *testing.T) {
	server, _ := serve(t, Config{})
	for i := range 700 {
		c := newRaw(t, server)
		if err := c.r.commands.push(makeCommand(c.ident, c.pair, commandReserved, 0)); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		c.announce()
		c.request(1, []byte("q"))
		c.answer()
		c.release()
	}
	settled(t, server)
	if server.commandsWaiting() {
		t.Error("commands are left")
	}
}

// TestHandOver connects a client by a command in the ring alone, which then gives its pair back without a command. A second client
// claims the pair and connects by a datagram. It keeps the pair, and its request is answered. A third client gets another pair.
func TestHandOver(t *testing.T) {
	server, _ := serve(t, Config{})
	first := newRaw(t, server)
	first.announceBusy()
	eventually(t, "the first client is known", func() bool { return server.clientOf(first.pair) != nil })
	second := mapRaw(t, server)
	second.pair, second.out, second.in = first.pair, first.out, first.in // the bit is given back and claimed in one go
	second.announce()
	eventually(t, "the second client is known", func() bool {
		c := server.clientOf(second.pair)
		return c != nil && c.addr.ident == second.ident
	})
	second.request(7, []byte("second"))
	if d, msg := second.answer(); d.tag() != 7 || string(msg) != "second" {
		t.Errorf("tag %d, %q", d.tag(), msg)
	}
	if !server.region.claimed(second.pair) {
		t.Error("the pair is given to others while the second client uses it")
	}
	third := newRaw(t, server)
	third.announce()
	third.request(8, []byte("third"))
	if d, msg := third.answer(); d.tag() != 8 || string(msg) != "third" {
		t.Errorf("tag %d, %q", d.tag(), msg)
	}
	second.release()
	third.release()
	settled(t, server)
}

func TestZeroAllocations(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates")
	}
	server, h := serve(t, Config{})
	h.direct = true
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	for _, n := range []int{64, 1000} {
		msg, buf := make([]byte, n), make([]byte, bufferSize)
		send, recv := newSignal(), newSignal()
		tag := uint32(0)
		limit := time.NewTimer(testLimit)
		defer limit.Stop()
		end := func(s *signal) {
			select {
			case <-s.ch:
			case <-limit.C:
				t.Fatalf("the calls have not ended within %v\n%s", testLimit, traces())
			}
		}
		call := func() {
			tag++
			send.ev.Reset()
			recv.ev.Reset()
			client.RecvExpected(&recv.op, to, tag, buf)
			client.SendRequest(&send.op, to, tag, msg)
			client.Drive(to, &recv.ev)
			end(send)
			end(recv)
		}
		for range 100 {
			call()
		}
		if a := testing.AllocsPerRun(2000, call); a > 0.01 {
			t.Errorf("%v allocations per call of %d bytes", a, n)
		}
	}
}
