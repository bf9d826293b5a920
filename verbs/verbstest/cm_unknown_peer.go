package verbstest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"cinnabar/verbs"
)

// testClosedPort dials a port without a listener.
// parity: V52
func testClosedPort(t *testing.T, dev *verbs.Device) {
	ctx := testContext(t)
	l := listen(t, dev, loopback)
	addr := l.Addr()
	closeAll(t, "listener", l.Close)
	s := newSide(t, ctx, dev, PairConfig{}, false)
	_, err := verbs.Dial(ctx, s.QP, addr, verbs.ConnParam{})
	if err == nil || ctx.Err() != nil {
		t.Errorf("Dial: %v, want a refusal at once", err)
	}
}

// tcpServer accepts TCP connections and hands them to serve until the test ends.
func tcpServer(t *testing.T, serve func(c net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			serve(c)
		}
	})
	t.Cleanup(func() {
		closeAll(t, "TCP listener", l.Close)
		mu.Lock()
		for _, c := range conns {
			_ = c.Close() // the other end may have cut it already
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// testSilentPort dials a port that takes the connection and says nothing: the
// context ends the wait.
// parity: V50
func testSilentPort(t *testing.T, dev *verbs.Device) {
	addr := tcpServer(t, func(net.Conn) {})
	ctx, cancel := context.WithTimeout(testContext(t), dialTimeout)
	defer cancel()
	s := newSide(t, ctx, dev, PairConfig{}, false)
	_, err := verbs.Dial(ctx, s.QP, addr, verbs.ConnParam{})
	if err == nil {
		t.Fatal("Dial succeeded")
	}
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial: %v, want context.DeadlineExceeded", err)
	}
	if s.QP.State() == verbs.StateRTS {
		t.Error("the queue pair is in RTS")
	}
}

// testBabblingPort dials a port that answers with nonsense.
func testBabblingPort(t *testing.T, dev *verbs.Device) {
	addr := tcpServer(t, func(c net.Conn) {
		_, _ = c.Write(bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n"), 100)) // the dialler may hang up meanwhile
	})
	ctx := testContext(t)
	s := newSide(t, ctx, dev, PairConfig{}, false)
	if _, err := verbs.Dial(ctx, s.QP, addr, verbs.ConnParam{}); err == nil || ctx.Err() != nil {
		t.Errorf("Dial: %v, want a failure at once", err)
	}
}

// dialTCP reaches a listener by a plain socket, where the device listens on TCP.
func dialTCP(t *testing.T, addr netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr.String(), patience)
	if err != nil {
		t.Skipf("the device does not listen on TCP: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	return c
}

// testBabblingClient lets a stranger talk nonsense to a listener.
func testBabblingClient(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	for _, junk := range []string{"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "\x16\x03\x01\x02\x00", string(make([]byte, 4096)), ""} {
		c := dialTCP(t, l.Addr())
		_, _ = c.Write([]byte(junk)) // the listener may hang up meanwhile
		closeAll(t, "socket", c.Close)
	}
	exchange(t, dev, l, l.Addr())
}

// testSilentClient lets strangers connect and say nothing; others must not wait
// behind them.
func testSilentClient(t *testing.T, dev *verbs.Device) {
	l := listen(t, dev, loopback)
	for range 3 {
		dialTCP(t, l.Addr())
	}
	exchange(t, dev, l, l.Addr())
}
