package ofiverbs

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
)

// relay stands for the network between two hosts. It forwards the bytes of each connection that it accepts to an endpoint, and back.
type relay struct {
	ln   net.Listener
	cut  chan struct{} // when it is closed, pass discards bytes, and closes no connection
	once sync.Once
}

// newRelay returns a relay to an endpoint on a software device.
func newRelay(t *testing.T, to *Endpoint) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln, cut: make(chan struct{})}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to.self.String())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			wg.Go(func() { r.pass(out, in) })
			wg.Go(func() { r.pass(in, out) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return r
}

// pass copies from one end to the other.
func (r *relay) pass(to io.WriteCloser, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-r.cut:
			return
		default:
		}
		if err != nil {
			_ = to.Close()
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// vanish stops the forwarding. Neither end gets an error, as if the other host had lost its power.
func (r *relay) vanish() { r.once.Do(func() { close(r.cut) }) }

// addr returns the address of the endpoint behind the relay as e sees it.
func (r *relay) addr(t *testing.T, e *Endpoint) na.Addr {
	t.Helper()
	a, err := e.Lookup(scheme + r.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestVanishedHost checks that both sides of a connection end it by KeepAlive when the network between them has failed: an idle connection,
// and one with a call and a read under way. On the first the devices have no bytes to send again, and on the second they do so for longer.
func TestVanishedHost(t *testing.T) {
	const keepAlive = 200 * time.Millisecond
	for name, pending := range map[string]bool{"idle": false, "pending": true} {
		t.Run(name, func(t *testing.T) {
			silent := handlerFunc(func(*na.Message) na.Task { return nil })
			server := openEndpoint(t, Config{Listen: true, Handler: silent, KeepAlive: keepAlive})
			client := openEndpoint(t, Config{KeepAlive: keepAlive})
			link := newRelay(t, server)
			to := link.addr(t, client)
			sent, answer, got := newCall(), newCall(), newCall()
			client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
			client.SendRequest(&sent.op, to, 1, request(client, nil))
			sent.want(t, 0)
			done := to.Done()
			if !pending {
				client.Cancel(&answer.op)
				answer.want(t, na.Canceled)
			}
			link.vanish()
			if pending {
				m, err := server.Register(make([]byte, 100), na.ReadOnly)
				if err != nil {
					t.Fatal(err)
				}
				r, err := client.ParseHandle(m.AppendHandle(nil))
				if err != nil {
					t.Fatal(err)
				}
				client.Get(&got.op, to, []na.Fragment{{Remote: r, Local: make([]byte, 100)}})
				for _, c := range []*call{answer, got} {
					if c.want(t, na.Unreachable); c.op.Err == nil || !strings.Contains(c.op.Err.Error(), "KeepAlive") {
						t.Errorf("the error is %v", c.op.Err)
					}
				}
				m.Close()
			}
			eventually(t, "the client's end of the connection", func() bool { return rundown.IsClosed(done) })
			eventually(t, "the server's end of the connection", func() bool { return server.Stats().Open == 0 })
		})
	}
}

// TestIdleConnectionLives checks that a connection stays open although it is idle for many times KeepAlive, because each side answers the
// probes of the other.
func TestIdleConnectionLives(t *testing.T) {
	const keepAlive = time.Second // a machine may stand still for 80 ms, which would end the connection of a shorter limit
	server, client := openServer(t, Config{KeepAlive: keepAlive}), openEndpoint(t, Config{KeepAlive: keepAlive})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	eventually(t, "probes of both sides", func() bool { return server.Stats().Probes > 8 && client.Stats().Probes > 8 })
	ask(t, client, to, 2, nil)
	if n := client.Stats().Connections; n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
}

// TestWithoutKeepAlive checks that nothing is probed if the limits are off.
func TestWithoutKeepAlive(t *testing.T) {
	if w := newWatch(-1, -1); w.interval != 0 {
		t.Errorf("without limits the watcher looks every %v", w.interval)
	}
	for _, d := range []time.Duration{time.Millisecond, 15 * time.Second, time.Hour} {
		for _, s := range []time.Duration{-1, time.Second, time.Hour} {
			w := newWatch(d, s)
			if w.probe < 1 || w.silent <= w.probe || d > 10*time.Millisecond && time.Duration(w.silent+1)*w.interval > d || s > 0 && w.stalled < 2 || s < 0 && w.stalled != 0 {
				t.Errorf("KeepAlive %v and SendTimeout %v: %+v", d, s, w)
			}
		}
	}
}

// TestPeerWithoutCredits checks that messages fail after SendTimeout if the peer's device answers probes and the peer grants no credits.
func TestPeerWithoutCredits(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{SendTimeout: 200 * time.Millisecond})
	sent := newCall()
	answer := newCall()
	to := r.addr(t, client)
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.SendRequest(&sent.op, to, 1, request(client, nil))
	r.accept(t)
	for _, c := range []*call{sent, answer} {
		if c.want(t, na.Unreachable); c.op.Err == nil || !strings.Contains(c.op.Err.Error(), "SendTimeout") || !strings.Contains(c.op.Err.Error(), "credits") {
			t.Errorf("the error is %v", c.op.Err)
		}
	}
	client.SendRequest(&sent.op, to, 2, request(client, nil))
	c := r.accept(t)
	c.credit(t, 2)
	for m := c.next(t); m.kind != kindRequest; m = c.next(t) {
		continue
	}
	sent.want(t, 0)
}

// TestEndWhileDriven checks that an operation fails when its peer ends the connection while another goroutine drives without a pause.
func TestEndWhileDriven(t *testing.T) {
	r, client := newRawPeer(t), openEndpoint(t, Config{KeepAlive: -1}) // so that no probe finds the end
	to := r.addr(t, client)
	sent, answer := newCall(), newCall()
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.SendRequest(&sent.op, to, 1, request(client, nil))
	c := r.accept(t)
	c.credit(t, 10)
	sent.want(t, 0)
	p, _ := client.resolve(to)
	conn := p.conn.Load()
	conn.wanted.Add(1) // as a driver does that never returns
	c.close(t)
	answer.want(t, na.Unreachable)
}
