package ofitcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	proven "cinnabar/identity"
	"cinnabar/internal/audit"
	"cinnabar/internal/tlsio"
	"cinnabar/internal/tokenproof"
)

// The functions of this file authenticate the peers during a handshake. The order is: TLS, the exchange of the token, the connection request,
// Config.Admit, and the answer to the request.

// Errors of a dial by the reason in the server's refusal.
var (
	errWantsToken  = errors.New("the server requires a token: set Config.Token, or --token-file, at both ends")
	errNotAdmitted = errors.New("the server does not admit this process: its Config.Admit refused it, and its log has the reason")
)

// errTokenHello is the error of a connection that begins with the hello of package tokenproof, although this endpoint has no token.
var errTokenHello = errors.New("a peer with a token was refused, because this endpoint has none; set Config.Token, or --token-file, at both ends or at none")

// refusalOf returns the error for the mark of a refusal.
func refusalOf(mark uint32) error {
	switch mark {
	case cmWantsTLS:
		return errPlainTarget
	case cmTaken:
		return errTaken
	case cmWantsToken:
		return errWantsToken
	case cmNotAdmitted:
		return errNotAdmitted
	}
	return errNack
}

// binding returns the value that binds a proof to the connection; nil over ofi+tcp, which has none.
func (h *handshakeConn) binding() ([]byte, error) {
	if h.tls == nil {
		return nil, nil
	}
	return h.tls.Exporter()
}

// proveToken proves the token on a dialed connection, and verifies the server's proof. It does nothing without a token.
func (p *peer) proveToken(h *handshakeConn) error {
	e := p.ep
	if e.cfg.Token.IsZero() {
		return nil
	}
	binding, err := h.binding()
	if err != nil {
		return err
	}
	err = tokenproof.Client(h.stream(), e.cfg.Token, binding, func(n tokenproof.Nonce) func() {
		if e.isSelf(p.addr) {
			return func() {}
		}
		return e.nonces.Add(n)
	})
	if errors.Is(err, tokenproof.ErrUnproven) {
		e.cfg.Audit.Record(audit.Refused, causeServerToken, p.account.Host(), slog.String(keyPeer, p.str), errorAttr(err))
	}
	return err
}

// isSelf reports whether a dial of addr reaches this endpoint.
func (e *Endpoint) isSelf(addr netip.AddrPort) bool {
	return addr == e.self || addr.Port() == e.local.Port() && slices.Contains(e.binds, addr.Addr())
}

// verifyToken verifies the peer's proof of the token on an accepted connection, and proves the token. It does nothing without a token. A peer
// that begins with a connection request, such as one in C, gets an ordinary refusal, which it understands.
func (e *Endpoint) verifyToken(h *handshakeConn) (cause string, err error) {
	if e.cfg.Token.IsZero() {
		return "", nil
	}
	binding, err := h.binding()
	if err != nil {
		return causeToken, err
	}
	head, err := tokenproof.Server(h.stream(), e.cfg.Token, binding, e.nonces.Has)
	switch {
	case errors.Is(err, tokenproof.ErrAbsent):
		if _, req, rerr := readRequest(io.MultiReader(bytes.NewReader(head[:]), h.stream())); rerr == nil {
			_, _ = h.stream().Write(markedNack(req, cmWantsToken)) // the peer sees it if it can
		}
		return causeNoToken, err
	case errors.Is(err, tokenproof.ErrOwn):
		return causeOwnHello, err
	}
	return causeToken, err
}

// asking is the end of a half-open connection about which the program is asked. Close ends the call too, because a host could otherwise have any
// number of goroutines wait: half-open connections that give way are not counted any more.
type asking struct {
	io.Closer
	cancel context.CancelFunc
}

// Close closes the connection.
func (a *asking) Close() error {
	a.cancel()
	return a.Closer.Close()
}

// errGaveWay is the error of a half-open connection that has given way to others.
var errGaveWay = errors.New("the connection gave way to others before Config.Admit was asked")

// admitPeer calls Config.Admit for the peer of a half-open connection. The handshake, of which the call is a part, began at the time began.
// The call ends alertTime before the handshake, so that the refusal of a peer about which Admit did not decide can still be sent.
func (e *Endpoint) admitPeer(half *halfOpen, h *handshakeConn, began time.Time) error {
	if e.cfg.Admit == nil {
		return nil
	}
	var id tlsio.Identity
	if h.tls != nil {
		id = h.tls.Identity()
	}
	ctx, cancel := context.WithDeadline(e.life, began.Add(handshakeTime-alertTime))
	defer cancel()
	e.mu.Lock()
	in := half.at != nil
	half.end = &asking{Closer: half.end, cancel: cancel}
	e.mu.Unlock()
	if !in {
		return errGaveWay
	}
	return e.cfg.Admit.Admit(ctx, half.account.Host(), e.identify(half.from.Addr(), false, id))
}

// identify returns the facts that are proven about the peer of a connection with a host. own is true for this endpoint itself.
func (e *Endpoint) identify(host netip.Addr, own bool, id tlsio.Identity) proven.Peer {
	if own {
		return proven.Peer{Kind: proven.Self}
	}
	p := proven.Peer{Kind: proven.Address, Host: host, Token: !e.cfg.Token.IsZero()}
	if id.Verified() {
		p.Kind, p.Subject, p.Names = proven.Certificate, id.Subject(), id.Names()
	}
	return p
}
