package rstream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// answers is how many requests a listener answers at a time. Until a peer has taken its answer an RDMA device waits, for
// seconds if the peer has vanished, which is when package flow gives it up; meanwhile others are to be served.
const answers = 16

// Listener accepts streams. It is a net.Listener.
type Listener struct {
	l        *flow.Listener
	ctx      context.Context // ends with Close, since Accept has no context of its own
	cancel   context.CancelFunc
	accepted chan accepted
	workers  sync.WaitGroup // run answer; Close waits for them
}

// accepted is what an Accept returns.
type accepted struct {
	c   *flow.Conn
	err error
}

// Listen listens on addr; port 0 picks one. Up to 16 streams are set up before Accept asks for them.
func Listen(dev *verbs.Device, addr netip.AddrPort) (*Listener, error) {
	fl, err := flow.Listen(dev, addr, flow.Config{})
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: address(addr), Err: err}
	}
	l := &Listener{l: fl, accepted: make(chan accepted)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for range answers {
		l.workers.Go(l.answer)
	}
	return l, nil
}

// answer sets up streams, one after the other, until the listener is over.
func (l *Listener) answer() {
	for {
		c, err := l.l.Accept(l.ctx)
		select {
		case l.accepted <- accepted{c, err}:
		case <-l.ctx.Done():
			if c != nil {
				c.Abort(net.ErrClosed)
				_ = c.Close() // nobody has known it
			}
			return
		}
	}
}

// Accept implements [net.Listener]. The error of a stream that could not be set up, because no memory could be registered
// for it, say, is temporary: the next call may do better, and servers like net/http's make it after a pause. Peers that do
// not speak the protocol are turned away without an error.
func (l *Listener) Accept() (net.Conn, error) {
	var a accepted
	select {
	case a = <-l.accepted:
	case <-l.ctx.Done():
		a.err = net.ErrClosed
	}
	switch {
	case a.err == nil:
		return newConn(a.c), nil
	case l.ctx.Err() != nil:
		a.err = net.ErrClosed
	case !errors.Is(a.err, verbs.ErrClosed) && !errors.Is(a.err, verbs.ErrDeviceRemoved):
		a.err = passing{a.err}
	}
	return nil, &net.OpError{Op: "accept", Net: network, Addr: l.Addr(), Err: a.err}
}

// passing is the error of one stream, which says nothing about the listener.
type passing struct{ error }

func (passing) Temporary() bool { return true }
func (p passing) Unwrap() error { return p.error }

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return address(l.l.Addr()) }

// Close implements [net.Listener]: those in Accept fail with net.ErrClosed, accepted streams go on.
func (l *Listener) Close() error {
	l.cancel()
	err := l.l.Close()
	l.workers.Wait()
	return err
}

var _ net.Listener = (*Listener)(nil)
