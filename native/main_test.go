package native_test

import (
	"context"
	"crypto/tls"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/internal/testproc"
	"cinnabar/internal/tlstest"
	"cinnabar/verbs/auto"
)

// TestMain runs the tests, or the other end of one, and checks that the tests leave no goroutine behind.
func TestMain(m *testing.M) {
	testproc.Main(peers)
	goleak.VerifyTestMain(m)
}

// testLimit is the longest time for anything in a test that should take no time.
const testLimit = time.Minute

// patient returns a context for calls that should be quick.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// soon waits for a value of c.
func soon[T any](t testing.TB, event string, c <-chan T) (v T) {
	t.Helper()
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	select {
	case v = <-c:
	case <-timer.C:
		t.Fatalf("%s: nothing after %v", event, testLimit)
	}
	return v
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check is must for handlers, which run on goroutines of their own.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

const tcp = "ofi+tcp://127.0.0.1"

const tcps = "ofi+tcps://127.0.0.1"

// onNetworks runs a test over each network without TLS.
func onNetworks(t *testing.T, test func(t *testing.T, network string)) {
	onEach(t, []string{tcp, "na+sm://", "ofi+verbs://127.0.0.1"}, test)
}

// onAllNetworks runs a test over each network.
func onAllNetworks(t *testing.T, test func(t *testing.T, network string)) {
	onEach(t, []string{tcp, tcps, "na+sm://", "ofi+verbs://127.0.0.1"}, test)
}

func onEach(t *testing.T, networks []string, test func(t *testing.T, network string)) {
	for _, network := range networks {
		t.Run(network[:indexOf(network)], func(t *testing.T) {
			if network == "na+sm://" && runtime.GOOS != "linux" {
				t.Skip("na+sm is for Linux")
			}
			test(t, network)
		})
	}
}

// indexOf returns the end of the protocol in an address.
func indexOf(network string) int {
	for i := range network {
		if network[i] == ':' {
			return i
		}
	}
	return len(network)
}

// localTLS is the configuration of all engines on ofi+tcps, made by the first test that needs it.
var localTLS *tls.Config

// withNeeds returns cfg with a software device of its own, if the network needs one, or with TLS. The test closes the device after the engine.
func withNeeds(t testing.TB, network string, cfg *cinnabar.Config) *cinnabar.Config {
	t.Helper()
	var c cinnabar.Config
	if cfg != nil {
		c = *cfg
	}
	switch network[:indexOf(network)] {
	case "ofi+tcps":
		if localTLS == nil {
			localTLS = tlstest.NewCA(t).Local(t)
		}
		c.TLS = localTLS
	case "ofi+verbs":
		dev, err := auto.Software(nil)
		must(t, err)
		t.Cleanup(func() { must(t, dev.Close()) })
		c.Device = dev
	default:
		return cfg
	}
	return &c
}

// listen opens an engine that listens.
func listen(t testing.TB, network string, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), network, withNeeds(t, network, cfg))
	return opened(t, e, err)
}

// open opens an engine for calls.
func open(t testing.TB, network string, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), network, withNeeds(t, network, cfg))
	return opened(t, e, err)
}

func opened(t testing.TB, e *cinnabar.Engine, err error) *cinnabar.Engine {
	t.Helper()
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// find returns the endpoint of to for calls of from.
func find(t testing.TB, from, to *cinnabar.Engine) *cinnabar.Endpoint {
	t.Helper()
	ep, err := from.Lookup(to.Addr())
	must(t, err)
	return ep
}

// pair opens a server and a client, and returns the server and its endpoint for calls of the client.
func pair(t testing.TB, network string, server, client *cinnabar.Config) (*cinnabar.Engine, *cinnabar.Endpoint) {
	t.Helper()
	s := listen(t, network, server)
	return s, find(t, open(t, network, client), s)
}
