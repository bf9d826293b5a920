package natest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/na"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// op is an operation that a test waits for.
type op struct {
	na.Op
	done chan struct{}
}

func newOp() *op {
	o := &op{done: make(chan struct{}, 1)}
	o.Op.Done = o
	return o
}

func (o *op) Complete(*na.Op) { o.done <- struct{}{} }

func (o *op) wait() error {
	<-o.done
	return o.Err
}

// want waits and compares the kind of the error; 0 stands for none.
func (o *op) want(t *testing.T, kind na.Kind) {
	t.Helper()
	if err := o.wait(); na.KindOf(err) != kind || (err == nil) != (kind == 0) {
		t.Errorf("%v, want kind %v", err, kind)
	}
}

// inbox keeps requests.
type inbox chan na.Message

func (b inbox) Request(m *na.Message) na.Task {
	b <- na.Message{From: m.From, Tag: m.Tag, Data: bytes.Clone(m.Data)}
	return nil
}

func request(text string) []byte  { return append(make([]byte, requestRoom), text...) }
func response(text string) []byte { return append(make([]byte, responseRoom), text...) }

// both runs a test on both kinds of networks.
func both(t *testing.T, cfg Config, f func(t *testing.T, n *Network)) {
	for _, direct := range []bool{false, true} {
		cfg.Direct = direct
		t.Run(fmt.Sprintf("direct %v", direct), func(t *testing.T) { f(t, New(cfg)) })
	}
}

func TestMessages(t *testing.T) {
	both(t, Config{}, func(t *testing.T, n *Network) {
		in := make(inbox, 1)
		server, client := n.Open(in), n.Open(nil)
		send, recv, answer := newOp(), newOp(), newOp()
		buf := make([]byte, 10)
		client.RecvExpected(&recv.Op, server.Addr(), 5, buf)
		client.SendRequest(&send.Op, server.Addr(), 5, request("question"))
		m := <-in
		send.want(t, 0)
		if !m.From.Equal(client.Addr()) || m.Tag != 5 || string(m.Data) != "question" {
			t.Errorf("%v %d %q", m.From, m.Tag, m.Data)
		}
		server.SendExpected(&answer.Op, m.From, m.Tag, response("answer"))
		recv.want(t, 0)
		answer.want(t, 0)
		if recv.N != 6 || string(buf[:6]) != "answer" {
			t.Errorf("%d bytes: %q", recv.N, buf)
		}
		server.SendExpected(&answer.Op, m.From, m.Tag, response("nobody waits"))
		answer.want(t, 0)
		client.RecvExpected(&recv.Op, server.Addr(), 6, buf)
		server.SendExpected(&answer.Op, m.From, 6, response("too long for it"))
		recv.want(t, na.Truncated)
		answer.want(t, 0)
		if c := client.Counts(); c.Requests != 1 || c.Arrived != 3 || c.Unmatched != 1 {
			t.Errorf("%+v", c)
		}
	})
}

func TestRefused(t *testing.T) {
	both(t, Config{}, func(t *testing.T, n *Network) {
		client, server := n.Open(nil), n.Open(nil)
		nobody, err := client.Lookup("natest://7")
		if err != nil || nobody.String() != "natest://7" {
			t.Fatal(nobody, err)
		}
		send, recv := newOp(), newOp()
		client.SendRequest(&send.Op, nobody, 1, request(""))
		send.want(t, na.Unreachable)
		client.SendRequest(&send.Op, server.Addr(), 1, request("to who does not listen"))
		send.want(t, 0)
		client.RecvExpected(&recv.Op, server.Addr(), 1, nil)
		again := newOp()
		client.RecvExpected(&again.Op, server.Addr(), 1, nil)
		again.want(t, na.Invalid)
		client.Cancel(&recv.Op)
		recv.want(t, na.Canceled)
		client.Cancel(&recv.Op) // of nothing
		for _, s := range []string{"", "natest://", "natest://x", "natest://70000", "ofi+tcp://127.0.0.1:1"} {
			if _, err := client.Lookup(s); na.KindOf(err) != na.Invalid {
				t.Errorf("lookup of %q: %v", s, err)
			}
		}
		if a, err := server.ParseAddr(client.AppendAddr(nil, client.Addr())); err != nil || !a.Equal(client.Addr()) || a.Equal(nobody) {
			t.Errorf("%v, %v", a, err)
		}
		if _, err := server.ParseAddr(make([]byte, addrSize)); err == nil {
			t.Error("zeros are an address")
		}
	})
}

// lend registers memory and returns it as a peer knows it.
func lend(t *testing.T, ep, peer *Endpoint, mem []byte, access na.Access) (na.Memory, na.RemoteMemory) {
	t.Helper()
	m, err := ep.Register(mem, access)
	if err != nil {
		t.Fatal(err)
	}
	r, err := peer.ParseHandle(m.AppendHandle(nil))
	if err != nil || r.Len() != uint64(len(mem)) {
		t.Fatal(r, err)
	}
	return m, r
}

func TestTransfers(t *testing.T) {
	both(t, Config{Chunk: 7}, func(t *testing.T, n *Network) {
		a, b := n.Open(nil), n.Open(nil)
		theirs, mine := []byte("0123456789abcdefghijklmnopqrstuvwxyz"), make([]byte, 20)
		m, r := lend(t, b, a, theirs, na.ReadWrite)
		x := newOp()
		a.Get(&x.Op, b.Addr(), []na.Fragment{{Remote: r, Offset: 10, Local: mine[:8]}, {Remote: r, Offset: 0, Local: mine[8:]}})
		x.want(t, 0)
		if x.N != 20 || string(mine) != "abcdefgh0123456789ab" {
			t.Errorf("%d bytes: %q", x.N, mine)
		}
		a.Put(&x.Op, b.Addr(), []na.Fragment{{Remote: r, Offset: 34, Local: []byte("YZ")}})
		x.want(t, 0)
		if string(theirs[30:]) != "uvwxYZ" {
			t.Errorf("%q", theirs)
		}
		if c := a.Counts(); c.BytesGot != 20 || c.BytesPut != 2 {
			t.Errorf("%+v", c)
		}
		_, readOnly := lend(t, b, a, theirs, na.ReadOnly)
		a.Put(&x.Op, b.Addr(), []na.Fragment{{Remote: readOnly, Local: mine}})
		x.want(t, na.Unreachable)
		a.Get(&x.Op, b.Addr(), []na.Fragment{{Remote: r, Offset: 30, Local: mine}})
		x.want(t, na.Unreachable)
		m.Close()
		m.Close()
		a.Get(&x.Op, b.Addr(), []na.Fragment{{Remote: r, Local: mine}})
		x.want(t, na.Unreachable)
		if got := b.Registered(); got != 1 {
			t.Errorf("%d pieces are registered, want 1", got)
		}
		if _, err := b.Register(nil, na.ReadOnly); na.KindOf(err) != na.Invalid {
			t.Error(err)
		}
		if _, err := b.ParseHandle([]byte("x")); na.KindOf(err) != na.Protocol {
			t.Error(err)
		}
	})
}

// TestBufferInUse: a message is what its buffer holds when the sending completes, not what it held at the start.
func TestBufferInUse(t *testing.T) {
	n := New(Config{})
	in := make(inbox, 1)
	server, client := n.Open(in), n.Open(nil)
	n.Hold(client)
	msg, send := request("early"), newOp()
	client.SendRequest(&send.Op, server.Addr(), 1, msg)
	copy(msg[requestRoom:], "wrong")
	n.Release(client)
	send.want(t, 0)
	if m := <-in; string(m.Data) != "wrong" {
		t.Errorf("%q arrives", m.Data)
	}
}

func TestLoss(t *testing.T) {
	both(t, Config{}, func(t *testing.T, n *Network) {
		in := make(inbox, 10)
		server, client, other := n.Open(in), n.Open(nil), n.Open(in)
		to, err := client.Lookup(server.Addr().String())
		if err != nil || to.Done() != nil {
			t.Fatalf("%v, %v before there is a connection", err, to.Done())
		}
		send, recv, unrelated := newOp(), newOp(), newOp()
		start := func() {
			client.RecvExpected(&recv.Op, to, 1, nil)
			client.SendRequest(&send.Op, to, 1, request("x"))
			send.want(t, 0)
			<-in
		}
		client.RecvExpected(&unrelated.Op, other.Addr(), 1, nil)
		start()
		gone := to.Done()
		n.Cut(client, server)
		recv.want(t, na.Unreachable)
		<-gone
		start() // over another connection
		if to.Done() == gone {
			t.Error("the new connection counts as lost")
		}
		n.Kill(server)
		recv.want(t, na.Unreachable)
		client.SendRequest(&send.Op, to, 1, request("x"))
		send.want(t, na.Unreachable)
		server.SendRequest(&send.Op, client.Addr(), 1, request("from the dead"))
		send.want(t, na.Unreachable)
		n.Reopen(server, in)
		start()
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
		recv.want(t, na.Closed)
		unrelated.want(t, na.Closed)
		client.SendRequest(&send.Op, to, 1, request("x"))
		send.want(t, na.Closed)
		if _, err := client.Register(make([]byte, 1), na.ReadOnly); na.KindOf(err) != na.Closed {
			t.Error(err)
		}
		if got := n.InFlight(); got != 0 {
			t.Errorf("%d operations are in flight", got)
		}
	})
}

func TestShutdown(t *testing.T) {
	both(t, Config{}, func(t *testing.T, n *Network) {
		in := make(inbox, 1)
		server, client := n.Open(in), n.Open(nil)
		server.Shutdown()
		send := newOp()
		client.SendRequest(&send.Op, server.Addr(), 1, request("x"))
		send.want(t, 0)
		if err := server.Close(t.Context()); err != nil || len(in) != 0 {
			t.Errorf("%v, %d requests are taken", err, len(in))
		}
	})
}

func TestFaults(t *testing.T) {
	for action, want := range map[Action]na.Kind{Proceed: 0, CutLink: na.Unreachable, KillFrom: na.Unreachable, KillTo: na.Unreachable} {
		n := New(Config{Chunk: 10, Fault: func(s *Step) Action {
			if s.Kind == KindGet && s.Offset == 50 {
				return action
			}
			return Proceed
		}})
		a, b := n.Open(nil), n.Open(nil)
		_, r := lend(t, b, a, bytes.Repeat([]byte{1}, 100), na.ReadOnly)
		mine, x := make([]byte, 100), newOp()
		a.Get(&x.Op, b.Addr(), []na.Fragment{{Remote: r, Local: mine}})
		x.want(t, want)
		if moved := bytes.Count(mine, []byte{1}); moved != 100 && moved != 50 || (moved == 50) != (want != 0) || x.N != int64(moved) {
			t.Errorf("action %d: %d bytes moved, %d told", action, moved, x.N)
		}
	}
	n := New(Config{Fault: func(s *Step) Action {
		if s.Arrives {
			s.Data[0] = 'X'
			return []Action{KindRequest: Proceed, KindResponse: Lose}[s.Kind]
		}
		return Proceed
	}})
	in := make(inbox, 1)
	server, client := n.Open(in), n.Open(nil)
	send, answer, recv := newOp(), newOp(), newOp()
	client.RecvExpected(&recv.Op, server.Addr(), 1, make([]byte, 10))
	client.SendRequest(&send.Op, server.Addr(), 1, request("abc"))
	m := <-in
	send.want(t, 0)
	if string(m.Data) != "Xbc" {
		t.Errorf("%q arrives", m.Data)
	}
	server.SendExpected(&answer.Op, m.From, 1, response("lost"))
	answer.want(t, 0)
	client.Cancel(&recv.Op)
	recv.want(t, na.Canceled)
}

// TestCancel stops a transfer in the middle, and messages that have not left.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{Chunk: 10, Delay: time.Second})
		a, b := n.Open(nil), n.Open(nil)
		_, r := lend(t, b, a, bytes.Repeat([]byte{1}, 1000), na.ReadOnly)
		mine, x, send := make([]byte, 1000), newOp(), newOp()
		a.Get(&x.Op, b.Addr(), []na.Fragment{{Remote: r, Local: mine}})
		elapse(10 * time.Second)
		a.Cancel(&x.Op)
		x.want(t, na.Canceled)
		moved := bytes.Count(mine, []byte{1})
		if moved == 0 || moved == 1000 || x.N != int64(moved) {
			t.Errorf("%d bytes moved, %d told", moved, x.N)
		}
		n.Hold(a)
		a.SendRequest(&send.Op, b.Addr(), 1, request("x"))
		a.Cancel(&send.Op)
		send.want(t, na.Canceled)
		n.Release(a)
		elapse(time.Hour)
		if late := bytes.Count(mine, []byte{1}); late != moved || b.Counts().Arrived != 0 {
			t.Errorf("%d bytes move after the end, %d messages arrive", late-moved, b.Counts().Arrived)
		}
	})
}

// trace sends messages between several endpoints and returns the order in which they arrive.
func trace(t *testing.T, seed uint64) []string {
	var order []string
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{Seed: seed, Delay: time.Second})
		in := make(inbox, 100)
		server := n.Open(in)
		for _, name := range []string{"a", "b", "c"} {
			client := n.Open(nil)
			for i := range 5 {
				send := newOp()
				client.SendRequest(&send.Op, server.Addr(), uint32(i), request(fmt.Sprint(name, i)))
			}
		}
		elapse(time.Minute)
		for range 15 {
			m := <-in
			order = append(order, string(m.Data))
		}
	})
	return order
}

// TestSeeds: the same seed gives the same order, another one another; a peer's messages stay in order.
func TestSeeds(t *testing.T) {
	one := trace(t, 1)
	if again := trace(t, 1); !slices.Equal(one, again) {
		t.Errorf("seed 1 gives %v and %v", one, again)
	}
	if two := trace(t, 2); slices.Equal(one, two) {
		t.Errorf("seeds 1 and 2 both give %v", one)
	}
	last := map[byte]byte{}
	for _, m := range one {
		if m[1] < last[m[0]] {
			t.Errorf("%v: %s comes late", one, m)
		}
		last[m[0]] = m[1]
	}
	if slices.IsSorted(one) {
		t.Errorf("%v: peers are not mixed", one)
	}
}

// slow is a task that says when it has begun and ends when told.
type slow struct{ begun, end chan struct{} }

func (s slow) Request(*na.Message) na.Task { return s }
func (s slow) Run() {
	close(s.begun)
	<-s.end
}

func TestCloseWaitsForTasks(t *testing.T) {
	n := New(Config{})
	s := slow{make(chan struct{}), make(chan struct{})}
	server, client := n.Open(s), n.Open(nil)
	send := newOp()
	client.SendRequest(&send.Op, server.Addr(), 1, request("x"))
	send.want(t, 0)
	<-s.begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Close(ctx); err == nil {
		t.Error("Close does not wait for a task")
	}
	close(s.end)
	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// elapse lets time go by in a bubble of testing/synctest.
func elapse(d time.Duration) { <-time.NewTimer(d).C }
