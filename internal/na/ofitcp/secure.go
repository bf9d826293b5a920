package ofitcp

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlsio"
)

// socket is the socket of a connection. Over ofi+tcps it has TLS around it.
type socket struct{ tlsio.Stream }

// kernelCopies reports whether TryReadv and TryWritev pass the caller's memory to the kernel.
func (s *socket) kernelCopies() bool { return sockio.Direct && s.TLS == nil }

// handshakeConn is a connection during the exchange of connection messages.
type handshakeConn struct {
	tcp *net.TCPConn
	tls *tlsio.Conn // nil over ofi+tcp
}

// stream returns the connection over which connection messages are read and written.
func (h *handshakeConn) stream() io.ReadWriter {
	if h.tls != nil {
		return h.tls
	}
	return h.tcp
}

// secureClient makes the TLS handshake of a dialed connection.
func (p *peer) secureClient(h *handshakeConn) (err error) {
	e := p.ep
	if e.tls == nil {
		return nil
	}
	cfg, err := e.dialTLS()
	if err != nil {
		return err
	}
	if h.tls, err = tlsio.Client(h.tcp, cfg, cmp.Or(p.name, p.addr.Addr().String())); errors.Is(err, tlsio.ErrPlain) {
		return fmt.Errorf("%w; this engine is on ofi+tcps, so the peer must listen on ofi+tcps too", err)
	}
	return err
}

// dialTLS returns the configuration for the next dial.
func (e *Endpoint) dialTLS() (*tls.Config, error) {
	if e.cfg.DialTLS == nil {
		return e.tls, nil
	}
	cfg, err := e.cfg.DialTLS()
	if err == nil {
		cfg, err = tlsio.Prepare(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("Config.DialTLS: %w", err)
	}
	return cfg, nil
}

// errPlainClient is the error of an accepted connection without TLS.
var errPlainClient = errors.New("a peer without TLS was refused; it must use ofi+tcps")

// secureServer makes the TLS handshake of an accepted connection. A peer with the plain protocol gets a refusal that it understands.
func (e *Endpoint) secureServer(h *handshakeConn, half *halfOpen) (err error) {
	if e.tls == nil {
		return nil
	}
	h.tls, err = tlsio.Server(h.tcp, e.tls, func() func() { return e.beginSetup(half.account).end })
	if errors.Is(err, tlsio.ErrPlain) {
		if _, req, rerr := readRequest(h.tls); rerr == nil {
			_, _ = h.tcp.Write(markedNack(req, cmWantsTLS)) // the peer sees it if it can
		}
		return fmt.Errorf("%w: %w", errPlainClient, err)
	}
	if err != nil {
		letRead(h.tcp)
	}
	return err
}

// alertTime is the most time for which a refused connection stays open, because a close with unread bytes could discard the alert with the reason.
const alertTime = 200 * time.Millisecond

// letRead gives the peer time to read the last bytes.
func letRead(tcp *net.TCPConn) {
	_ = tcp.CloseWrite() // fails only if the connection is gone already
	_ = tcp.SetReadDeadline(time.Now().Add(alertTime))
	_, _ = io.CopyN(io.Discard, tcp, 64<<10) // the bytes are not wanted
}

// errPlainTarget is the error of a dial without TLS of a server on ofi+tcps.
var errPlainTarget = errors.New("the server requires TLS: use ofi+tcps at both ends")

// errTaken is the error of a dial of a server that has a connection of another peer with this endpoint's address.
var errTaken = errors.New("the server has a connection of a live process with the same address and port and another certificate; give processes behind one address ports of their own, or the same certificate")

// claimantLocked returns a live connection that was accepted for address addr from a peer with another certificate than id, or nil.
//
// +checklocks:e.mu
func (e *Endpoint) claimantLocked(addr netip.AddrPort, id tlsio.Identity) *conn {
	for _, c := range e.claimed[addr] {
		if !c.dead.Load() && !c.sock.Identity().Same(id) {
			return c
		}
	}
	return nil
}

// unclaimLocked removes c from claimed, if it is there.
//
// +checklocks:e.mu
func (e *Endpoint) unclaimLocked(c *conn) {
	addr := c.peer.addr
	if i := slices.Index(e.claimed[addr], c); i >= 0 {
		e.claimed[addr] = slices.Delete(e.claimed[addr], i, i+1)
	}
	if len(e.claimed[addr]) == 0 {
		delete(e.claimed, addr)
	}
}

// claims reports whether a caller may become the peer of its address. It may not while that peer has another certificate and a connection that
// answers, because the port in the address is only a claim of the caller. A connection that does not answer ends.
func (e *Endpoint) claims(k *caller) bool {
	for {
		e.mu.Lock()
		old := e.claimantLocked(k.addr, k.sock.Identity())
		e.mu.Unlock()
		if old == nil {
			return true
		}
		k.setup.end()
		if e.answers(old) {
			return false
		}
		e.cfg.Audit.Record(audit.Replaced, causeGone, k.account.Host(), slog.String(keyPeer, old.peer.str))
		old.fail(na.Unreachable, errReplaced)
	}
}

// proven reports whether requests of this side for the caller's address may go over the caller's connection. Over ofi+tcps they may if a
// dial of that address would accept the caller's certificate. Another caller gets a peer of its own, and the address is dialed.
func (e *Endpoint) proven(k *caller) bool {
	if e.tls == nil || k.addr == e.self {
		return true
	}
	cfg, err := e.dialTLS()
	return err == nil && k.sock.Identity().MayServe(cfg, k.addr.Addr().String())
}
