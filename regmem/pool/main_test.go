package pool

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errMade     = errors.New("no memory")
	errRecycled = errors.New("already closed")
	errClosing  = errors.New("still bound")
)

// device makes buffers and counts those that are open. Its fields may be set while no method of the pool runs.
type device struct {
	open      atomic.Int64
	made      atomic.Int64
	failMake  atomic.Bool
	failClose bool
	failReuse bool
	slowReuse time.Duration // in a bubble of testing/synctest
	slowClose time.Duration
	ended     chan struct{}
}

// plain is a buffer of a device that users get again as it is.
type plain struct {
	of     *device
	closed atomic.Bool
	users  atomic.Int32
}

func (d *device) make() (*plain, error) {
	if d.failMake.Load() {
		return nil, errMade
	}
	d.open.Add(1)
	d.made.Add(1)
	return &plain{of: d}, nil
}

func (b *plain) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	time.Sleep(b.of.slowClose) //nolint:forbidigo // simulated time
	b.of.open.Add(-1)
	if b.of.failClose {
		return errClosing
	}
	return nil
}

// reused is a buffer that is a new one for each user.
type reused struct {
	*plain
	gone atomic.Bool // recycled or closed
}

func (d *device) makeReused() (*reused, error) {
	p, err := d.make()
	if err != nil {
		return nil, err
	}
	return &reused{plain: p}, nil
}

func (b *reused) Recycle() (*reused, error) {
	if b.gone.Swap(true) || b.of.failReuse {
		return nil, errRecycled
	}
	time.Sleep(b.of.slowReuse) //nolint:forbidigo // simulated time
	return &reused{plain: b.plain}, nil
}

func (b *reused) Close() error {
	if b.gone.Swap(true) && !b.of.failReuse {
		return nil
	}
	return b.plain.Close()
}

// ending is a buffer whose device may end.
type ending struct{ *plain }

func (b ending) Done() <-chan struct{} { return b.of.ended }

func (d *device) makeEnding() (ending, error) {
	p, err := d.make()
	return ending{p}, err
}

// wantOpen checks the number of buffers that are open.
func (d *device) wantOpen(t testing.TB, n int64) {
	t.Helper()
	if got := d.open.Load(); got != n {
		t.Errorf("%d buffers are open, want %d", got, n)
	}
}

func newTestPool[B Buffer](t testing.TB, n int, maker func() (B, error)) *Pool[B] {
	t.Helper()
	p, err := New(n, maker)
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("error %v, want %v", err, target)
	}
}

// take gets a buffer that must be free.
func take[B Buffer](t testing.TB, p *Pool[B]) B {
	t.Helper()
	b, err := p.TryGet()
	must(t, err)
	return b
}

// results collects the errors of goroutines.
type results struct {
	mu   sync.Mutex
	errs []error
}

func (r *results) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *results) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errs
}
