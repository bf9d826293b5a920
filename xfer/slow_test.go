package xfer

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// slowDevice puts a wire before a device: what is posted to send goes one
// after another, and takes its time.
type slowDevice struct {
	verbs.DeviceDriver
	wire func(bytes int) // takes as long as so many bytes do
}

// openSlow opens a device in memory whose queue pairs send at the pace of wire.
func openSlow(wire func(bytes int)) *verbs.Device {
	return verbs.NewDevice(&slowDevice{memdev.Open(memdev.Config{}), wire})
}

func (d *slowDevice) AllocPD() (verbs.PDDriver, error) {
	pd, err := d.DeviceDriver.AllocPD()
	return &slowPD{pd, d}, err
}

func (d *slowDevice) Dial(ctx context.Context, qp verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	return d.DeviceDriver.Dial(ctx, qp.(*slowQP).QPDriver, addr, p)
}

func (d *slowDevice) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := d.DeviceDriver.Listen(addr, cfg)
	return &slowListener{l}, err
}

type slowListener struct{ verbs.ListenerDriver }

func (l *slowListener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	r, err := l.ListenerDriver.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &slowRequest{r}, nil
}

type slowRequest struct{ verbs.ConnRequestDriver }

func (r *slowRequest) Accept(ctx context.Context, qp verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	return r.ConnRequestDriver.Accept(ctx, qp.(*slowQP).QPDriver, p)
}

type slowPD struct {
	verbs.PDDriver
	dev *slowDevice
}

func (p *slowPD) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	inner, err := p.PDDriver.CreateQP(init)
	if err != nil {
		return nil, err
	}
	q := &slowQP{QPDriver: inner, dev: p.dev, queue: make(chan verbs.SendWR, 1024)}
	q.wg.Go(q.run)
	return q, nil
}

type slowQP struct {
	verbs.QPDriver
	dev   *slowDevice
	queue chan verbs.SendWR
	once  sync.Once
	wg    sync.WaitGroup
}

func (q *slowQP) run() {
	for wr := range q.queue {
		n := 0
		for _, s := range wr.SGL {
			n += int(s.Length)
		}
		q.dev.wire(n)
		_, _ = q.QPDriver.PostSend([]verbs.SendWR{wr}) // a closed connection takes nothing
	}
}

func (q *slowQP) PostSend(wrs []verbs.SendWR) (int, error) {
	for _, wr := range wrs {
		wr.SGL = append([]verbs.SGE(nil), wr.SGL...)
		q.queue <- wr
	}
	return len(wrs), nil
}

func (q *slowQP) Close() error {
	q.once.Do(func() { close(q.queue) })
	q.wg.Wait()
	return q.QPDriver.Close()
}

// slowSource is a source whose reads take their time.
type slowSource struct {
	io.ReaderAt
	disk func(bytes int)
}

func (s slowSource) ReadAt(b []byte, off int64) (int, error) {
	s.disk(len(b))
	return s.ReaderAt.ReadAt(b, off)
}

// memFile is a file in memory whose writes take their time.
type memFile struct {
	disk func(bytes int)

	mu        sync.Mutex
	data      []byte
	committed bool
	discarded bool
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.disk(len(b)) // before the data is taken: a buffer that is written to meanwhile shows
	f.mu.Lock()
	defer f.mu.Unlock()
	if need := int(off) + len(b); need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
	}
	return copy(f.data[off:], b), nil
}

func (f *memFile) Commit() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.committed = true
	return nil
}

func (f *memFile) Discard() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.discarded = true
	return nil
}

// rate makes a medium that takes per for each chunk of bytes.
func rate(per time.Duration, chunk int) func(int) {
	return func(n int) {
		if n > 1 { // not the look beyond the end
			wait(per * time.Duration(n) / time.Duration(chunk))
		}
	}
}

func instant(int) {}

// wait lets time pass, in tests whose time is virtual.
func wait(d time.Duration) { <-time.NewTimer(d).C }

// noImmediates is a device that has no write with immediate data.
type noImmediates struct{ verbs.DeviceDriver }

func (d noImmediates) Query() (verbs.DeviceAttr, error) {
	attr, err := d.DeviceDriver.Query()
	attr.Caps &^= verbs.CapWriteImm | verbs.CapSendImm
	return attr, err
}

// stopSource stops at an offset until it is let go.
type stopSource struct {
	io.ReaderAt
	at      int64
	reached chan<- struct{} // closed when a read gets there
	release <-chan struct{}
}

func (s stopSource) ReadAt(b []byte, off int64) (int, error) {
	if off == s.at {
		close(s.reached)
		<-s.release
	}
	return s.ReaderAt.ReadAt(b, off)
}
