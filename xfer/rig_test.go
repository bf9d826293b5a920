package xfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/audit"
	"cinnabar/internal/leaktest"
	"cinnabar/internal/logtest"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// TestMain fails the package if a goroutine, a mapping or a descriptor is left behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(leaktest.Exit)) }

// must turns a result and an error into the result.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// testContext ends a test that hangs.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// device opens a software device that is closed with the test.
func device(t testing.TB, cfg iwarp.Config) *verbs.Device {
	t.Helper()
	dev := must(iwarp.Open(cfg))(t)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// noise is size bytes that no chunk of has twice.
func noise(size int) []byte {
	b := make([]byte, size)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}

func sourceOf(name string, data []byte) Source {
	return Source{Name: name, Data: bytes.NewReader(data), Size: int64(len(data))}
}

// server is a receiver that serves a directory of the test.
type server struct {
	t      testing.TB
	addr   netip.AddrPort
	path   string
	cancel func() // ends the context of Serve
	stop   func() // does that, and waits for Serve

	mu      sync.Mutex
	results []Result
	errs    []error
	told    chan struct{} // capacity for all
}

// serve starts a server on dev. It ends with the test, which fails if the
// server has left anything but whole files, or fails itself.
func serve(t testing.TB, dev *verbs.Device, r Receiver, opt DirOptions) *server {
	t.Helper()
	return serveAt(t, dev, loopback, r, opt)
}

// serveAt is serve at an address.
func serveAt(t testing.TB, dev *verbs.Device, at netip.AddrPort, r Receiver, opt DirOptions) *server {
	t.Helper()
	s := &server{t: t, path: t.TempDir(), told: make(chan struct{}, 1024)}
	dir := must(OpenDir(t.Context(), s.path, opt))(t)
	if r.Open == nil {
		r.Open = dir.Open
	}
	r.Done = func(res Result, err error) {
		s.mu.Lock()
		s.results, s.errs = append(s.results, res), append(s.errs, err)
		s.mu.Unlock()
		s.told <- struct{}{}
	}
	l := must(verbs.Listen(dev, at))(t)
	s.addr = l.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, l) }()
	s.cancel = cancel
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ended, l.Close(), dir.Close()); err != nil {
			t.Error(err)
		}
		if !opt.KeepPartial {
			s.noPartial()
		}
	})
	t.Cleanup(s.stop)
	return s
}

// noPartial checks that no incomplete file is left.
func (s *server) noPartial() {
	s.t.Helper()
	for _, name := range s.names() {
		if strings.HasSuffix(name, tempSuffix) {
			s.t.Errorf("%s is left behind", name)
		}
	}
}

// names lists the directory.
func (s *server) names() []string {
	s.t.Helper()
	var names []string
	for _, e := range must(os.ReadDir(s.path))(s.t) {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// outcome waits until the server has told of one more request.
func (s *server) outcome(ctx context.Context) (Result, error) {
	s.t.Helper()
	select {
	case <-s.told:
	case <-ctx.Done():
		s.t.Fatal("the server tells nothing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	res, err := s.results[0], s.errs[0]
	s.results, s.errs = s.results[1:], s.errs[1:]
	return res, err
}

// wantFile checks the content of a received file.
func (s *server) wantFile(name string, data []byte) {
	s.t.Helper()
	got, err := os.ReadFile(filepath.Join(s.path, name))
	if err != nil {
		s.t.Error(err)
		return
	}
	if sha256.Sum256(got) != sha256.Sum256(data) {
		s.t.Errorf("%s has %d bytes that differ from the %d sent", name, len(got), len(data))
	}
}

// wantCode checks that err is an *Error with a code, a side and all of texts.
func wantCode(t testing.TB, err error, code Code, remote bool, texts ...string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != code || e.Remote != remote || !errors.Is(err, code) {
		t.Errorf("got %v (%T), want code %q, remote %v", err, err, code, remote)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("got %q, want it to say %q", err, s)
		}
	}
}

// logBuffer keeps the lines of a log.
type logBuffer struct{ logtest.Buffer }

func (l *logBuffer) logger() *slog.Logger {
	audit.Reset() // lines about this host that other tests have provoked suppress none of this test's
	return slog.New(slog.NewTextHandler(l, nil))
}

// wantText checks that s has all of texts.
func wantText(t testing.TB, s string, texts ...string) {
	t.Helper()
	for _, want := range texts {
		if !strings.Contains(s, want) {
			t.Errorf("got %q, want it to have %q", s, want)
		}
	}
}

// needsLocks skips a test of parts and stale files where files cannot be locked, because a Dir keeps and removes none there.
func needsLocks(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("transfers resume where files can be locked: on Linux and macOS")
	}
}
