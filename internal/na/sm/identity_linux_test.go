package sm

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	proven "cinnabar/identity"
	"cinnabar/internal/admission"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
)

// listenFor opens a server that sends the identity of each caller to a channel, and drops the request.
func listenFor(t *testing.T, cfg Config) (*Endpoint, <-chan proven.Peer) {
	callers := make(chan proven.Peer, 16)
	cfg.Listen = true
	cfg.Handler = handlerFunc(func(m *na.Message) na.Task {
		callers <- na.IdentityOf(m.From)
		return nil
	})
	return open(t, cfg), callers
}

// leave ends the raw client, so that the server's pair is free again.
func (c *rawClient) leave(t *testing.T, server *Endpoint) {
	t.Helper()
	c.release()
	settled(t, server)
}

// TestIdentity checks the identity of a client whose command the server has read from the ring, where any process can write it, before the
// datagram with the kernel's credentials has come. The first request has the identity all the same, and one without a datagram has none.
// parity: A02
func TestIdentity(t *testing.T) {
	server, callers := listenFor(t, Config{})
	want := proven.Peer{Kind: proven.Process, UID: uint32(os.Getuid()), PID: int32(os.Getpid())}
	for range 20 {
		before := server.stats.connections.Load()
		c := newRaw(t, server)
		c.announceBusy()
		eventually(t, "the command was read from the ring", func() bool { return server.stats.connections.Load() > before })
		c.announce()
		c.request(1, []byte("hello"))
		if got := await(t, "a request", callers); got.String() != want.String() {
			t.Fatalf("identity %v, want %v", got, want)
		}
		c.leave(t, server)
	}
	c := newRaw(t, server)
	c.announceBusy()
	c.request(1, nil)
	if got := await(t, "a request", callers); got.Kind != proven.Unknown {
		t.Errorf("a client without credentials is %v", got)
	}
	c.leave(t, server)
}

// TestAdmitHoldsMessages checks that the server reads no message of a client before Admit has returned, that other clients are served meanwhile, that
// a refused client is counted once, and that one without a datagram is not served.
// parity: A02
func TestAdmitHoldsMessages(t *testing.T) {
	asked, decide := make(chan struct{}, 1), make(chan error)
	var slow atomic.Bool
	slow.Store(true)
	server, callers := listenFor(t, Config{Admit: admission.New(func(context.Context, proven.Peer) error {
		if !slow.Load() {
			return nil
		}
		asked <- struct{}{}
		return <-decide
	}, nil)})
	first := newRaw(t, server)
	first.announce()
	first.request(1, []byte("too early"))
	await(t, "a call of Admit", asked)
	slow.Store(false)
	other := newRaw(t, server)
	other.announce()
	other.request(2, nil)
	await(t, "the request of the other client", callers)
	if n := len(callers); n != 0 {
		t.Errorf("%d requests of a client that is not admitted", n)
	}
	decide <- nil
	await(t, "the request that was held", callers)

	slow.Store(true)
	refused := newRaw(t, server)
	refused.announce()
	refused.request(3, nil)
	await(t, "a call of Admit", asked)
	decide <- errors.New("no")
	counted := func() (n uint64) {
		for _, c := range server.cfg.Audit.Counts() {
			if c.Cause == causeAdmit {
				n += c.N
			}
		}
		return n
	}
	eventually(t, "the refusal is counted", func() bool { return counted() == 1 })

	busy := newRaw(t, server)
	busy.announceBusy()
	busy.request(4, nil)
	eventually(t, "the command was read", func() bool { return !server.commandsWaiting() })
	slow.Store(false)
	other.request(5, nil)
	await(t, "a further request of the other client", callers)
	if n := len(callers); n != 0 || counted() != 1 {
		t.Errorf("%d requests of clients that are not admitted, and %d refusals", n, counted())
	}
}

// TestCutOffDuringAdmission has the region of a server cut off while the program is asked about two clients. The server makes the region anew and
// serves other clients before the program decides. Afterwards a client of C's kind goes on, and one of this package has lost its connection.
// parity: H07 A02
func TestCutOffDuringAdmission(t *testing.T) {
	asked, decide := make(chan struct{}, 2), make(chan error)
	var slow atomic.Bool
	cfg := Config{Prefix: privatePrefix("i"), Progress: progress.New(progress.Economy)}
	admits := cfg
	admits.Admit = admission.New(func(context.Context, proven.Peer) error {
		if !slow.Load() {
			return nil
		}
		asked <- struct{}{}
		return <-decide
	}, nil)
	server, _ := serve(t, admits)
	other := open(t, cfg)
	c := newCaller(other, lookup(t, other, server.own.String()))
	if _, err := c.call(t, []byte("before")); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	raw := newRaw(t, server)
	raw.announce()
	await(t, "a call of Admit", asked)
	extended := newRaw(t, server)
	extended.announceExtended()
	await(t, "a call of Admit", asked)
	slow.Store(false)
	lost := clientConn(t, server, extended.pair)

	quiet(t, server, other)
	cut(t, server, 0)
	eventually(t, "calls succeed", func() bool {
		_, err := c.call(t, []byte("after"))
		return err == nil
	})
	if !lost.dead.Load() || clientConn(t, server, raw.pair).dead.Load() {
		t.Error("the cut ends the connection of a client of this package, and no other")
	}
	for range 2 {
		decide <- nil
	}
	raw.again()
	raw.request(1, []byte("C's"))
	if d, msg := raw.answer(); d.tag() != 1 || string(msg) != "C's" {
		t.Errorf("tag %d, %q", d.tag(), msg)
	}
	if kind := extended.notice(); kind != typeRebuilt {
		t.Errorf("the other client gets a message of type %#x", kind)
	}
	raw.release()
	extended.release()
}

// TestAdmissionAtTheEnd checks that a client that comes when the endpoint starts no goroutines any more is refused with a notice, and that no
// message of it is read.
// parity: A02
func TestAdmissionAtTheEnd(t *testing.T) {
	server, callers := listenFor(t, Config{})
	client := newRaw(t, server)
	client.announceExtended()
	c := clientConn(t, server, client.pair)
	eventually(t, "the receive role", c.enter)
	seal := func(yes bool) {
		server.mu.Lock()
		defer server.mu.Unlock()
		server.sealed = yes
	}
	seal(true)
	client.request(1, []byte("not admitted"))
	c.startAdmission()
	seal(false)
	if kind := client.notice(); kind != typeRefused {
		t.Errorf("the client gets a message of type %#x", kind)
	}
	if !c.dead.Load() || len(callers) != 0 {
		t.Errorf("the connection lives: %t; %d requests were read", !c.dead.Load(), len(callers))
	}
	client.leave(t, server)
}
