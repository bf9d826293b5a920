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
	"slices"
	"sync"
	"time"

	"cinnabar/internal/hostquota"
)

// KeyLen is the number of bytes of a key.
const KeyLen = 32

// Times of an exchange.
const (
	dialLimit = 10 * time.Second // of one dial
	runLimit  = 10 * time.Second // of a run at the side that accepts, after the first message
	idleLimit = 3 * time.Second  // until the first message has come there
	// of a run at the side that offers: longer than all that the other side may take, because a run that only one side gives up spends the code
	offerLimit = 2 * (idleLimit + runLimit)
	retryWait  = 300 * time.Millisecond // between two dials
)

// Connections of which the first message has not come yet. One more ends the oldest one.
const (
	mostWaiting = 64
	mostOfHost  = 4
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
// returns the address that has accepted. The code is spent when Offer has returned, unless no peer has answered. It calls note, which may be nil, with
// the first error at a peer that takes connections and has no answer, and with the first refusal after that.
func Offer(ctx context.Context, code Code, peers []netip.AddrPort, note func(netip.AddrPort, error)) (key []byte, peer netip.AddrPort, err error) {
	var d net.Dialer
	var reached, gone netip.AddrPort
	for {
		for _, peer := range peers {
			var c net.Conn
			limited, cancel := context.WithTimeout(ctx, dialLimit)
			c, err = d.DialContext(limited, "tcp", peer.String())
			cancel()
			if err != nil {
				if peer == reached && peer != gone && ctx.Err() == nil {
					gone = peer
					tell(note, peer, fmt.Errorf("it takes no connections any more; if cinnabar recv --code has ended there, the code may be spent: %w", err))
				}
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
			if !reached.IsValid() && ctx.Err() == nil {
				reached = peer
				tell(note, peer, err)
			}
		}
		if !pause(ctx) {
			return nil, peer, fmt.Errorf("%w; no receiver with the code has answered, the last error is: %w", context.Cause(ctx), err)
		}
	}
}

// tell calls note unless it is nil.
func tell(note func(netip.AddrPort, error), peer netip.AddrPort, err error) {
	if note != nil {
		note(peer, err)
	}
}

// offer runs the exchange on a connection. answered is false if the peer has sent nothing: it has not got anything that a guess could be
// compared with.
func offer(ctx context.Context, c net.Conn, code Code) (key []byte, answered bool, err error) {
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // fails only on a closed connection
	if err := c.SetDeadline(time.Now().Add(offerLimit)); err != nil {
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

// Accept makes the key with the first peer that begins the exchange at l, and returns its address. Connections that send something else, or nothing,
// do not count and delay no other. The code is spent when Accept has returned, unless ctx has ended before a peer came. Accept does not close l, and
// takes no further connection after the first message of that peer.
func Accept(ctx context.Context, code Code, l *net.TCPListener) (key []byte, peer netip.AddrPort, err error) {
	a, err := firstAsk(ctx, code, l)
	if err != nil {
		return nil, peer, err
	}
	key, err = a.answer(ctx)
	_ = a.c.Close() // nothing more is read
	return key, a.peer, err
}

// asked is the first message of a peer, and what its answer needs.
type asked struct {
	c     net.Conn
	peer  netip.AddrPort
	ask   []byte
	share []byte // of this side
	keys  keys
}

// firstAsk waits for the first message of an exchange that is complete. All other connections are closed then.
func firstAsk(ctx context.Context, code Code, l *net.TCPListener) (*asked, error) {
	if err := l.SetDeadline(time.Time{}); err != nil { // an earlier call may have left one
		return nil, err
	}
	waiting, end := context.WithCancel(ctx)
	woken := make(chan struct{})
	context.AfterFunc(waiting, func() {
		_ = l.SetDeadline(time.Unix(1, 0)) // fails only on a closed listener
		close(woken)
	})
	first := make(chan *asked, 1)
	var guests waitingRoom
	var readers sync.WaitGroup
	err := guests.receive(waiting, l, func(g *guest) {
		readers.Go(func() {
			a, err := readAsk(waiting, g.c, code)
			if !guests.leave(g) { // it was closed in favour of a later one
				return
			}
			if err == nil {
				a.peer = g.peer
				select {
				case first <- a:
					end()
					return
				default: // another one was first
				}
			}
			_ = g.c.Close() // nothing more is read
		})
	})
	end()
	readers.Wait()
	<-woken
	_ = l.SetDeadline(time.Time{}) // because the caller goes on with it
	select {
	case a := <-first:
		return a, nil
	default:
		return nil, orEnd(ctx, err)
	}
}

// waitingRoom has the connections of which the first message has not come.
type waitingRoom struct {
	mu sync.Mutex
	// in the order in which they came
	// +checklocks:mu
	in []*guest
}

// guest is a connection in a waitingRoom.
type guest struct {
	c    net.Conn
	peer netip.AddrPort
	host hostquota.Host
}

// receive takes the connections of l until ctx ends, and calls do for each.
func (w *waitingRoom) receive(ctx context.Context, l *net.TCPListener, do func(*guest)) error {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			peer, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // as the address of a socket prints itself
			g := &guest{c: c, peer: peer, host: hostquota.HostOf(peer.Addr())}
			w.enter(g)
			do(g)
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return err
		default: // too few descriptors, say, which passes
			if !pause(ctx) {
				return err
			}
		}
	}
}

// enter adds a connection. The oldest one of its host, or of all, is closed if there are too many, because an honest peer does not wait with its message.
func (w *waitingRoom) enter(g *guest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldest, ofHost := -1, 0
	for i, other := range w.in {
		if other.host != g.host {
			continue
		}
		if ofHost++; ofHost == 1 {
			oldest = i
		}
	}
	switch {
	case ofHost >= mostOfHost:
	case len(w.in) >= mostWaiting:
		oldest = 0
	default:
		oldest = -1
	}
	if oldest >= 0 {
		_ = w.in[oldest].c.Close() // its reader sees that
		w.in = slices.Delete(w.in, oldest, oldest+1)
	}
	w.in = append(w.in, g)
}

// leave removes a connection, and reports whether it was still there.
func (w *waitingRoom) leave(g *guest) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.in, g)
	if i >= 0 {
		w.in = slices.Delete(w.in, i, i+1)
	}
	return i >= 0
}

// readAsk reads the first message of a peer. Nothing is answered.
func readAsk(ctx context.Context, c net.Conn, code Code) (*asked, error) {
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // fails only on a closed connection
	if err := c.SetDeadline(time.Now().Add(idleLimit)); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // the deadline of its end was overwritten, perhaps
		return nil, context.Cause(ctx)
	}
	ask := make([]byte, askLen)
	if _, err := io.ReadFull(c, ask); err != nil {
		return nil, err
	}
	if string(ask[:len(magic)]) != magic {
		return nil, errors.New("the peer is no cinnabar send --code")
	}
	var p pake = newCPace([]byte(code.text), ask[len(magic):len(magic)+sidLen], false)
	secret, err := p.finish(ask[len(magic)+sidLen:])
	if err != nil {
		return nil, err
	}
	k, err := derive(secret)
	if err != nil {
		return nil, err
	}
	return &asked{c: c, ask: ask, share: p.share(), keys: k}, nil
}

// answer runs the rest of the exchange.
func (a *asked) answer(ctx context.Context) (key []byte, err error) {
	c := a.c
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })() // fails only on a closed connection
	reply := append([]byte(magic), a.share...)
	if err := c.SetDeadline(time.Now().Add(runLimit)); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // the deadline of its end was overwritten, perhaps
		return nil, context.Cause(ctx)
	}
	if _, err := c.Write(reply); err != nil {
		return nil, orEnd(ctx, fmt.Errorf("%w: %w", ErrSpent, err))
	}
	confirmation := make([]byte, tagLen)
	if _, err := io.ReadFull(c, confirmation); err != nil {
		return nil, orEnd(ctx, fmt.Errorf("%w: %w", ErrSpent, err))
	}
	if !hmac.Equal(confirmation, tag(a.keys.offer, a.ask, reply)) {
		return nil, ErrSpent
	}
	if _, err := c.Write(tag(a.keys.accept, a.ask, reply)); err != nil {
		return nil, orEnd(ctx, err)
	}
	return a.keys.key, nil
}

// pause waits between two attempts, and reports whether ctx goes on.
func pause(ctx context.Context) bool {
	wait := time.NewTimer(retryWait)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// orEnd returns the cause of the end of ctx, if that has ended, and err otherwise.
func orEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
