package cinnabar

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/invariants"
	"cinnabar/internal/testproc"
	"cinnabar/verbs/auto"
)

// networkEnv names the network that the engines of tests are opened on. With autoSMPrefix before it, they have Config.AutoSM too.
const (
	networkEnv   = "CINNABAR_TEST_NETWORK"
	autoSMPrefix = "auto_sm "
	tlsEnv       = "CINNABAR_TEST_TLS" // the directory with the certificate of engines on ofi+tcps
)

// network is what engines are opened on in tests that are not about a network.
var network, withAutoSM = strings.CutPrefix(cmp.Or(os.Getenv(networkEnv), "ofi+tcp://127.0.0.1"), autoSMPrefix)

// TestMain runs the tests, or the other end of one.
func TestMain(m *testing.M) {
	testproc.Main(peers)
	goleak.VerifyTestMain(m)
}

// testLimit is how long anything in a test may take that should take no time.
const testLimit = time.Minute

// brief tells tests that repeat something at random, or with much data, to do less of it.
func brief() bool { return testing.Short() || invariants.Race }

// patient returns a context for what should be quick.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// soon waits for c, but not for long.
func soon[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	select {
	case v = <-c:
	case <-timer.C:
		t.Fatalf("%s: nothing after %v", what, testLimit)
	}
	return v
}

// listening makes an engine that listens on this host.
func listening(t testing.TB, cfg *Config) *Engine {
	t.Helper()
	e, err := Listen(t.Context(), network, withDevice(t, cfg))
	return opened(t, e, err)
}

// overVerbs reports whether engines of tests are opened on an RDMA device.
func overVerbs() bool { return needsDevice(network) }

// needsDevice reports whether an engine at addr needs an RDMA device.
func needsDevice(addr string) bool { return strings.HasPrefix(addr, "ofi+verbs") }

// withDevice is withDeviceFor the network of the tests, and turns AutoSM on if the tests are to run with it.
func withDevice(t testing.TB, cfg *Config) *Config {
	t.Helper()
	if withAutoSM {
		var c Config
		if cfg != nil {
			c = *cfg
		}
		c.AutoSM = true
		cfg = &c
	}
	return withDeviceFor(t, network, cfg)
}

// withDeviceFor returns cfg with a device in software of its own, if an engine at addr needs a device. The test closes it after the engine.
func withDeviceFor(t testing.TB, addr string, cfg *Config) *Config {
	t.Helper()
	if strings.HasPrefix(addr, "ofi+tcps") {
		c, err := withTLS(cfg)
		must(t, err)
		return c
	}
	if !needsDevice(addr) {
		return cfg
	}
	var c Config
	if cfg != nil {
		c = *cfg
	}
	dev, err := auto.Software(nil)
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	c.Device = dev
	return &c
}

// withTLS returns cfg with the certificate in the directory that tlsEnv names.
func withTLS(cfg *Config) (*Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	dir := os.Getenv(tlsEnv)
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	roots, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	return &c, nil
}

// calling makes an engine for calls.
func calling(t testing.TB, cfg *Config) *Engine {
	t.Helper()
	e, err := Open(t.Context(), network, withDevice(t, cfg))
	return opened(t, e, err)
}

func opened(t testing.TB, e *Engine, err error) *Engine {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

// reach returns the endpoint of the engine at to.
func reach(t testing.TB, from, to *Engine) *Endpoint { return find(t, from, to.Addr()) }

func find(t testing.TB, from *Engine, addr string) *Endpoint {
	t.Helper()
	ep, err := from.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// pair makes a server and the endpoint of a client that calls it.
func pair(t testing.TB, cfg *Config) (server *Engine, ep *Endpoint) {
	t.Helper()
	server = listening(t, cfg)
	return server, reach(t, calling(t, nil), server)
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The RPC of most tests.
type (
	addIn  struct{ X, Y int32 }
	addOut struct{ Sum int32 }
)

var add = NewRPC[addIn, addOut]("add")

func handleAdd(_ context.Context, in addIn) (addOut, error) { return addOut{Sum: in.X + in.Y}, nil }

// callAdd calls add and checks the sum.
func callAdd(t testing.TB, to Target) {
	t.Helper()
	out, err := add.Call(patient(t), to, addIn{X: 3, Y: 4})
	if err != nil || out.Sum != 7 {
		t.Fatalf("add = %+v, %v", out, err)
	}
}

// spawn starts the peer of that name; it ends with the test, at the latest.
func spawn(t testing.TB, role, arg string) *testproc.Process {
	t.Helper()
	return testproc.Start(t, testproc.Command{Role: role, Args: []string{arg}})
}

// peers are what other processes of tests run. Each takes one argument, and ends with its standard input at the latest.
var peers = map[string]func(args []string) error{
	"server":   peerServer,
	"tutorial": peerTutorial,
	"caller":   peerCaller,
	"fetcher":  peerFetcher,
}

// block is an RPC whose handler returns when its context ends.
var block = NewRPC[struct{}, struct{}]("block")

func handleBlock(ctx context.Context, _ struct{}) (struct{}, error) {
	<-ctx.Done()
	return struct{}{}, ctx.Err()
}

// peerServer serves add and block at the address args[0].
func peerServer(args []string) error {
	e, err := Listen(context.Background(), args[0], &Config{AllowRemoteShutdown: true})
	if err != nil {
		return err
	}
	if err := add.Handle(e, handleAdd); err != nil {
		return err
	}
	if err := block.Handle(e, handleBlock); err != nil {
		return err
	}
	return serveOn(e)
}

// serveOn prints the address of e, and serves until the test closes the input of this process or e ends.
func serveOn(e *Engine) error {
	fmt.Println(e.Addr())
	select {
	case <-testproc.InputClosed():
		return e.Close()
	case <-e.Done():
		return e.Shutdown(context.Background())
	}
}

// peerTutorial serves add and ends itself in its 16th handler.
func peerTutorial(args []string) error {
	e, err := Listen(context.Background(), args[0], nil)
	if err != nil {
		return err
	}
	if err := add.Handle(e, endAfter(e, 16)); err != nil {
		return err
	}
	return serveOn(e)
}

// openTo returns the endpoint at addr of a new engine, which lives as long as the process.
func openTo(addr string) (*Endpoint, error) {
	var cfg *Config
	if overVerbs() {
		dev, err := auto.Software(nil)
		if err != nil {
			return nil, err
		}
		cfg = &Config{Device: dev}
	}
	if strings.HasPrefix(network, "ofi+tcps") {
		var err error
		if cfg, err = withTLS(cfg); err != nil {
			return nil, err
		}
	}
	e, err := Open(context.Background(), network, cfg)
	if err != nil {
		return nil, err
	}
	return e.Lookup(addr)
}

// peerCaller calls block at the address args[0].
func peerCaller(args []string) error {
	ep, err := openTo(args[0])
	if err != nil {
		return err
	}
	fmt.Println("calling")
	_, err = block.Call(context.Background(), ep, struct{}{})
	return err
}

// large is an RPC whose response does not fit into a message.
var large = NewRPC[struct{}, largeOut]("large")

type largeOut struct {
	N    uint32
	Data []byte `proc:"count=N"`
}

// peerFetcher calls large at the address args[0].
func peerFetcher(args []string) error {
	ep, err := openTo(args[0])
	if err != nil {
		return err
	}
	fmt.Println("fetching")
	out, err := large.Call(context.Background(), ep, struct{}{})
	fmt.Println(len(out.Data))
	return err
}
