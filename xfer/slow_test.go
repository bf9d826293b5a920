package xfer

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/driver"
	"cinnabar/verbs/verbstest/memdev"
)

// slowDevice puts a wire before a device: what is posted to send goes one
// after another, and takes its time.
type slowDevice struct {
	driver.Device
	wire func(bytes int) // takes as long as so many bytes do
}

// openSlow opens a device in memory whose queue pairs send at the pace of wire.
func openSlow(wire func(bytes int)) *verbs.Device {
	return verbs.NewDevice(&slowDevice{memdev.Open(memdev.Config{}), wire})
}

func (d *slowDevice) AllocPD() (driver.PD, error) {
	pd, err := d.Device.AllocPD()
	return &slowPD{pd, d}, err
}

func (d *slowDevice) Dial(ctx context.Context, qp driver.QP, addr netip.AddrPort, p driver.ConnParam) (driver.Conn, error) {
	return d.Device.Dial(ctx, qp.(*slowQP).QP, addr, p)
}

func (d *slowDevice) Listen(addr netip.AddrPort, backlog int) (driver.Listener, error) {
	l, err := d.Device.Listen(addr, backlog)
	return &slowListener{l}, err
}

type slowListener struct{ driver.Listener }

func (l *slowListener) Accept(ctx context.Context) (driver.ConnRequest, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &slowRequest{r}, nil
}

type slowRequest struct{ driver.ConnRequest }

func (r *slowRequest) Accept(ctx context.Context, qp driver.QP, p driver.ConnParam) (driver.Conn, error) {
	return r.ConnRequest.Accept(ctx, qp.(*slowQP).QP, p)
}

type slowPD struct {
	driver.PD
	dev *slowDevice
}

func (p *slowPD) CreateQP(init driver.QPInit) (driver.QP, error) {
	inner, err := p.PD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	q := &slowQP{QP: inner, dev: p.dev, queue: make(chan driver.SendWR, 1024)}
	q.wg.Go(q.run)
	return q, nil
}

type slowQP struct {
	driver.QP
	dev   *slowDevice
	queue chan driver.SendWR
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
		_, _ = q.QP.PostSend([]driver.SendWR{wr}) // a closed connection takes nothing
	}
}

func (q *slowQP) PostSend(wrs []driver.SendWR) (int, error) {
	for _, wr := range wrs {
		wr.SGL = append([]driver.SGE(nil), wr.SGL...)
		q.queue <- wr
	}
	return len(wrs), nil
}

func (q *slowQP) Close() error {
	q.once.Do(func() { close(q.queue) })
	q.wg.Wait()
	return q.QP.Close()
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
type noImmediates struct{ driver.Device }

func (d noImmediates) Query() (driver.DeviceAttr, error) {
	attr, err := d.Device.Query()
	attr.Caps &^= driver.CapWriteImm | driver.CapSendImm
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
