package authz_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/authz"
	"cinnabar/codes"
	"cinnabar/identity"
	"cinnabar/internal/tlstest"
	"cinnabar/native"
	"cinnabar/verbs/auto"
	"cinnabar/verbs/iwarp"
)

// open opens an engine that serves, or one for calls.
func open(t *testing.T, addr string, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	if strings.HasPrefix(addr, "ofi+verbs") && (cfg == nil || cfg.Device == nil) {
		dev := device(t)
		c := cinnabar.Config{}
		if cfg != nil {
			c = *cfg
		}
		c.Device = dev
		cfg = &c
	}
	e, err := cinnabar.Listen(t.Context(), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// device opens an RDMA device in software.
func device(t *testing.T) *auto.Device {
	t.Helper()
	dev, err := auto.Software(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

func reach(t *testing.T, from, to *cinnabar.Engine) *cinnabar.Endpoint {
	t.Helper()
	ep, err := from.Lookup(to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// patient returns a context that ends a test which hangs.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// counted returns the number of events with a cause.
func counted(e *cinnabar.Engine, event, cause string) (n uint64) {
	for _, ev := range e.Stats().Security.Events {
		if ev.Event == event && ev.Cause == cause {
			n += ev.Count
		}
	}
	return n
}

const refusedCall = "a call that the access list does not allow"

var (
	whoami   = cinnabar.NewRPC[struct{}, string]("whoami")
	admin    = cinnabar.NewRPC[struct{}, struct{}]("admin")
	shutdown = cinnabar.NewRPC[struct{}, struct{ Ret int32 }]("__shutdown__")
	note     = cinnabar.NewOneWay[struct{}]("note")
	count    = native.NewStream[int32, int32]("count")
)

// serveAll registers the RPCs of the tests. ran counts handlers of admin and note.
func serveAll(t *testing.T, e *cinnabar.Engine, ran *atomic.Int32) {
	t.Helper()
	var health native.Health
	err := errors.Join(
		whoami.Handle(e, func(ctx context.Context, _ struct{}) (string, error) {
			return cinnabar.InfoFrom(ctx).Identity.String(), nil
		}),
		admin.HandleCall(e, func(c *cinnabar.Call[struct{}, struct{}]) { ran.Add(1); _ = c.Respond(c.Context(), struct{}{}) }),
		note.Handle(e, func(context.Context, struct{}) error { ran.Add(1); return nil }),
		count.Handle(e, func(ctx context.Context, s *native.ServerStream[int32, int32]) error {
			for n, err := range s.Receive(ctx) {
				if err != nil {
					return err
				}
				if err := s.Send(ctx, n+1); err != nil {
					return err
				}
			}
			return nil
		}),
		health.Handle(e),
	)
	if err != nil {
		t.Fatal(err)
	}
}

// secureDevice opens an RDMA device in software with TLS.
func secureDevice(t *testing.T, cfg *tls.Config) *auto.Device {
	t.Helper()
	cfg.ServerName = "127.0.0.1"
	dev, err := iwarp.Open(iwarp.Config{TLS: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return auto.Use(dev)
}

// TestGuardedEngine calls every kind of RPC of an engine with a list: plain ones, one-way ones, streams, and the built-in ones.
// parity: A02 Y06
func TestGuardedEngine(t *testing.T) {
	list, err := authz.Parse("allow addr:127.0.0.1 whoami *\nallow addr:127.0.0.1 count *\n")
	if err != nil {
		t.Fatal(err)
	}
	var ran atomic.Int32
	server := open(t, "ofi+tcp://127.0.0.1", &cinnabar.Config{Interceptors: []cinnabar.Interceptor{list.Interceptor()}, AllowRemoteShutdown: true})
	serveAll(t, server, &ran)
	client := open(t, "ofi+tcp://127.0.0.1", nil)
	ep, ctx := reach(t, client, server), patient(t)
	if got, err := whoami.Call(ctx, ep, struct{}{}); err != nil || got != "addr:127.0.0.1" {
		t.Errorf("whoami: %q, %v", got, err)
	}
	s, err := count.Open(ctx, ep)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(ctx, 6); err != nil {
		t.Error(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
	for n, err := range s.Receive(ctx) {
		if n != 7 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	denied := func(what string, err error) {
		t.Helper()
		if codes.Of(err) != codes.Permission {
			t.Errorf("%s: %v, want codes.Permission", what, err)
		}
	}
	_, err = admin.Call(ctx, ep, struct{}{})
	denied("admin", err)
	_, err = native.CheckHealth(ctx, ep, "")
	denied("health", err)
	if err == nil || !strings.Contains(err.Error(), "addr:127.0.0.1") {
		t.Errorf("health: %v, want the identity in it", err)
	}
	w, err := native.WatchHealth(ctx, ep, "store")
	if err == nil {
		err = w.Wait(ctx)
	}
	denied("watch", err)
	_, err = shutdown.Call(ctx, ep, struct{}{})
	denied("shutdown", err)
	if err := note.Send(ctx, ep, struct{}{}); err != nil {
		t.Error(err)
	}
	if _, err := whoami.Call(ctx, ep, struct{}{}); err != nil { // the server is still there, and the note has come before
		t.Error(err)
	}
	_, err = whoami.Call(ctx, server.Self(), struct{}{})
	denied("the process itself", err)
	for counted(server, "refused", refusedCall) < 6 { // because a one-way RPC has no response, the counter alone shows that the note was refused
		runtime.Gosched()
		if ctx.Err() != nil {
			break
		}
	}
	if n := counted(server, "refused", refusedCall); n != 6 || ran.Load() != 0 {
		t.Errorf("%d refusals are counted, want 6; %d handlers ran", n, ran.Load())
	}
}

// TestIdentities checks the identity of callers on each network.
// parity: A02
func TestIdentities(t *testing.T) {
	ca := tlstest.NewCA(t)
	tok := identity.NewToken()
	for _, test := range []struct {
		addr           string
		server, client *cinnabar.Config
		want           string
	}{
		{"ofi+tcp://127.0.0.1", nil, nil, "addr:127.0.0.1"},
		{"ofi+verbs://127.0.0.1", nil, nil, "addr:127.0.0.1"},
		{"ofi+verbs://127.0.0.1", &cinnabar.Config{Device: secureDevice(t, ca.Local(t))}, &cinnabar.Config{Device: secureDevice(t, ca.Mutual(t, tlstest.Certificate{Name: "anna"}))}, "subject:CN=anna addr:127.0.0.1"},
		{"ofi+tcp://127.0.0.1", &cinnabar.Config{Token: tok}, &cinnabar.Config{Token: tok}, "addr:127.0.0.1 token"},
		{"ofi+tcps://127.0.0.1", &cinnabar.Config{TLS: ca.Local(t)}, &cinnabar.Config{TLS: ca.Mutual(t, tlstest.Certificate{Name: "anna", Hosts: []string{"127.0.0.1"}})}, "subject:CN=anna IP:127.0.0.1 addr:127.0.0.1"},
		{"na+sm", nil, nil, fmt.Sprintf("uid:%d (process %d)", os.Getuid(), os.Getpid())},
		{"na+sm", &cinnabar.Config{Interceptors: []cinnabar.Interceptor{pass}, Admit: admitUser}, nil, fmt.Sprintf("uid:%d (process %d)", os.Getuid(), os.Getpid())},
	} {
		if test.addr == "na+sm" && runtime.GOOS != "linux" {
			continue // na+sm is on Linux alone
		}
		server := open(t, test.addr, test.server)
		serveAll(t, server, new(atomic.Int32))
		client := open(t, test.addr, test.client)
		serveAll(t, client, new(atomic.Int32))
		if got, err := whoami.Call(patient(t), reach(t, client, server), struct{}{}); err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.addr, got, err, test.want)
		}
		if got, err := whoami.Call(patient(t), server.Self(), struct{}{}); err != nil || got != "self" {
			t.Errorf("%s: %q, %v of itself", test.addr, got, err)
		}
	}
	if zero := cinnabar.InfoFrom(t.Context()).Identity; zero.Kind != identity.Unknown {
		t.Errorf("outside handlers: %v", zero)
	}
}

func pass(ctx context.Context, _ *cinnabar.CallInfo, next func(context.Context) error) error {
	return next(ctx)
}

// admitUser admits processes of this process's user.
func admitUser(_ context.Context, p identity.Peer) error {
	if p.Kind != identity.Process || int(p.UID) != os.Getuid() {
		return fmt.Errorf("%v is not of user %d", p, os.Getuid())
	}
	return nil
}

// TestAdmitRefuses checks that Config.Admit refuses peers on each network, that a panic refuses too, and that each refusal is counted once.
// parity: A02 D37
func TestAdmitRefuses(t *testing.T) {
	causes := map[string]string{"ofi+tcp://127.0.0.1": "a peer that Config.Admit does not admit", "ofi+verbs://127.0.0.1": "a peer that Config.Admit does not admit", "na+sm": "a client that Config.Admit does not admit"}
	if runtime.GOOS != "linux" {
		delete(causes, "na+sm")
	}
	for addr, cause := range causes {
		var asked atomic.Int32
		server := open(t, addr, &cinnabar.Config{Admit: func(context.Context, identity.Peer) error {
			if asked.Add(1) == 1 {
				return errors.New("closed on Sundays")
			}
			panic("no rule for other days")
		}, Logger: discard()})
		serveAll(t, server, new(atomic.Int32))
		for n := range uint64(2) {
			client := open(t, addr, nil)
			_, err := whoami.Call(patient(t), reach(t, client, server), struct{}{})
			if codes.Of(err) != codes.HostUnreach {
				t.Errorf("%s: %v", addr, err)
			}
			if got := counted(server, "refused", cause); got != n+1 {
				t.Errorf("%s: %d refusals are counted, want %d", addr, got, n+1)
			}
		}
		if got, err := whoami.Call(patient(t), server.Self(), struct{}{}); err != nil || got != "self" {
			t.Errorf("%s: %q, %v of itself", addr, got, err)
		}
	}
}

// TestSettings checks that a token, or a function for dials, is an error where it has no effect, because the program wants its protection.
func TestSettings(t *testing.T) {
	tok := identity.NewToken()
	dial := func() (*tls.Config, error) { return nil, errors.New("not called") }
	for _, test := range []struct {
		addr, want string
		cfg        cinnabar.Config
	}{
		{"na+sm", "Token is set", cinnabar.Config{Token: tok}},
		{"ofi+tcp://127.0.0.1", "Token is set", cinnabar.Config{Token: tok, AutoSM: true}},
		{"ofi+verbs://127.0.0.1", "Token is set", cinnabar.Config{Token: tok, Device: device(t)}},
		{"na+sm", "TLS is set", cinnabar.Config{DialTLS: dial}},
		{"ofi+tcp://127.0.0.1", "Config.TLS is set", cinnabar.Config{DialTLS: dial}},
	} {
		e, err := cinnabar.Listen(t.Context(), test.addr, &test.cfg)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.addr, err, test.want)
		}
		if e != nil {
			_ = e.Close()
		}
	}
}

// TestCertificatesOfEngine reloads the certificates of two engines. Connections that live go on, and a client with a certificate of the
// authority that was replaced is refused.
// parity: Y06
func TestCertificatesOfEngine(t *testing.T) {
	old, renewed := tlstest.NewCA(t), tlstest.NewCA(t)
	local := tlstest.Certificate{Name: "local", Hosts: []string{"127.0.0.1"}}
	dir := t.TempDir()
	cert, key, roots := old.Write(t, dir, old.Issue(t, local))
	certs, err := identity.LoadCertificates(identity.Files{Certificate: cert, Key: key, Authorities: roots})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &cinnabar.Config{TLS: certs.Config(), DialTLS: certs.Dial}
	server, client := open(t, "ofi+tcps://127.0.0.1", cfg), open(t, "ofi+tcps://127.0.0.1", cfg)
	serveAll(t, server, new(atomic.Int32))
	call := func(from *cinnabar.Engine) error {
		_, err := whoami.Call(patient(t), reach(t, from, server), struct{}{})
		return err
	}
	if err := call(client); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(cert)), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := certs.Reload(); err == nil {
		t.Error("nonsense is a certificate")
	}
	stale := &cinnabar.Config{TLS: old.Mutual(t, local)}
	if err := call(open(t, "ofi+tcps://127.0.0.1", stale)); err != nil {
		t.Errorf("before the reload: %v", err)
	}
	renewed.Write(t, dir, renewed.Issue(t, local))
	if err := certs.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := call(client); err != nil {
		t.Errorf("the connection that lives: %v", err)
	}
	stale.TLS.RootCAs = renewed.Pool() // it trusts the server, and its own certificate is not accepted any more
	if err := call(open(t, "ofi+tcps://127.0.0.1", stale)); codes.Of(err) != codes.HostUnreach {
		t.Errorf("the authority that was replaced: %v", err)
	}
	for counted(server, "refused", "TLS handshake that failed") == 0 && patient(t).Err() == nil {
		runtime.Gosched()
	}
	if n := counted(server, "refused", "TLS handshake that failed"); n != 1 {
		t.Errorf("%d refusals are counted, want 1", n)
	}
	if err := call(open(t, "ofi+tcps://127.0.0.1", cfg)); err != nil {
		t.Errorf("after the reload: %v", err)
	}
}
