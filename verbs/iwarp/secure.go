package iwarp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"cinnabar/identity"
	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/sockio"
	"cinnabar/internal/tlsio"
	"cinnabar/internal/tokenproof"
)

// The functions of this file authenticate the peers of new connections. The order is: TLS, the exchange of the token, the MPA request, and
// the answer to the request.

const (
	// tlsProtocol is the name of MPA inside TLS (ALPN, RFC 7301). It differs from that of ofi+tcps, so that an attacker cannot pass a connection on
	// from the one protocol to the other.
	tlsProtocol = "cinnabar-iwarp"
	// secureTimeout bounds TLS and the exchange of the token together.
	secureTimeout = 5 * time.Second
	// alertTime is the most time for which a refused connection stays open, because a close with unread bytes could discard the reason.
	alertTime = 200 * time.Millisecond
	alertRest = 64 << 10 // bytes that are read in this time
	// tlsSegment is the size in bytes from which the frames of a connection with TLS are cut at the least. The segments of TCP do not matter
	// to them, because records of TLS lie in between.
	tlsSegment = 32 << 10
)

// Causes by which the audit counts peers that are refused.
const (
	causePlain       = "peer without TLS"
	causeTLS         = "TLS handshake"
	causeNoToken     = "peer without a token"
	causeToken       = "proof of the token"
	causeOwnHello    = "own hello"
	causeServerToken = "server's proof of the token"
	causeTLSHello    = "peer with TLS"
	causeTokenHello  = "peer with a token"
)

// Errors of connections between a side with TLS or a token and one without.
var (
	errPlainClient = errors.New("a peer without TLS was refused; its device needs Config.TLS too")
	errTLSHello    = errors.New("a peer with TLS was refused, because this device has none; set Config.TLS at both ends or at none")
	errTokenHello  = errors.New("a peer with a token was refused, because this device has none; set Config.Token, or --token-file, at both ends or at none")
)

// secures reports whether new connections are authenticated.
func (c Config) secures() bool { return c.TLS != nil || !c.Token.IsZero() }

// socket is the socket of a connection. If the device has TLS, it has TLS around it. The methods of TLS are called in hostmem.Guard, because they access the
// memory of the program.
type socket struct{ tlsio.Stream }

// cipherSocket is the socket below TLS. It counts the moves of ciphertext in the connection's traffic, because a part of a record is work of
// the peer.
type cipherSocket struct {
	*sockio.Conn
	traffic *atomic.Uint64
}

func (s *cipherSocket) TryReadv(bufs [][]byte) (int, error) {
	n, err := s.Conn.TryReadv(bufs)
	if n > 0 {
		s.traffic.Add(1)
	}
	return n, err
}

func (s *cipherSocket) TryWritev(bufs [][]byte) (int, error) {
	n, err := s.Conn.TryWritev(bufs)
	if n > 0 {
		s.traffic.Add(1)
	}
	return n, err
}

// attach gives the socket to TLS, whose handshake is over. It does nothing without TLS.
func (s *socket) attach(traffic *atomic.Uint64) {
	if s.TLS != nil {
		s.TLS.Attach(&cipherSocket{s.Conn, traffic})
	}
}

// TryReadv is [sockio.Conn.TryReadv]. Like the kernel, it returns an error if the memory is not there.
func (s *socket) TryReadv(bufs [][]byte) (n int, err error) {
	if s.TLS == nil {
		return s.Conn.TryReadv(bufs)
	}
	if fault := hostmem.Guard(func() { n, err = s.TLS.TryReadv(bufs) }); fault != nil {
		return 0, fault
	}
	return n, err
}

// TryWritev is [tlsio.Stream.TryWritev]. Like the kernel, it returns an error if the memory is not there.
func (s *socket) TryWritev(bufs [][]byte) (n int, err error) {
	if s.TLS == nil {
		return s.Conn.TryWritev(bufs)
	}
	if fault := hostmem.Guard(func() { n, err = s.TLS.TryWritev(bufs) }); fault != nil {
		return 0, fault
	}
	return n, err
}

// leftOver wakes the goroutine that waits for input if the caller has left bytes in the memory of TLS and no poller is expected, because the
// socket does not report them. The caller does not hold rxMu.
func (c *conn) leftOver() {
	if c.sock.Buffered() && (!c.claim.Taken() || c.seat.taken.Load()) {
		c.sock.WakeRead()
	}
}

// stream is a TCP connection before full operation, with TLS around it if the device has TLS.
type stream struct {
	tcp    *net.TCPConn
	tls    *tlsio.Conn // nil without TLS
	unread []byte      // bytes that Read returns first
}

// Read implements [io.Reader].
func (s *stream) Read(b []byte) (int, error) {
	switch {
	case len(s.unread) > 0:
		n := copy(b, s.unread)
		s.unread = s.unread[n:]
		return n, nil
	case s.tls != nil:
		return s.tls.Read(b)
	}
	return s.tcp.Read(b)
}

// Write implements [io.Writer].
func (s *stream) Write(b []byte) (int, error) {
	if s.tls != nil {
		return s.tls.Write(b)
	}
	return s.tcp.Write(b)
}

// SetDeadline sets the deadline of reads and writes. TLS is of no use after a write that it has ended.
func (s *stream) SetDeadline(t time.Time) error { return s.tcp.SetDeadline(t) }

// Close closes the TCP connection.
func (s *stream) Close() error { return s.tcp.Close() }

// identify returns the facts that are proven about the peer, at a host, of a connection whose set-up has succeeded on a device with a token; the zero Token:
// without one.
func (s *stream) identify(host netip.Addr, token identity.Token) identity.Peer {
	p := identity.Peer{Kind: identity.Address, Host: host.Unmap().WithZone(""), Token: !token.IsZero()}
	if s.tls != nil && s.tls.Identity().Verified() {
		p.Kind, p.Subject, p.Names = identity.Certificate, s.tls.Identity().Subject(), s.tls.Identity().Names()
	}
	return p
}

// binding returns the value that binds a proof to the connection; nil without TLS, which has none.
func (s *stream) binding() ([]byte, error) {
	if s.tls == nil {
		return nil, nil
	}
	return s.tls.Exporter()
}

// letRead gives the peer time to read the last bytes.
func (s *stream) letRead() {
	_ = s.tcp.CloseWrite() // fails only if the connection is gone already
	_ = s.tcp.SetReadDeadline(time.Now().Add(alertTime))
	_, _ = io.CopyN(io.Discard, s.tcp, alertRest) // the bytes are not wanted
}

// refuse answers a peer that speaks neither TLS nor the exchange of the token although this side requires it: an MPA request by a
// rejection with code, and a hello of the exchange by the given answer.
func (s *stream) refuse(code refusal, answer []byte) {
	req, err := readFrame(s)
	switch {
	case err == nil:
		if reply, err := mpa.Rejection(req, code.data()); err == nil {
			_ = writeFrame(s, reply) // the peer sees it if it can
		}
	case errors.Is(err, errTokenHello):
		_, _ = s.Write(answer) // likewise
	default:
		return
	}
	s.letRead()
}

// refusal is the reason for which a device rejects an MPA request before its program sees it.
type refusal byte

const (
	needsTLS   refusal = 1
	needsToken refusal = 2
)

// refusalHead begins the private data of such a rejection: a mark, and the version of the format. The reason and two zero bytes follow.
const refusalHead = "cinnabar\x01"

func (r refusal) data() []byte { return append([]byte(refusalHead), byte(r), 0, 0) }

// refusalReason returns the reason in the private data of a rejection, which is hostile, in words; an empty string if it has none.
func refusalReason(data []byte) string {
	for r, text := range map[refusal]string{
		needsTLS:   "the peer's device requires TLS: set Config.TLS, or --tls-ca, at both ends",
		needsToken: "the peer's device requires a token: set Config.Token, or --token-file, at both ends",
	} {
		if string(data) == string(r.data()) {
			return text
		}
	}
	return ""
}

// foreign returns the error for the first bytes of a connection that are no MPA frame. They are hostile.
func foreign(b []byte, err error) error {
	const recordHandshake, majorVersion = 22, 3 // of TLS (RFC 8446, section 5.1)
	switch {
	case tokenproof.IsHello(b):
		return fmt.Errorf("%w: %w", errTokenHello, err)
	case len(b) > 1 && b[0] == recordHandshake && b[1] == majorVersion:
		return fmt.Errorf("%w: %w", errTLSHello, err)
	}
	return err
}

// receive authenticates the peer of p and reads its request. cause is the cause by which the audit counts an error.
func (l *listener) receive(p *pending, s *stream) (req mpa.Frame, cause string, err error) {
	cfg := &l.dev.cfg
	if cfg.secures() {
		done := bound(l.ctx, s, min(secureTimeout, cfg.HandshakeTimeout))
		cause, err = l.authenticate(p, s)
		if err = done(err); err != nil {
			return req, cause, err
		}
	}
	req, err = readRequest(l.ctx, s, cfg.HandshakeTimeout)
	if errors.Is(err, errTokenHello) {
		_, _ = s.Write(tokenproof.NoToken()) // the peer sees it if it can
		s.letRead()
	}
	return req, requestCause(err), err
}

// authenticate makes the TLS handshake, if the device has TLS, and the exchange of the token, if it has one. A refused peer gets the reason in a
// form that it understands.
func (l *listener) authenticate(p *pending, s *stream) (cause string, err error) {
	d := l.dev
	if d.cfg.TLS != nil {
		// Each step that takes the processor waits for the turn of its host.
		s.tls, err = tlsio.Server(s.tcp, d.cfg.TLS, func() func() {
			if !l.hosts.waitUnless(p.host, p.gone) {
				return nil
			}
			return func() {}
		})
		if errors.Is(err, tlsio.ErrPlain) {
			s.refuse(needsTLS, tokenproof.NeedsTLS())
			return causePlain, fmt.Errorf("%w: %w", errPlainClient, err)
		}
		if err != nil {
			s.tls = nil
			s.letRead()
			return causeTLS, err
		}
	}
	if d.cfg.Token.IsZero() {
		return "", nil
	}
	binding, err := s.binding()
	if err != nil {
		return causeToken, err
	}
	head, err := tokenproof.Server(s, d.cfg.Token, binding, d.nonces.Has)
	switch {
	case errors.Is(err, tokenproof.ErrAbsent):
		s.unread = head[:]
		s.refuse(needsToken, nil)
		return causeNoToken, err
	case errors.Is(err, tokenproof.ErrOwn):
		s.letRead()
		return causeOwnHello, err
	}
	return causeToken, err
}

// prove authenticates the server of a dialed connection, and this side to the server.
func (d *device) prove(ctx context.Context, s *stream, addr netip.AddrPort, limit time.Duration) error {
	if !d.cfg.secures() {
		return nil
	}
	done := bound(ctx, s, min(secureTimeout, limit))
	err := d.proveTLS(s, addr)
	if err == nil {
		err = d.proveToken(s, addr)
	}
	return done(err)
}

// proveTLS makes the TLS handshake, if the device has TLS. The server must have a certificate with TLS.ServerName, or with the address.
func (d *device) proveTLS(s *stream, addr netip.AddrPort) error {
	if d.cfg.TLS == nil {
		return nil
	}
	cfg, err := d.dialTLS()
	if err != nil {
		return err
	}
	s.tls, err = tlsio.Client(s.tcp, cfg, addr.Addr().Unmap().WithZone("").String())
	if errors.Is(err, tlsio.ErrPlain) {
		return fmt.Errorf("%w; this device has Config.TLS, so the peer's device needs it too", err)
	}
	return err
}

// dialTLS returns the configuration for the next dial.
func (d *device) dialTLS() (*tls.Config, error) {
	if d.cfg.DialTLS == nil {
		return d.cfg.TLS, nil
	}
	cfg, err := d.cfg.DialTLS()
	if err == nil {
		cfg, err = tlsio.PrepareFor(cfg, tlsProtocol)
	}
	if err != nil {
		return nil, fmt.Errorf("Config.DialTLS: %w", err)
	}
	return cfg, nil
}

// proveToken proves the token, if the device has one, and verifies the server's proof.
func (d *device) proveToken(s *stream, addr netip.AddrPort) error {
	if d.cfg.Token.IsZero() {
		return nil
	}
	binding, err := s.binding()
	if err != nil {
		return err
	}
	err = tokenproof.Client(s, d.cfg.Token, binding, func(n tokenproof.Nonce) func() {
		if d.isSelf(addr) {
			return func() {}
		}
		return d.nonces.Add(n)
	})
	if errors.Is(err, tokenproof.ErrUnproven) {
		d.trail.Record(audit.Refused, causeServerToken, hostquota.HostOf(addr.Addr().Unmap()), slog.String("conn", addr.String()), slog.Any("err", err))
	}
	return err
}

// isSelf reports whether a dial of addr reaches a listener of this device.
func (d *device) isSelf(addr netip.AddrPort) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	host := addr.Addr().Unmap()
	for _, at := range d.listening {
		if at.Port() == addr.Port() && (at.Addr() == host || takes(at.Addr(), host)) {
			return true
		}
	}
	return false
}

// takes reports whether a listener at a wildcard address takes connections to host. One at 0.0.0.0 does not take IPv6, so at such an address another
// process may listen.
func takes(wildcard, host netip.Addr) bool {
	if !wildcard.IsUnspecified() || wildcard.Is4() && host.Is6() {
		return false
	}
	return host.IsLoopback() || host.IsUnspecified() || slices.Contains(hostAddrs(), host.WithZone(""))
}

// listens notes the address of a listener, and listensNoMore removes it.
func (d *device) listens(addr netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listening = append(d.listening, addr)
}

func (d *device) listensNoMore(addr netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.listening, addr); i >= 0 {
		d.listening = slices.Delete(d.listening, i, i+1)
	}
}
