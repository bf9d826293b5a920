package onetime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/hostquota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// otherCode returns a code that differs from c.
func otherCode(c Code) Code {
	for {
		if o := New(); o != c {
			return o
		}
	}
}

func listen(t *testing.T) (*net.TCPListener, []netip.AddrPort) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
}

// dial connects to a listener.
func dial(t *testing.T, at []netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", at[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// result is that of Offer or Accept.
type result struct {
	key []byte
	err error
}

func accepting(t *testing.T, code Code, l *net.TCPListener) <-chan result {
	t.Helper()
	out := make(chan result, 1)
	go func() {
		key, _, err := Accept(t.Context(), code, l)
		out <- result{key, err}
	}()
	return out
}

// Both sides get one key, and the listener goes on.
func TestMeet(t *testing.T) {
	for range 3 {
		l, at := listen(t)
		code := New()
		accepted := accepting(t, code, l)
		key, peer, err := Offer(t.Context(), code, at, nil)
		got := <-accepted
		if err != nil || got.err != nil || !bytes.Equal(key, got.key) || len(key) != KeyLen || peer != at[0] {
			t.Fatalf("%x, %v, %v; %x, %v", key, peer, err, got.key, got.err)
		}
		done := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = c.Close()
			}
			done <- err
		}()
		dial(t, at)
		if err := <-done; err != nil {
			t.Errorf("the listener does not go on: %v", err)
		}
	}
}

// A wrong code fails on both sides, and Accept answers no second guess.
func TestWrongCode(t *testing.T) {
	l, at := listen(t)
	code := New()
	accepted := accepting(t, code, l)
	if key, _, err := Offer(t.Context(), otherCode(code), at, nil); !errors.Is(err, ErrSpent) {
		t.Errorf("the offer: %x, %v", key, err)
	}
	if got := <-accepted; !errors.Is(got.err, ErrSpent) || got.key != nil {
		t.Errorf("the side that accepts: %x, %v", got.key, got.err)
	}
	second := dial(t, at) // the right code would not help any more, because no one answers
	if _, _, err := offer(withLimit(t, time.Second), second, code); err == nil {
		t.Error("a second guess was answered")
	}
}

func withLimit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A guess that is broken off after the answer counts: the side that accepts has answered once in its life.
func TestBrokenOffGuessCounts(t *testing.T) {
	l, at := listen(t)
	accepted := accepting(t, New(), l)
	c := dial(t, at)
	p := newCPace([]byte("1234567890"), make([]byte, sidLen), true)
	if _, err := c.Write(append(append([]byte(magic), make([]byte, sidLen)...), p.share()...)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, replyLen)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got := <-accepted; !errors.Is(got.err, ErrSpent) {
		t.Errorf("got %v", got.err)
	}
}

// A recording of a run is worth nothing in another one.
func TestReplay(t *testing.T) {
	l, at := listen(t)
	code := New()
	relayed, rat := listen(t)
	var up, down bytes.Buffer
	done := make(chan struct{})
	go relay(t, relayed, at, &up, &down, done)
	accepted := accepting(t, code, l)
	if _, _, err := Offer(t.Context(), code, rat, nil); err != nil {
		t.Fatal(err)
	}
	if got := <-accepted; got.err != nil {
		t.Fatal(got.err)
	}
	<-done
	again, at := listen(t)
	accepted = accepting(t, code, again)
	c := dial(t, at)
	if _, err := c.Write(up.Bytes()); err != nil {
		t.Fatal(err)
	}
	if got := <-accepted; !errors.Is(got.err, ErrSpent) {
		t.Errorf("a recorded offer: %x, %v", got.key, got.err)
	}
	fake, fat := listen(t)
	go func() {
		c, err := fake.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadFull(c, make([]byte, askLen)) // the offer sees the end
		_, _ = c.Write(down.Bytes())
		_ = c.Close()
	}()
	if key, _, err := Offer(t.Context(), code, fat, nil); !errors.Is(err, ErrSpent) {
		t.Errorf("a recorded answer: %x, %v", key, err)
	}
}

// relay passes one connection on and records it.
func relay(t *testing.T, l net.Listener, to []netip.AddrPort, up, down *bytes.Buffer, done chan<- struct{}) {
	defer close(done)
	a, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	defer a.Close()
	b, err := net.Dial("tcp", to[0].String())
	if err != nil {
		t.Error(err)
		return
	}
	defer b.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(io.MultiWriter(b, up), a)
		_ = b.(*net.TCPConn).CloseWrite()
	})
	wg.Go(func() {
		_, _ = io.Copy(io.MultiWriter(a, down), b)
		_ = a.(*net.TCPConn).CloseWrite()
	})
	wg.Wait()
}

// A man in the middle who runs the exchange with each side by a guess of its own fails with both.
func TestManInTheMiddle(t *testing.T) {
	l, at := listen(t)
	code := New()
	accepted := accepting(t, code, l)
	middle, mat := listen(t)
	guess := otherCode(code)
	inner := make(chan result, 2)
	go func() {
		key, _, err := Accept(t.Context(), guess, middle)
		inner <- result{key, err}
		key, _, err = Offer(t.Context(), guess, at, nil)
		inner <- result{key, err}
	}()
	if key, _, err := Offer(t.Context(), code, mat, nil); !errors.Is(err, ErrSpent) {
		t.Errorf("the offer: %x, %v", key, err)
	}
	if got := <-accepted; !errors.Is(got.err, ErrSpent) {
		t.Errorf("the side that accepts: %x, %v", got.key, got.err)
	}
	for range 2 {
		if got := <-inner; got.key != nil || got.err == nil {
			t.Errorf("the man in the middle has %x, %v", got.key, got.err)
		}
	}
}

// Connections that do not begin the exchange spend nothing.
func TestStrangersSpendNothing(t *testing.T) {
	l, at := listen(t)
	code := New()
	accepted := accepting(t, code, l)
	for _, text := range []string{"", "GET / HTTP/1.0\r\n\r\n", string(bytes.Repeat([]byte("x"), askLen)), magic + string(make([]byte, sidLen+shareLen))} {
		c := dial(t, at)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(c) // it is closed without an answer
	}
	key, _, err := Offer(t.Context(), code, at, nil)
	if got := <-accepted; err != nil || got.err != nil || !bytes.Equal(key, got.key) {
		t.Errorf("%v; %v", err, got.err)
	}
}

// Connections that say nothing delay no exchange, and their host has no more than a few of them.
func TestSilentConnections(t *testing.T) {
	l, at := listen(t)
	code := New()
	silent := make([]net.Conn, 2*mostWaiting)
	for i := range silent {
		silent[i] = dial(t, at)
	}
	accepted := accepting(t, code, l)
	key, _, err := Offer(withLimit(t, time.Minute), code, at, nil)
	got := <-accepted
	if err != nil || got.err != nil || !bytes.Equal(key, got.key) {
		t.Fatalf("%v; %v", err, got.err)
	}
	for i, c := range silent {
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent connection %d is still open", i)
		}
	}
}

// A full room gives up the oldest connection: of the host that has too many, otherwise of all.
func TestWaitingRoom(t *testing.T) {
	var w waitingRoom
	enter := func(address string) *guest {
		c, other := net.Pipe()
		t.Cleanup(func() { _, _ = c.Close(), other.Close() })
		g := &guest{c: c, host: hostquota.HostOf(netip.MustParseAddr(address))}
		w.enter(g)
		return g
	}
	first := enter("10.0.0.1")
	var same []*guest
	for range mostOfHost + 1 {
		same = append(same, enter("10.0.0.2"))
	}
	if w.leave(same[0]) {
		t.Error("the oldest connection of a host with too many is still there")
	}
	if _, err := same[0].c.Write(nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("it is not closed: %v", err)
	}
	for i := range mostWaiting - mostOfHost {
		enter(fmt.Sprintf("10.0.1.%d", i))
	}
	if w.leave(first) {
		t.Error("the oldest connection of all is still there")
	}
	for _, g := range same[1:] {
		if !w.leave(g) {
			t.Error("a later connection is gone")
		}
	}
}

// Offer reports once that no peer answers, and once that a peer takes no more connections.
func TestOfferNotes(t *testing.T) {
	l, at := listen(t)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.Close() // nothing is answered
		}
		_ = l.Close() // and goes away
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var notes []string
	_, _, err := Offer(ctx, New(), at, func(peer netip.AddrPort, err error) {
		if notes = append(notes, err.Error()); len(notes) == 2 || peer != at[0] {
			cancel()
		}
	})
	<-closed
	if !errors.Is(err, context.Canceled) || len(notes) != 2 || !strings.Contains(notes[1], "no connections any more") {
		t.Errorf("%v, %q", err, notes)
	}
}

// Offer waits for the receiver, and both sides end with their contexts.
func TestMeetEnds(t *testing.T) {
	l, at := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Offer(withLimit(t, 500*time.Millisecond), New(), at, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	again, at := listen(t)
	if _, _, err := Accept(withLimit(t, 50*time.Millisecond), New(), again); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	done := make(chan result, 1)
	limited := withLimit(t, 200*time.Millisecond)
	go func() {
		key, _, err := Accept(limited, New(), again)
		done <- result{key, err}
	}()
	dial(t, at) // and sends nothing
	if got := <-done; !errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("got %v", got.err)
	}
}
