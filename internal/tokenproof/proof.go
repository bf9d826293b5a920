package tokenproof

import (
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"cinnabar/identity"
)

const (
	headLen  = 8
	nonceLen = 32
	macLen   = 32
	version  = 1
	mark     = "cntk"
)

// HeadLen is the number of bytes that [Server] has read of a connection that does not begin with a hello.
const HeadLen = headLen

// kind is the kind of a message.
type kind byte

const (
	kindHello     kind = 1
	kindChallenge kind = 2
	kindProof     kind = 3
	kindRefusal   kind = 4
)

// reason is the reason of a refusal.
type reason byte

const (
	reasonNone    reason = 0 // of no refusal
	reasonNoToken reason = 1 // the server has no token
	reasonWrong   reason = 2 // the proof does not fit
	reasonVersion reason = 3 // the version is not known
	reasonOwn     reason = 4 // the hello is the server's own
	reasonTLS     reason = 5 // the server requires TLS
)

func (r reason) String() string {
	switch r {
	case reasonNoToken:
		return "it has no token: set Config.Token, or --token-file, at both ends or at none"
	case reasonWrong:
		return "the tokens differ"
	case reasonVersion:
		return "it does not know this version of the exchange"
	case reasonOwn:
		return "the hello came from that process itself, so it was passed on"
	case reasonTLS:
		return "it requires TLS: set Config.TLS, or --tls-ca, at both ends"
	case reasonNone:
	}
	return fmt.Sprintf("reason %d", byte(r))
}

// Errors of an exchange that does not succeed. The texts name the cause and the remedy.
var (
	// ErrAbsent is the error of [Server] for a connection that does not begin with a hello.
	ErrAbsent = errors.New("a peer without a token was refused; it must have the same Config.Token, or --token-file")
	// ErrUnproven is the error of both sides for a peer that has not proven the token.
	ErrUnproven = errors.New("the peer has not proven the token")
	// ErrOwn is the error of [Server] for a hello that this process has sent itself and that a peer has relayed back.
	ErrOwn = errors.New("the hello of a handshake that this process has begun came back from another connection, so a peer has passed it on")
)

// Nonce is the random number of one side.
type Nonce [nonceLen]byte

// newNonce returns a random number that no other exchange has.
func newNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // never fails (crypto/rand)
	return n
}

// Labels of the proofs.
const (
	serverLabel = "cinnabar token 1 server"
	clientLabel = "cinnabar token 1 client"
)

// proofOf returns the proof of a role. binding is the exporter value of the TLS connection; nil without TLS.
func proofOf(t identity.Token, label string, client, server Nonce, binding []byte) [macLen]byte {
	return t.MAC(label, client[:], server[:], binding)
}

// appendMessage appends a message.
func appendMessage(b []byte, k kind, r reason, body ...[]byte) []byte {
	b = append(b, mark...)
	b = append(b, version, byte(k), byte(r), 0)
	for _, part := range body {
		b = append(b, part...)
	}
	return b
}

// parseHead reads the head of a message, which is hostile. It returns false for bytes that are no message of the exchange.
func parseHead(b []byte) (k kind, r reason, known, ok bool) {
	if len(b) < headLen || string(b[:len(mark)]) != mark {
		return 0, 0, false, false
	}
	return kind(b[5]), reason(b[6]), b[4] == version && b[7] == 0, true
}

// IsHello reports whether b, which is hostile, begins like a message of the exchange.
func IsHello(b []byte) bool { return len(b) >= len(mark) && string(b[:len(mark)]) == mark }

// NoToken returns the answer of a server without a token to a hello.
func NoToken() []byte { return appendMessage(nil, kindRefusal, reasonNoToken) }

// NeedsTLS returns the answer of a server with TLS to a hello without TLS.
func NeedsTLS() []byte { return appendMessage(nil, kindRefusal, reasonTLS) }

// readMessage reads a message of kind want into body, which has the length of that kind.
func readMessage(r io.Reader, want kind, body []byte) error {
	var head [headLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("%w: it sent no answer to the proof of the token, so it is perhaps a program without one: %w", ErrUnproven, err)
	}
	return readBody(r, head[:], want, body)
}

// readBody is readMessage after the head.
func readBody(r io.Reader, head []byte, want kind, body []byte) error {
	k, why, known, ok := parseHead(head)
	switch {
	case !ok:
		return fmt.Errorf("%w: its answer is none of this exchange", ErrUnproven)
	case k == kindRefusal:
		return fmt.Errorf("%w and refuses this process: %v", ErrUnproven, why)
	case !known || k != want:
		return fmt.Errorf("%w: version %d with a message of kind %d, where version %d and kind %d are due", ErrUnproven, head[4], k, version, want)
	}
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("%w: the connection ended within the exchange: %w", ErrUnproven, err)
	}
	return nil
}

// Client makes the exchange as the side that has dialed. binding is the exporter value of the TLS connection; nil without TLS. Client calls own
// with its nonce before it sends the nonce, and calls the function that own returns when the exchange is over. The deadline of rw bounds the
// exchange.
func Client(rw io.ReadWriter, t identity.Token, binding []byte, own func(Nonce) func()) error {
	mine := newNonce()
	defer own(mine)()
	if _, err := rw.Write(appendMessage(nil, kindHello, reasonNone, mine[:])); err != nil {
		return fmt.Errorf("token: %w", err)
	}
	var body [nonceLen + macLen]byte
	if err := readMessage(rw, kindChallenge, body[:]); err != nil {
		return err
	}
	theirs := Nonce(body[:nonceLen])
	want := proofOf(t, serverLabel, mine, theirs, binding)
	if !hmac.Equal(want[:], body[nonceLen:]) {
		_, _ = rw.Write(appendMessage(nil, kindRefusal, reasonWrong)) // the peer sees it if it can
		return fmt.Errorf("%w: %s", ErrUnproven, differ(binding))
	}
	proof := proofOf(t, clientLabel, mine, theirs, binding)
	if _, err := rw.Write(appendMessage(nil, kindProof, reasonNone, proof[:])); err != nil {
		return fmt.Errorf("token: %w", err)
	}
	return nil
}

// differ returns the possible causes of a proof that does not fit.
func differ(binding []byte) string {
	if binding == nil {
		return "the tokens of the two processes differ"
	}
	return "the tokens of the two processes differ, or a man in the middle has passed the exchange on from another TLS connection"
}

// Server makes the exchange as the side that was dialed. binding is as for [Client]. own reports whether a nonce belongs to an exchange that
// this process has begun as a client with another process. The deadline of rw bounds the exchange.
//
// If err is [ErrAbsent], head has the first bytes of the connection, so that the caller can parse them as another protocol.
func Server(rw io.ReadWriter, t identity.Token, binding []byte, own func(Nonce) bool) (head [HeadLen]byte, err error) {
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return head, fmt.Errorf("%w: a connection without a hello: %w", ErrUnproven, err)
	}
	_, _, known, ok := parseHead(head[:])
	if !ok {
		return head, ErrAbsent
	}
	if !known {
		_, _ = rw.Write(appendMessage(nil, kindRefusal, reasonVersion)) // the peer sees it if it can
	}
	var theirs Nonce
	if err := readBody(rw, head[:], kindHello, theirs[:]); err != nil {
		return head, err
	}
	if own(theirs) {
		_, _ = rw.Write(appendMessage(nil, kindRefusal, reasonOwn)) // the peer sees it if it can
		return head, ErrOwn
	}
	mine := newNonce()
	proof := proofOf(t, serverLabel, theirs, mine, binding)
	if _, err := rw.Write(appendMessage(nil, kindChallenge, reasonNone, mine[:], proof[:])); err != nil {
		return head, fmt.Errorf("token: %w", err)
	}
	var got [macLen]byte
	if err := readMessage(rw, kindProof, got[:]); err != nil {
		return head, err
	}
	if want := proofOf(t, clientLabel, theirs, mine, binding); !hmac.Equal(want[:], got[:]) {
		return head, fmt.Errorf("%w: %s", ErrUnproven, differ(binding))
	}
	return head, nil
}

// Nonces holds the nonces of the exchanges that a process has begun as a client and that are not over. It is safe for concurrent use. The
// zero Nonces is empty.
type Nonces struct {
	mu sync.Mutex
	// +checklocks:mu
	begun map[Nonce]struct{}
}

// Add enters a nonce, and returns the function that removes it.
func (s *Nonces) Add(n Nonce) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun == nil {
		s.begun = map[Nonce]struct{}{}
	}
	s.begun[n] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.begun, n)
	}
}

// Has reports whether a nonce was entered and not removed.
func (s *Nonces) Has(n Nonce) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.begun[n]
	return ok
}
