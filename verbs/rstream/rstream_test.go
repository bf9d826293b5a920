package rstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func openDevice(t testing.TB) *verbs.Device {
	t.Helper()
	dev, err := iwarp.Open(iwarp.Config{})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	return dev
}

// pipe makes the two ends of a stream.
func pipe(dev *verbs.Device) (c1, c2 net.Conn, stop func(), err error) {
	l, err := Listen(dev, loopback)
	if err != nil {
		return nil, nil, nil, err
	}
	type accepted struct {
		c   net.Conn
		err error
	}
	got := make(chan accepted, 1)
	go func() {
		c, err := l.Accept()
		got <- accepted{c, err}
	}()
	c1, err = Dial(context.Background(), dev, netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		_ = l.Close() // the first error says it all
		<-got
		return nil, nil, nil, err
	}
	a := <-got
	err = errors.Join(a.err, l.Close())
	return c1, a.c, func() {
		_ = c1.Close() // the test may have closed them
		_ = a.c.Close()
	}, err
}

func streams(t testing.TB) (a, b *Conn) {
	t.Helper()
	c1, c2, stop, err := pipe(openDevice(t))
	must(t, err)
	t.Cleanup(stop)
	return c1.(*Conn), c2.(*Conn)
}

// TestConn is the conformance test of package net.
func TestConn(t *testing.T) {
	dev := openDevice(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) { return pipe(dev) })
}

// TestHalfClose sends an answer after the question has ended.
func TestHalfClose(t *testing.T) {
	a, b := streams(t)
	question := make([]byte, 3<<20)
	_, _ = rand.Read(question) // it never fails
	answer := make(chan error, 1)
	go func() {
		got, err := io.ReadAll(b)
		if err == nil && !bytes.Equal(got, question) {
			err = errors.New("other bytes")
		}
		_, writeErr := b.Write([]byte("got it"))
		answer <- errors.Join(err, writeErr, b.Close())
	}()
	if n, err := a.Write(question); n != len(question) || err != nil {
		t.Fatal(n, err)
	}
	must(t, a.CloseWrite())
	if _, err := a.Write([]byte("more")); err == nil {
		t.Error("written after CloseWrite")
	}
	if got, err := io.ReadAll(a); err != nil || string(got) != "got it" {
		t.Errorf("%q, %v", got, err)
	}
	must(t, <-answer)
	must(t, a.Close())
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
	if err := a.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("deadline of a closed stream: %v", err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read from a closed stream: %v", err)
	}
}

// TestPeerGone fails writes to a peer that has closed, soon.
func TestPeerGone(t *testing.T) {
	a, b := streams(t)
	must(t, b.Close())
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	must(t, a.SetDeadline(time.Now().Add(30*time.Second)))
	for {
		if _, err := a.Write([]byte("hello?")); err != nil {
			var op *net.OpError
			if !errors.As(err, &op) || op.Timeout() || !strings.Contains(err.Error(), b.LocalAddr().String()) {
				t.Error(err)
			}
			return
		}
	}
}

// TestHTTP serves web pages over it.
func TestHTTP(t *testing.T) {
	dev := openDevice(t)
	l, err := Listen(dev, loopback)
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // the client sees what is missing
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return Dial(ctx, dev, netip.MustParseAddrPort(addr))
	}}
	client := &http.Client{Transport: transport}
	for _, size := range []int{0, 10, 1 << 20} {
		body := bytes.Repeat([]byte("x"), size)
		req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, "http://"+l.Addr().String()+"/", bytes.NewReader(body))
		must(t, err)
		resp, err := client.Do(req)
		must(t, err)
		got, err := io.ReadAll(resp.Body)
		must(t, errors.Join(err, resp.Body.Close()))
		if !bytes.Equal(got, body) {
			t.Errorf("%d bytes came back of %d", len(got), size)
		}
	}
	transport.CloseIdleConnections()
	must(t, srv.Shutdown(testContext(t)))
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestListenerClose wakes Accept.
func TestListenerClose(t *testing.T) {
	l, err := Listen(openDevice(t), loopback)
	must(t, err)
	done := make(chan error)
	go func() { _, err := l.Accept(); done <- err }()
	must(t, l.Close())
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
