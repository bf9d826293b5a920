package tokenproof

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cinnabar/identity"
)

// patience bounds a test that hangs.
const patience = 30 * time.Second

// pipe returns both ends of a connection in memory.
func pipe(t testing.TB) (a, b net.Conn) {
	a, b = net.Pipe()
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(patience)) // fails only when closed
		t.Cleanup(func() { _ = c.Close() })
	}
	return a, b
}

func stranger(Nonce) bool { return false }

// side is the result of one end of an exchange.
type side struct{ err error }

// exchange makes the exchange of two ends.
func exchange(t *testing.T, client, server identity.Token, clientBinding, serverBinding []byte, own func(Nonce) bool) (c, s side) {
	t.Helper()
	a, b := pipe(t)
	done := make(chan side)
	go func() {
		_, err := Server(b, server, serverBinding, own)
		_ = b.Close()
		done <- side{err}
	}()
	var nonces Nonces
	c.err = Client(a, client, clientBinding, nonces.Add)
	_ = a.Close()
	if n := len(nonces.begun); n != 0 {
		t.Errorf("%d nonces are left", n)
	}
	return c, <-done
}

// TestExchange makes the exchange with equal and different tokens and connections.
func TestExchange(t *testing.T) {
	tok, other := identity.NewToken(), identity.NewToken()
	bind := bytes.Repeat([]byte{7}, 32)
	for _, test := range []struct {
		name           string
		client, server identity.Token
		cb, sb         []byte
		ok             bool
	}{
		{"plain", tok, tok, nil, nil, true},
		{"inside TLS", tok, tok, bind, bind, true},
		{"another token", tok, other, nil, nil, false},
		{"another connection", tok, tok, bind, bytes.Repeat([]byte{8}, 32), false},
		{"TLS at one end", tok, tok, nil, bind, false},
	} {
		c, s := exchange(t, test.client, test.server, test.cb, test.sb, stranger)
		if test.ok {
			if c.err != nil || s.err != nil {
				t.Errorf("%s: %v, %v", test.name, c.err, s.err)
			}
			continue
		}
		if !errors.Is(c.err, ErrUnproven) || !errors.Is(s.err, ErrUnproven) || !strings.Contains(c.err.Error(), "differ") || !strings.Contains(s.err.Error(), "the tokens differ") {
			t.Errorf("%s: client %v, server %v", test.name, c.err, s.err)
		}
	}
}

// TestOwnHello checks that a hello that came back is refused before the server proves anything.
func TestOwnHello(t *testing.T) {
	tok := identity.NewToken()
	c, s := exchange(t, tok, tok, nil, nil, func(Nonce) bool { return true })
	if !errors.Is(s.err, ErrOwn) || !errors.Is(c.err, ErrUnproven) || !strings.Contains(c.err.Error(), "passed on") {
		t.Errorf("client %v, server %v", c.err, s.err)
	}
}

// serve makes the exchange of a server over one end of a pipe, and returns the other end.
func serve(t *testing.T, tok identity.Token) (net.Conn, <-chan side) {
	t.Helper()
	a, b := pipe(t)
	done := make(chan side, 1)
	go func() {
		_, err := Server(b, tok, nil, stranger)
		_ = b.Close()
		done <- side{err}
	}()
	return a, done
}

func write(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c net.Conn, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestReplay records an exchange and repeats the client's bytes. The server's nonce is another one, so the proof does not fit.
func TestReplay(t *testing.T) {
	tok := identity.NewToken()
	nonce := newNonce()
	hello := appendMessage(nil, kindHello, 0, nonce[:])
	c, first := serve(t, tok)
	write(t, c, hello)
	challenge := read(t, c, headLen+nonceLen+macLen)
	proof := proofOf(tok, clientLabel, nonce, Nonce(challenge[headLen:]), nil)
	answer := appendMessage(nil, kindProof, 0, proof[:])
	write(t, c, answer)
	if s := <-first; s.err != nil {
		t.Fatal(s.err)
	}
	c, second := serve(t, tok)
	write(t, c, hello)
	if again := read(t, c, headLen+nonceLen+macLen); bytes.Equal(again, challenge) {
		t.Error("the server repeats its nonce")
	}
	write(t, c, answer)
	if s := <-second; !errors.Is(s.err, ErrUnproven) {
		t.Errorf("a repeated proof: %v", s.err)
	}
}

// TestReflection sends a server its own proof as that of the client, which a proof without the role would make valid.
func TestReflection(t *testing.T) {
	c, done := serve(t, identity.NewToken())
	write(t, c, appendMessage(nil, kindHello, 0, make([]byte, nonceLen)))
	challenge := read(t, c, headLen+nonceLen+macLen)
	write(t, c, appendMessage(nil, kindProof, 0, challenge[headLen+nonceLen:]))
	if s := <-done; !errors.Is(s.err, ErrUnproven) {
		t.Errorf("%v", s.err)
	}
}

// TestStrangerLearnsNothing checks that a client sends a server without the token nothing but a nonce and a refusal, so that it cannot be
// used to prove the token elsewhere.
func TestStrangerLearnsNothing(t *testing.T) {
	a, b := pipe(t)
	got := make(chan []byte, 1)
	go func() {
		hello := make([]byte, headLen+nonceLen)
		_, _ = io.ReadFull(b, hello)
		_, _ = b.Write(appendMessage(nil, kindChallenge, 0, hello[headLen:], make([]byte, macLen)))
		rest, _ := io.ReadAll(b)
		got <- rest
	}()
	err := Client(a, identity.NewToken(), nil, new(Nonces).Add)
	_ = a.Close()
	if rest := <-got; !errors.Is(err, ErrUnproven) || !bytes.Equal(rest, appendMessage(nil, kindRefusal, reasonWrong)) {
		t.Errorf("%v; the stranger got % x", err, rest)
	}
}

// TestOtherBeginnings checks bytes that are none of the exchange, at both ends.
func TestOtherBeginnings(t *testing.T) {
	for _, test := range []struct {
		bytes string
		want  error
		text  string
	}{
		{"\x03\x00\x00\x08\x00\x00\x00\x00", ErrAbsent, "without a token"},
		{"GET / HT", ErrAbsent, "without a token"},
		{"cntk\x02\x01\x00\x00", ErrUnproven, "version 2"},
		{"cntk\x01\x03\x00\x00", ErrUnproven, "kind 3"},
		{"cntk\x01\x04\x02\x00", ErrUnproven, "tokens differ"},
		{"cnt", ErrUnproven, "without a hello"},
	} {
		c, done := serve(t, identity.NewToken())
		go func() { _, _ = io.Copy(io.Discard, c) }()
		write(t, c, []byte(test.bytes))
		if len(test.bytes) < headLen {
			_ = c.Close()
		}
		if s := <-done; !errors.Is(s.err, test.want) || !strings.Contains(s.err.Error(), test.text) {
			t.Errorf("%q: %v, want %q", test.bytes, s.err, test.text)
		}
	}
	for answer, want := range map[string]string{
		"":                         "without one",
		"\x03\x06\x00\x08rest":     "none of this exchange",
		string(NoToken()):          "it has no token",
		"cntk\x01\x04\x09\x00":     "reason 9",
		"cntk\x01\x02\x00\x00half": "ended within",
	} {
		a, b := pipe(t)
		go func() {
			_ = readOnly(b, headLen+nonceLen)
			_, _ = b.Write([]byte(answer))
			_ = b.Close()
		}()
		if err := Client(a, identity.NewToken(), nil, new(Nonces).Add); !errors.Is(err, ErrUnproven) || !strings.Contains(err.Error(), want) {
			t.Errorf("answer %q: %v, want %q", answer, err, want)
		}
	}
}

func readOnly(r io.Reader, n int) error {
	_, err := io.ReadFull(r, make([]byte, n))
	return err
}

// both is a stream that a test has written before.
type both struct {
	io.Reader
	io.Writer
}

// FuzzServer feeds a server with hostile bytes. Without the token no bytes are a proof.
func FuzzServer(f *testing.F) {
	f.Add(appendMessage(appendMessage(nil, kindHello, 0, make([]byte, nonceLen)), kindProof, 0, make([]byte, macLen)))
	f.Add(appendMessage(nil, kindRefusal, reasonWrong))
	f.Add([]byte{3, 0, 0, 8})
	tok := identity.NewToken()
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		if _, err := Server(both{bytes.NewReader(b), &out}, tok, nil, stranger); err == nil {
			t.Error("a stranger has proven the token")
		}
		if out.Len() > headLen+nonceLen+macLen {
			t.Errorf("%d bytes of answers", out.Len())
		}
	})
}

// FuzzClient feeds a client with hostile bytes.
func FuzzClient(f *testing.F) {
	f.Add(appendMessage(nil, kindChallenge, 0, make([]byte, nonceLen+macLen)))
	f.Add(NoToken())
	tok := identity.NewToken()
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		if err := Client(both{bytes.NewReader(b), &out}, tok, nil, new(Nonces).Add); err == nil {
			t.Error("a stranger has proven the token")
		}
		if out.Len() > 2*headLen+nonceLen {
			t.Errorf("%d bytes, which contain a proof", out.Len())
		}
	})
}
