package rmem

import (
	"cmp"
	"errors"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/internal/devicetest"
	"cinnabar/internal/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main(roles)
	goleak.VerifyTestMain(m)
}

const provider = 7

// networkEnv says over which network the tests of a re-executed test binary go.
const networkEnv = "CINNABAR_RMEM_NETWORK"

// protocol is the network of the tests: see TestOverSharedMemory.
func protocol() string { return cmp.Or(os.Getenv(networkEnv), "ofi+tcp") }

// listenOn is where engines of the tests listen.
func listenOn() string {
	if protocol() == "ofi+tcp" {
		return "ofi+tcp://127.0.0.1:0"
	}
	return protocol()
}

// byTheKernel tells that the kernel moves memory and the server is not asked, so that clients are trusted to let go of what
// is gone.
func byTheKernel() bool { return protocol() == "na+sm" }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closing(t testing.TB, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// engine makes an engine that listens on loopback.
func engine(t testing.TB) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), listenOn(), nil)
	must(t, err)
	closing(t, e)
	return e
}

// serve makes a server of remote memory.
func serve(t testing.TB, cfg Config) (*Server, *cinnabar.Engine) {
	t.Helper()
	e := engine(t)
	cfg.Provider = provider
	s, err := Serve(e, cfg)
	must(t, err)
	closing(t, s)
	return s, e
}

// dial makes a client in an engine of its own.
func dial(t testing.TB, to *cinnabar.Engine) (*Client, *cinnabar.Engine) {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), protocol(), nil)
	must(t, err)
	closing(t, e)
	return dialFrom(t, e, to), e
}

// dialFrom makes a client in engine e of the server in engine to.
func dialFrom(t testing.TB, e, to *cinnabar.Engine) *Client {
	t.Helper()
	ep, err := e.Lookup(to.Addr())
	must(t, err)
	c, err := Dial(devicetest.Context(t), ep.Provider(provider))
	must(t, err)
	closing(t, c)
	return c
}

func alloc(t testing.TB, c *Client, size int64) *Region {
	t.Helper()
	r, err := c.Alloc(devicetest.Context(t), size)
	must(t, err)
	return r
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	var e *Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// eventually waits for what nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not yet", what)
		}
	}
}
