package onetime

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// KeyLen is the number of bytes of a key.
const KeyLen = 32

// Times of an exchange.
const (
	runLimit  = 10 * time.Second       // of one run
	idleLimit = 3 * time.Second        // until the first message has come
	retryWait = 300 * time.Millisecond // between two dials
)

// The head of the first message in each direction.
const (
	magic    = "cnxc\x01\x00\x00\x00"
	tagLen   = sha256.Size
	askLen   = len(magic) + sidLen + shareLen
	replyLen = len(magic) + shareLen
)

// ErrSpent says that a run has failed after which the code may not be used again.
var ErrSpent = errors.New("the peer has not proved the same code: it was mistyped, or another program tried to guess it. The code is spent; make a new one")

// keys are those that both sides derive from the secret of the exchange.
type keys struct{ offer, accept, key []byte }

// derive returns the keys of a secret.
func derive(secret []byte) (k keys, err error) {
	for _, d := range []struct {
		to   *[]byte
		info string
	}{{&k.offer, "confirmation of offer"}, {&k.accept, "confirmation of accept"}, {&k.key, "key"}} {
		if *d.to, err = hkdf.Key(sha256.New, secret, nil, channelID+": "+d.info, KeyLen); err != nil {
			return keys{}, err
		}
	}
	return k, nil
}

// tag returns a confirmation: a MAC over both first messages.
func tag(key, ask, reply []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(ask)   // never fails (package hash)
	m.Write(reply) // never fails
	return m.Sum(nil)
}

// Offer dials the addresses in turn until one accepts, and makes the key with it. It dials again while nothing listens there, until ctx ends. It
// returns the address that has accepted. The code is spent when Offer has returned, unless no peer has answered.
func Offer(ctx context.Context, code Code, peers []netip.AddrPort) (key []byte, peer netip.AddrPort, err error) {
	var d net.Dialer
	for {
		for _, peer := range peers {
			var c net.Conn
			limited, cancel := context.WithTimeout(ctx, runLimit)
			c, err = d.DialContext(limited, "tcp", peer.String())
			cancel()
			if err != nil {
				continue
			}
			var answered bool
			key, answered, err = offer(ctx, c, code)
			_ = c.Close() // nothing more is read
			if err == nil {
				return key, peer, nil
			}
			if answered {
				return nil, peer, err
			}
		}
		wait := time.NewTimer(retryWait)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, peer, fmt.Errorf("%w; no receiver with the code has answered, the last error is: %w", context.Cause(ctx), err)
		}
	}
}

// offer runs the exchange on a connection. answered is false if the peer has sent nothing: it has not got anything that a guess could be
// compared with.
func offer(ctx context.Context, c net.Conn, code Code) (key []byte, answered bool, err error) {
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // fails only on a closed connection
	if err := c.SetDeadline(time.Now().Add(runLimit)); err != nil {
		return nil, false, err
	}
	if ctx.Err() != nil { // the deadline of its end was overwritten, perhaps
		return nil, false, context.Cause(ctx)
	}
	sid := make([]byte, sidLen)
	_, _ = rand.Read(sid) // never fails (crypto/rand)
	var p pake = newCPace([]byte(code.text), sid, true)
	ask := append(append([]byte(magic), sid...), p.share()...)
	if _, err := c.Write(ask); err != nil {
		return nil, false, err
	}
	reply := make([]byte, replyLen)
	if _, err := io.ReadFull(c, reply); err != nil {
		return nil, false, orEnd(ctx, fmt.Errorf("the peer has not answered the offer of a code; see whether cinnabar recv --code waits there: %w", err))
	}
	if string(reply[:len(magic)]) != magic {
		return nil, false, errors.New("the peer is no cinnabar recv --code")
	}
	secret, err := p.finish(reply[len(magic):])
	if err != nil {
		return nil, true, fmt.Errorf("%w: %w", ErrSpent, err)
	}
	k, err := derive(secret)
	if err != nil {
		return nil, true, err
	}
	if _, err := c.Write(tag(k.offer, ask, reply)); err != nil {
		return nil, true, orEnd(ctx, fmt.Errorf("%w: %w", ErrSpent, err))
	}
	confirmation := make([]byte, tagLen)
	if _, err := io.ReadFull(c, confirmation); err != nil {
		return nil, true, orEnd(ctx, fmt.Errorf("%w: %w", ErrSpent, err))
	}
	if !hmac.Equal(confirmation, tag(k.accept, ask, reply)) {
		return nil, true, ErrSpent
	}
	return k.key, true, nil
}

// Accept makes the key with the first peer that begins the exchange at l, and returns its address. Connections that send something else do not count.
// The code is spent when Accept has returned, unless ctx has ended before a peer came. Accept does not close l, and takes no further connection.
func Accept(ctx context.Context, code Code, l *net.TCPListener) (key []byte, peer netip.AddrPort, err error) {
	if err := l.SetDeadline(time.Time{}); err != nil { // an earlier call may have left one
		return nil, peer, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) }) // fails only on a closed listener
	defer func() {
		if stop() {
			_ = l.SetDeadline(time.Time{}) // because the caller goes on with it
		}
	}()
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, peer, orEnd(ctx, err)
		}
		peer, _ = netip.ParseAddrPort(c.RemoteAddr().String()) // as the address of a socket prints itself
		key, begun, err := accept(ctx, c, code)
		_ = c.Close() // nothing more is read
		if begun || err == nil {
			return key, peer, err
		}
		if ctx.Err() != nil {
			return nil, peer, context.Cause(ctx)
		}
	}
}

// accept runs the exchange on a connection. begun is false if the peer has not begun it.
func accept(ctx context.Context, c net.Conn, code Code) (key []byte, begun bool, err error) {
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // fails only on a closed connection
	if err := c.SetDeadline(time.Now().Add(idleLimit)); err != nil {
		return nil, false, err
	}
	ask := make([]byte, askLen)
	if _, err := io.ReadFull(c, ask); err != nil {
		return nil, false, err
	}
	if string(ask[:len(magic)]) != magic {
		return nil, false, errors.New("the peer is no cinnabar send --code")
	}
	var p pake = newCPace([]byte(code.text), ask[len(magic):len(magic)+sidLen], false)
	secret, err := p.finish(ask[len(magic)+sidLen:])
	if err != nil {
		return nil, false, err
	}
	k, err := derive(secret)
	if err != nil {
		return nil, false, err
	}
	reply := append([]byte(magic), p.share()...)
	if err := c.SetDeadline(time.Now().Add(runLimit)); err != nil {
		return nil, true, err
	}
	if ctx.Err() != nil { // the deadline of its end was overwritten, perhaps
		return nil, true, context.Cause(ctx)
	}
	if _, err := c.Write(reply); err != nil {
		return nil, true, orEnd(ctx, fmt.Errorf("%w: %w", ErrSpent, err))
	}
	confirmation := make([]byte, tagLen)
	if _, err := io.ReadFull(c, confirmation); err != nil {
		return nil, true, orEnd(ctx, fmt.Errorf("%w: %w", ErrSpent, err))
	}
	if !hmac.Equal(confirmation, tag(k.offer, ask, reply)) {
		return nil, true, ErrSpent
	}
	if _, err := c.Write(tag(k.accept, ask, reply)); err != nil {
		return nil, true, orEnd(ctx, err)
	}
	return k.key, true, nil
}

// orEnd returns the cause of the end of ctx, if that has ended, and err otherwise.
func orEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
