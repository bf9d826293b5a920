package rmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
)

// childEnv has the address of the server that a re-executed test binary is a client of.
const childEnv = "CINNABAR_RMEM_CHILD"

func TestMain(m *testing.M) {
	if addr := os.Getenv(childEnv); addr != "" {
		child(addr)
		return
	}
	goleak.VerifyTestMain(m)
}

// child allocates a region without and one with a lease, tells their names, and waits to be killed.
func child(addr string) {
	e, err := cinnabar.Open(protocol(), nil)
	check(err)
	ctx := context.Background()
	ep, err := e.Lookup(ctx, addr)
	check(err)
	c, err := Dial(ctx, ep.Provider(provider))
	check(err)
	r, err := c.Alloc(ctx, 1000)
	check(err)
	leased, err := c.AllocLease(ctx, 1000, time.Hour)
	check(err)
	fmt.Println(r.Handle(), leased.Token())
	select {}
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

const provider = 7

// protocol is the network of the tests.
func protocol() string { return "ofi+tcp" }

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
	e, err := cinnabar.Listen("ofi+tcp://127.0.0.1:0", nil)
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
	e, err := cinnabar.Open(protocol(), nil)
	must(t, err)
	closing(t, e)
	ep, err := e.Lookup(testContext(t), to.Addr())
	must(t, err)
	c, err := Dial(testContext(t), ep.Provider(provider))
	must(t, err)
	closing(t, c)
	return c, e
}

func alloc(t testing.TB, c *Client, size int64) *Region {
	t.Helper()
	r, err := c.Alloc(testContext(t), size)
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
