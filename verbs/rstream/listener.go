package rstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"cinnabar/verbs"
	"cinnabar/verbs/flow"
)

// Listener accepts streams. It is a net.Listener.
type Listener struct {
	l      *flow.Listener
	ctx    context.Context // ends with Close, since Accept has no context of its own
	cancel context.CancelFunc
}

// ListenConfig holds the options of a listener. The zero value is ready for use.
type ListenConfig struct {
	MaxMemory int64        // limit in bytes of the memory of all accepted streams, of which each counts some 1.3 MiB, also while it is quiet; 0: half of the machine's memory
	Logger    *slog.Logger // logs refused connection requests; nil: discard
}

// Listen listens on addr; port 0 stands for a free port. The listener sets up some streams before the program calls Accept. One
// host gets only a share of these, and of the memory for streams.
func Listen(dev *verbs.Device, addr netip.AddrPort) (*Listener, error) {
	return ListenConfig{}.Listen(dev, addr)
}

// Listen listens on addr like the function [Listen], with the options of cfg.
func (cfg ListenConfig) Listen(dev *verbs.Device, addr netip.AddrPort) (*Listener, error) {
	fl, err := flow.Listen(dev, addr, flow.Config{MaxMemory: cfg.MaxMemory, Logger: cfg.Logger})
	if err != nil {
		return nil, opError("listen", addr, err)
	}
	l := &Listener{l: fl}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// Accept implements [net.Listener]. The error of a stream that could not be set up, because no memory could be registered
// for it, say, is temporary: the next call may do better, and servers like net/http's make it after a pause. Peers that do
// not speak the protocol are turned away without an error.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.l.Accept(l.ctx)
	switch {
	case err == nil:
		return newConn(c), nil
	case l.ctx.Err() != nil:
		err = net.ErrClosed
	case !errors.Is(err, verbs.ErrClosed) && !errors.Is(err, verbs.ErrDeviceRemoved):
		err = passing{err}
	}
	return nil, &net.OpError{Op: "accept", Net: network, Addr: l.Addr(), Err: err}
}

// passing wraps the error of one stream. Its Temporary returns true, because the listener still works, so that a server such as net/http's
// calls Accept again.
type passing struct{ error }

func (passing) Temporary() bool { return true }
func (p passing) Unwrap() error { return p.error }

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return address(l.l.Addr()) }

// Close implements [net.Listener]. Calls of Accept fail with net.ErrClosed, and accepted streams stay open.
func (l *Listener) Close() error {
	l.cancel()
	return l.l.Close()
}

var _ net.Listener = (*Listener)(nil)
