package systemd_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/identity"
	"cinnabar/internal/tlstest"
	"cinnabar/systemd"
	"cinnabar/verbs/auto"
)

// listen opens an engine, which the end of the test closes.
func listen(t *testing.T, address string, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), address, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// probe opens a Probe, which the end of the test closes.
func probe(t *testing.T, e *cinnabar.Engine) *systemd.Probe {
	t.Helper()
	p, err := systemd.NewProbe(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// wantAlive makes two checks.
func wantAlive(t *testing.T, p *systemd.Probe) {
	t.Helper()
	for range 2 {
		if err := p.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestProbe checks engines on each network.
func TestProbe(t *testing.T) {
	ca := tlstest.NewCA(t)
	tests := map[string]struct {
		address string
		cfg     cinnabar.Config
	}{
		"tcp":      {"ofi+tcp://127.0.0.1:0", cinnabar.Config{}},
		"all":      {"ofi+tcp://0.0.0.0:0", cinnabar.Config{}},
		"token":    {"ofi+tcp://", cinnabar.Config{Token: identity.NewToken()}},
		"tls":      {"ofi+tcps://127.0.0.1:0", cinnabar.Config{TLS: ca.Local(t)}},
		"expired":  {"ofi+tcps://127.0.0.1:0", cinnabar.Config{TLS: ca.Mutual(t, tlstest.Certificate{Hosts: []string{"127.0.0.1"}, Expired: true})}},
		"software": {"ofi+verbs://127.0.0.1:0", cinnabar.Config{}},
	}
	if runtime.GOOS == "linux" {
		tests["sm"] = struct {
			address string
			cfg     cinnabar.Config
		}{"na+sm://", cinnabar.Config{}}
		tests["auto"] = struct {
			address string
			cfg     cinnabar.Config
		}{"ofi+tcp://127.0.0.1:0", cinnabar.Config{AutoSM: true}}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if name == "software" {
				dev, err := auto.Software(nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { dev.Close() })
				tt.cfg.Device = dev
			}
			wantAlive(t, probe(t, listen(t, tt.address, &tt.cfg)))
		})
	}
}

// TestProbeOverNetwork checks an engine over its network: the engine counts the requests, as it would not count calls to itself.
func TestProbeOverNetwork(t *testing.T) {
	e := listen(t, "ofi+tcp://127.0.0.1:0", nil)
	p := probe(t, e)
	wantAlive(t, p)
	if n := e.Stats().RequestsRecvd; n < 2 { // an exchange about checksums may come before them
		t.Errorf("the engine has received %d requests over its network, want 2", n)
	}
}

// TestProbeBusyHandlers checks an engine with handlers that have no worker left.
func TestProbeBusyHandlers(t *testing.T) {
	e := listen(t, "ofi+tcp://127.0.0.1:0", &cinnabar.Config{MaxHandlers: 1})
	rpc := cinnabar.NewRPC[struct{}, struct{}]("busy")
	running, end := make(chan struct{}), make(chan struct{})
	if err := rpc.Handle(e, func(context.Context, struct{}) (struct{}, error) {
		close(running)
		<-end
		return struct{}{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := rpc.Call(t.Context(), e.Self(), struct{}{})
		done <- err
	}()
	<-running
	wantAlive(t, probe(t, e))
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestProbeDead checks an engine that has ended.
func TestProbeDead(t *testing.T) {
	e := listen(t, "ofi+tcp://127.0.0.1:0", nil)
	p := probe(t, e)
	wantAlive(t, p)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "does not answer calls of its own process") {
		t.Errorf("the check of a closed engine: %v", err)
	}
}

// TestProbeHung checks an address at which the kernel accepts connections, and no program reads them.
func TestProbeHung(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := listen(t, "ofi+tcp://127.0.0.1:0", &cinnabar.Config{Advertise: l.Addr().String()})
	p := probe(t, e)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Check(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the check of a silent address: %v", err)
	}
}
