package balance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLimit is the longest time for anything in a test that should take no time.
const testLimit = time.Minute

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	if codes.Of(err) != code {
		t.Fatalf("error %v, want code %v", err, code)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not contain %q", err, s)
		}
	}
}

// fakes are servers without a network. Each has an engine's endpoint as its target, so that an attempt knows the server.
type fakes struct {
	client  *Client
	names   map[*cinnabar.Endpoint]string
	reports map[string]func(native.Serving)
	watches map[string]int
	failing map[string]error // of the next watches
	ends    map[string]chan error
}

// newFakes returns a Client for servers without a network, in a bubble of synctest. The reports come from the test.
func newFakes(t *testing.T, cfg Config) (*Client, *fakes) {
	t.Helper()
	f := &fakes{
		names: map[*cinnabar.Endpoint]string{}, reports: map[string]func(native.Serving){}, watches: map[string]int{},
		failing: map[string]error{}, ends: map[string]chan error{},
	}
	c, err := newClient(&cfg)
	must(t, err)
	f.client = c
	c.lookup = func(addr string) (*cinnabar.Endpoint, error) {
		if addr == "bad" {
			return nil, errors.New("no address")
		}
		ep := new(cinnabar.Endpoint)
		f.names[ep] = addr
		return ep, nil
	}
	c.watch = func(ctx context.Context, to cinnabar.Target, _ string, report func(native.Serving)) error {
		c.mu.Lock()
		name := f.names[to.(*cinnabar.Endpoint)]
		f.watches[name]++
		err, end := f.failing[name], make(chan error, 1)
		f.reports[name], f.ends[name] = report, end
		c.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case err = <-end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.wg.Go(c.run)
	t.Cleanup(func() { must(t, c.Close()) })
	synctest.Wait()
	return c, f
}

// set changes the state of servers.
func (f *fakes) set(st native.Serving, names ...string) {
	for _, n := range names {
		f.reports[n](st)
	}
}

// pick picks a server, and ends its call with err.
func pick(t *testing.T, c *Client, f *fakes, err error) string {
	t.Helper()
	to, done, pickErr := c.Pick(t.Context())
	must(t, pickErr)
	done(err)
	return f.names[to.(*cinnabar.Endpoint)]
}

// elapse lets the time of the bubble pass.
func elapse(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
	synctest.Wait()
}

// fail makes the next watches of a server fail, or succeed again.
func (f *fakes) fail(name string, err error) {
	f.client.mu.Lock()
	defer f.client.mu.Unlock()
	f.failing[name] = err
}

// resolver is a list of servers that tests change.
type resolver struct {
	mu    sync.Mutex
	times []time.Time // of the queries
	list  []Address
	err   error
}

func (r *resolver) Resolve(context.Context) ([]Address, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, time.Now())
	return r.list, r.err
}

// change changes the answer.
func (r *resolver) change(list []Address, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.err = list, err
}

// queries returns the times of the queries.
func (r *resolver) queries() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.times)
}

func remote(code codes.Code, cause error) error {
	return &cinnabar.Error{Op: "call", Code: code, Remote: true, Err: cause}
}

var lost = &cinnabar.Error{Op: "call", Code: codes.HostUnreach, Err: errors.New("connection lost")}

// script makes a function for attempts that returns the errors one after the other, and records the servers.
func script(f *fakes, used *[]string, errs ...error) func(context.Context, cinnabar.Target) (int, error) {
	return func(_ context.Context, to cinnabar.Target) (int, error) {
		n := len(*used)
		*used = append(*used, f.names[to.(*cinnabar.Endpoint)])
		if n < len(errs) && errs[n] != nil {
			return 0, errs[n]
		}
		return n + 1, nil
	}
}

func fmtUsed(used []string) string { return fmt.Sprint(used) }
