package rstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"cinnabar/internal/devicetest"
	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/verbstest/memdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func listen(dev *verbs.Device) (*Listener, error) {
	at, err := devicetest.Addr(dev)
	if err != nil {
		return nil, err
	}
	return Listen(dev, at)
}

// pipe makes the two ends of a stream.
func pipe(dev *verbs.Device) (c1, c2 net.Conn, stop func(), err error) {
	l, err := listen(dev)
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
	c1, c2, stop, err := pipe(devicetest.MustOpen(t))
	must(t, err)
	t.Cleanup(stop)
	return c1.(*Conn), c2.(*Conn)
}

// TestConn is the conformance test of package net.
// parity: V59 Y05 D39
func TestConn(t *testing.T) {
	dev := devicetest.MustOpen(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) { return pipe(dev) })
}

// TestHalfClose sends an answer after the question has ended.
// parity: V59 Y05
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
		t.Fatalf("%d bytes of %d written: %v; the other side: %v", n, len(question), err, <-answer)
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
// parity: Y05 D39 D44
func TestHTTP(t *testing.T) {
	dev := devicetest.MustOpen(t)
	l, err := listen(dev)
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
		req, err := http.NewRequestWithContext(devicetest.Context(t), http.MethodPost, "http://"+l.Addr().String()+"/", bytes.NewReader(body))
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
	must(t, srv.Shutdown(devicetest.Context(t)))
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestAcceptFailure goes on after a connection for which there was no memory.
func TestAcceptFailure(t *testing.T) {
	noMemory := fault.Rule{Match: fault.Match{At: fault.AtRegister, Queue: 1}, Do: fault.Fail(verbs.ErrLockLimit)}
	l, err := listen(fault.Wrap(devicetest.MustOpen(t), fault.Plan{Rules: []fault.Rule{noMemory}}))
	must(t, err)
	failed := make(chan error, 1)
	accepted := make(chan net.Conn, 1)
	go func() {
		_, err := l.Accept()
		failed <- err
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	dev := devicetest.MustOpen(t)
	at := netip.MustParseAddrPort(l.Addr().String())
	if c, err := Dial(devicetest.Context(t), dev, at); err == nil {
		t.Error("connected to a listener without memory")
		must(t, c.Close())
	}
	var op *net.OpError
	if err := <-failed; !errors.As(err, &op) || !op.Temporary() || !errors.Is(err, verbs.ErrLockLimit) {
		t.Errorf("accept: %v", err)
	}
	c, err := Dial(devicetest.Context(t), dev, at)
	must(t, err)
	must(t, errors.Join(c.Close(), (<-accepted).Close(), l.Close()))
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || errors.As(err, &op) && op.Temporary() {
		t.Errorf("accept after close: %v", err)
	}
}

// stalling is a device on which the first peer that connects never takes its answer, as one that has vanished.
type stalling struct {
	verbs.DeviceDriver
	stalled chan struct{} // told when one is being answered
	left    atomic.Int32  // how many more there are
}

type stallingListener struct {
	verbs.ListenerDriver
	dev *stalling
}

type stalledRequest struct {
	verbs.ConnRequestDriver
	stalled chan struct{}
}

func (d *stalling) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := d.DeviceDriver.Listen(addr, cfg)
	return &stallingListener{l, d}, err
}

func (l *stallingListener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	r, err := l.ListenerDriver.Accept(ctx)
	if err == nil && l.dev.left.Add(-1) >= 0 {
		r = &stalledRequest{r, l.dev.stalled}
	}
	return r, err
}

func (r *stalledRequest) Accept(ctx context.Context, _ verbs.QPDriver, _ verbs.ConnParam) (verbs.ConnDriver, error) {
	r.stalled <- struct{}{}
	<-ctx.Done()
	return nil, errors.Join(context.Cause(ctx), r.Reject(nil))
}

// TestVanishedPeer serves others while a peer that has asked for a stream does not take the answer.
// parity: Y05
func TestVanishedPeer(t *testing.T) {
	dev := devicetest.MustOpen(t)
	slow := &stalling{DeviceDriver: dev.Driver(), stalled: make(chan struct{})}
	slow.left.Store(1)
	l, err := listen(verbs.NewDevice(slow))
	must(t, err)
	at := netip.MustParseAddrPort(l.Addr().String())
	vanished := make(chan error, 1)
	go func() {
		_, err := Dial(devicetest.Context(t), dev, at)
		vanished <- err
	}()
	<-slow.stalled
	c1, err := Dial(devicetest.Context(t), dev, at)
	must(t, err)
	c2, err := l.Accept()
	must(t, err)
	must(t, errors.Join(l.Close(), c1.Close(), c2.Close()))
	if err := <-vanished; err == nil {
		t.Error("a stream without an answer")
	}
}

// answers is how many streams a listener sets up for one host at a time.
const answers = 36

// TestVanishedPeers gives up peers that do not take their answers, and serves the next one, however many they are.
// parity: Y05
func TestVanishedPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &stalling{DeviceDriver: memdev.Open(memdev.Config{}), stalled: make(chan struct{}, answers)}
		slow.left.Store(answers)
		dev := verbs.NewDevice(slow)
		l, err := Listen(dev, loopback)
		must(t, err)
		at := netip.MustParseAddrPort(l.Addr().String())
		begin := time.Now()
		vanished := make(chan error, answers)
		for range answers {
			go func() {
				_, err := Dial(t.Context(), dev, at)
				vanished <- err
			}()
		}
		for range answers {
			<-slow.stalled
		}
		c1, err := Dial(t.Context(), dev, at)
		must(t, err)
		c2, err := l.Accept()
		must(t, err)
		if d := time.Since(begin); d > time.Minute {
			t.Errorf("served after %v", d)
		}
		for range answers {
			if err := <-vanished; err == nil {
				t.Error("a stream without an answer")
			}
		}
		must(t, errors.Join(c1.Close(), c2.Close(), l.Close(), dev.Close()))
	})
}

// TestCloseUnaccepted ends streams that no Accept has asked for.
func TestCloseUnaccepted(t *testing.T) {
	dev := devicetest.MustOpen(t)
	l, err := listen(dev)
	must(t, err)
	c, err := Dial(devicetest.Context(t), dev, netip.MustParseAddrPort(l.Addr().String()))
	must(t, err)
	must(t, l.Close())
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("read from nobody")
	}
	must(t, c.Close())
}

// TestListenerClose wakes Accept.
func TestListenerClose(t *testing.T) {
	l, err := listen(devicetest.MustOpen(t))
	must(t, err)
	done := make(chan error)
	go func() { _, err := l.Accept(); done <- err }()
	must(t, l.Close())
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestListenWithTooLittleMemory has a listener whose limit is less than one stream holds: the error names the setting.
func TestListenWithTooLittleMemory(t *testing.T) {
	dev := devicetest.MustOpen(t)
	at, err := devicetest.Addr(dev)
	must(t, err)
	if _, err := (ListenConfig{MaxMemory: 1 << 10}).Listen(dev, at); err == nil || !strings.Contains(err.Error(), "MaxMemory") {
		t.Errorf("%v, want an error that names MaxMemory", err)
	}
}

// TestErrorSaysThingsOnce wants the operation and the address once in the errors of connecting and listening. It uses the software
// device, because the texts of other devices are the kernel's.
func TestErrorSaysThingsOnce(t *testing.T) {
	dev, err := iwarp.Open(iwarp.Config{})
	must(t, err)
	defer func() { must(t, dev.Close()) }()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := netip.MustParseAddrPort(taken.Addr().String())
	_, err = Listen(dev, addr)
	if got, want := fmt.Sprint(err), "listen rdma "+addr.String()+": bind: "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q first", got, want)
	}
	must(t, taken.Close()) // now nothing listens there
	_, err = Dial(devicetest.Context(t), dev, addr)
	if got, want := fmt.Sprint(err), "dial rdma "+addr.String()+": connect: "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q first", got, want)
	}
}
