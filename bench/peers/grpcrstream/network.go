package grpcrstream

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"cinnabar/verbs"
	"cinnabar/verbs/rstream"
)

// Network makes the connections of gRPC on one device, and knows when the last one is gone. A device is closed after all that
// uses it, but gRPC does not wait for connections that it gives up: the Close of its clients and the Stop of its servers may
// return while one is still being made or closed.
//
// Its methods are safe for concurrent use.
type Network struct {
	dev *verbs.Device

	mu sync.Mutex
	// no connection begins any more
	// +checklocks:mu
	ended bool
	open  sync.WaitGroup // connections; grows under mu only
}

// NewNetwork returns the network on dev, which stays the caller's.
func NewNetwork(dev *verbs.Device) *Network { return &Network{dev: dev} }

// Close waits until every connection is closed. It is called after the clients' Close and the servers' Stop.
func (n *Network) Close() {
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.open.Wait()
}

// begin counts one more connection.
func (n *Network) begin() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return net.ErrClosed
	}
	n.open.Add(1)
	return nil
}

// Dial connects to "address:port"; it is a dialer for grpc.WithContextDialer.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	if err := n.begin(); err != nil {
		return nil, err
	}
	c, err := rstream.Dial(ctx, n.dev, at)
	if err != nil {
		n.open.Done()
		return nil, err
	}
	return n.count(c), nil
}

// Listen returns a listener for a gRPC server.
func (n *Network) Listen(at netip.AddrPort) (net.Listener, error) {
	l, err := rstream.Listen(n.dev, at)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, net: n}, nil
}

// count wraps a connection that was counted.
func (n *Network) count(c net.Conn) net.Conn {
	return &conn{Conn: c, gone: sync.OnceFunc(n.open.Done)}
}

// conn is a connection that is counted until it is closed.
type conn struct {
	net.Conn
	gone func()
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	defer c.gone()
	return c.Conn.Close()
}

// listener counts the connections that it accepts.
type listener struct {
	net.Listener
	net *Network
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := l.net.begin(); err != nil {
		_ = c.Close() // the network is closed, and begin's error says so
		return nil, err
	}
	return l.net.count(c), nil
}
