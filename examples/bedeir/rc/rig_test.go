package rc

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLimit bounds a test; it is there for loops that hang.
const testLimit = 30 * time.Second

// errStop is why tests stop a loop.
var errStop = errors.New("the test is over")

// must turns a failure of the setup into the test's.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// stoppable returns a context that ends with the test's limit, and the function that ends it before.
func stoppable(t *testing.T) (context.Context, func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	ctx, stop := context.WithCancelCause(ctx)
	t.Cleanup(func() { stop(errStop); cancel() })
	return ctx, func() { stop(errStop) }
}

// openDevice opens a device that the test closes.
func openDevice(t *testing.T) *verbs.Device {
	t.Helper()
	dev := must(iwarp.Open(iwarp.Config{}))(t)
	t.Cleanup(func() { shut(t, dev) })
	return dev
}

// openFaulty opens a device on which something goes wrong.
func openFaulty(t *testing.T, rule fault.Rule) *verbs.Device {
	t.Helper()
	dev := fault.Wrap(must(iwarp.Open(iwarp.Config{}))(t), fault.Plan{Rules: []fault.Rule{rule}})
	t.Cleanup(func() { shut(t, dev) })
	return dev
}

func shut(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// initLibrary initialises a library that the test closes.
func initLibrary(t *testing.T, dev *verbs.Device, cfg Config) *Library {
	t.Helper()
	lib := must(Init(dev, cfg))(t)
	t.Cleanup(func() { shut(t, lib) })
	return lib
}

// running is a server loop in a goroutine.
type running struct {
	addr string
	stop func()
	end  chan error
}

// startServer runs a server loop on a device. Unless wait is called before, the test stops it.
func startServer(t *testing.T, dev *verbs.Device, cfg Config) *running {
	t.Helper()
	addr := make(chan netip.AddrPort, 1)
	cfg.Listening = func(a netip.AddrPort) { addr <- a }
	lib := initLibrary(t, dev, cfg)
	ctx, stop := stoppable(t)
	s := &running{stop: stop, end: make(chan error, 1)}
	go func() {
		defer close(s.end)
		s.end <- lib.ServerLoop(ctx, "127.0.0.1:0")
	}()
	t.Cleanup(func() {
		stop()
		for range s.end { // closed when the loop is over
		}
	})
	select {
	case a := <-addr:
		s.addr = a.String()
	case err := <-s.end:
		t.Fatal(err)
	}
	return s
}

// wait returns how the loop ended.
func (s *running) wait(t *testing.T) error {
	t.Helper()
	err, ok := <-s.end
	if !ok {
		t.Fatal("the server loop had ended before")
	}
	return err
}

// runClient runs a client loop with callbacks of its own.
func runClient(t *testing.T, dev *verbs.Device, addr string, cfg Config, data any) error {
	t.Helper()
	lib := must(Init(dev, cfg))(t)
	defer shut(t, lib)
	ctx, _ := stoppable(t)
	return lib.ClientLoop(ctx, addr, data)
}

// history is what callbacks did, in order.
type history struct {
	mu    sync.Mutex
	steps []string // +checklocks:mu
}

func (h *history) add(step string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, step)
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.steps, " ")
}

// capture is a log handler that hands over messages.
type capture chan slog.Record

func (capture) Enabled(context.Context, slog.Level) bool { return true }
func (c capture) Handle(_ context.Context, r slog.Record) error {
	c <- r
	return nil
}
func (c capture) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c capture) WithGroup(string) slog.Handler      { return c }

// attr returns an attribute of a log message, "" if there is none.
func attr(r slog.Record, key string) string {
	var v string
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			v = a.Value.String()
		}
		return true
	})
	return v
}

// within returns the next value of a channel.
func within[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v for %s", testLimit, what)
		panic("unreachable")
	}
}

// buffers are the regions of one end of the echo program of these tests.
type buffers struct{ in, out *verbs.MR }

const messageLen = 8

// allocBuffers registers memory and posts a receive.
func allocBuffers(c *Conn) (b buffers, err error) {
	if b.in, err = c.QP().PD().AllocMR(messageLen, verbs.LocalWrite); err != nil {
		return b, err
	}
	if b.out, err = c.QP().PD().AllocMR(messageLen, 0); err != nil {
		return b, err
	}
	return b, b.postReceive(c)
}

func (b buffers) postReceive(c *Conn) error {
	_, err := c.QP().PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{b.in.SGE(0, messageLen)}}})
	return err
}

func (b buffers) send(c *Conn, text string) error {
	copy(b.out.Bytes(), text)
	_, err := c.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{b.out.SGE(0, len(text))}}})
	return err
}

func (b buffers) close() error { return errors.Join(b.in.Close(), b.out.Close()) }
