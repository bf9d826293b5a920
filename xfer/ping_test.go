package xfer

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestPing pings a receiver at the address of its listener. The receiver neither calls Done nor logs the request, and takes files after it.
func TestPing(t *testing.T) {
	audit.Reset()
	for name, at := range map[string]string{"loopback": "127.0.0.1:0", "every IPv4 address": "0.0.0.0:0"} {
		t.Run(name, func(t *testing.T) {
			dev := device(t, iwarp.Config{})
			var log logBuffer
			srv := serveAt(t, dev, netip.MustParseAddrPort(at), Receiver{Logger: log.logger()}, DirOptions{})
			for range 3 {
				if err := Ping(t.Context(), dev, srv.addr); err != nil {
					t.Fatal(err)
				}
			}
			to := netip.AddrPortFrom(loopback.Addr(), srv.addr.Port())
			if _, err := (&Sender{}).Send(t.Context(), dev, to, sourceOf("file", []byte("data"))); err != nil {
				t.Fatal(err)
			}
			if res, err := srv.outcome(t.Context()); err != nil || res.Name != "file" {
				t.Errorf("the first result is of %q, %v", res.Name, err)
			}
			srv.stop()
			if text := log.String(); strings.Contains(text, "no common protocol") {
				t.Errorf("the log has the pings: %s", text)
			}
		})
	}
}

// TestPingOfBusyReceiver pings a receiver whose only place is in use. The connection that has it, and names no file, keeps it.
func TestPingOfBusyReceiver(t *testing.T) {
	dev := device(t, iwarp.Config{})
	srv := serve(t, dev, Receiver{MaxConnections: 1}, DirOptions{})
	p := newRawShared(t, dev)
	p.postReceives(false)
	conn, err := verbs.Dial(p.ctx, p.qp, srv.addr, verbs.ConnParam{PrivateData: appendHello(nil, hello{fast: true, size: 1})})
	if err != nil {
		t.Fatal(err)
	}
	p.conn = conn
	for range 3 {
		if err := Ping(t.Context(), dev, srv.addr); err != nil {
			t.Error(err)
		}
	}
	if isDone(p.conn) {
		t.Error("the ping has ended the connection that had the place")
	}
}

// TestPingOfOthers pings a receiver that does not know the request, one that accepts every request, one that takes none, and an address without one.
func TestPingOfOthers(t *testing.T) {
	dev := device(t, iwarp.Config{})
	answer := func(serve func(*verbs.ConnRequest) error) netip.AddrPort {
		l := must(verbs.Listen(dev, loopback))(t)
		ended := make(chan error, 1)
		go func() {
			req, err := l.Accept(testContext(t))
			if err == nil {
				err = serve(req)
			}
			ended <- err
		}()
		t.Cleanup(func() {
			if err := errors.Join(<-ended, l.Close()); err != nil {
				t.Error(err)
			}
		})
		return l.Addr()
	}
	older := answer(func(r *verbs.ConnRequest) error {
		return r.Reject(appendRefusal(nil, errorMessageOf(failf(CodeUnsupported, "no protocol")), maxRefusal))
	})
	accepting := answer(func(r *verbs.ConnRequest) error {
		p := newRawShared(t, dev)
		conn, err := r.Accept(p.ctx, p.qp, verbs.ConnParam{})
		p.conn = conn
		return err
	})
	for name, at := range map[string]netip.AddrPort{"older": older, "accepting": accepting} {
		if err := Ping(testContext(t), dev, at); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	silent := must(verbs.Listen(dev, loopback))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Ping(ctx, dev, silent.Addr()) }()
	req := must(silent.Accept(testContext(t)))(t)
	cancel()
	if err := <-ended; !errors.Is(err, CodeCanceled) {
		t.Errorf("a receiver that does not answer: %v, want %v", err, CodeCanceled)
	}
	if err := errors.Join(req.Reject(nil), silent.Close()); err != nil {
		t.Error(err)
	}
	if err := Ping(t.Context(), dev, silent.Addr()); !errors.Is(err, CodeLost) {
		t.Errorf("an address without a receiver: %v, want %v", err, CodeLost)
	}
}
