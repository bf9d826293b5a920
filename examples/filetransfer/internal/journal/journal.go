// Package journal records the requests of a program to a device, in order, so
// that tests can compare it with the steps of the protocol.
package journal

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"cinnabar/verbs"
)

// Journal has the requests so far. It is safe for concurrent use.
type Journal struct {
	mu    sync.Mutex
	lines []string // +checklocks:mu
}

// String returns the requests, a line for each: posts with their sizes, and the
// calls that connect.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

func (j *Journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// Wrap returns a device that keeps the journal. It takes the place of dev, which
// is closed with it.
func (j *Journal) Wrap(dev *verbs.Device) *verbs.Device {
	return verbs.NewDevice(&device{DeviceDriver: dev.Driver(), j: j})
}

type device struct {
	verbs.DeviceDriver
	j *Journal
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p, err := d.DeviceDriver.AllocPD()
	return &domain{PDDriver: p, j: d.j}, err
}

func (d *device) Dial(ctx context.Context, q verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	d.j.add("dial")
	return d.DeviceDriver.Dial(ctx, below(q), addr, p)
}

func (d *device) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := d.DeviceDriver.Listen(addr, cfg)
	return &listener{ListenerDriver: l, j: d.j}, err
}

type domain struct {
	verbs.PDDriver
	j *Journal
}

func (p *domain) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	q, err := p.PDDriver.CreateQP(init)
	return &queues{QPDriver: q, j: p.j}, err
}

type listener struct {
	verbs.ListenerDriver
	j *Journal
}

func (l *listener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	r, err := l.ListenerDriver.Accept(ctx)
	return &request{ConnRequestDriver: r, j: l.j}, err
}

type request struct {
	verbs.ConnRequestDriver
	j *Journal
}

func (r *request) Accept(ctx context.Context, q verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	r.j.add("accept")
	return r.ConnRequestDriver.Accept(ctx, below(q), p)
}

type queues struct {
	verbs.QPDriver
	j *Journal
}

// below returns the queue pair of the device that is wrapped.
func below(q verbs.QPDriver) verbs.QPDriver {
	if own, ok := q.(*queues); ok {
		return own.QPDriver
	}
	return q
}

func (q *queues) PostSend(wrs []verbs.SendWR) (int, error) {
	for _, wr := range wrs {
		line := fmt.Sprintf("%v %d bytes", wr.Op, size(wr.SGL))
		if wr.Op == verbs.OpWriteImm {
			line += fmt.Sprintf(", immediate %d", wr.Imm)
		}
		q.j.add("%s", line)
	}
	return q.QPDriver.PostSend(wrs)
}

func (q *queues) PostRecv(wrs []verbs.RecvWR) (int, error) {
	for _, wr := range wrs {
		q.j.add("receive %d entries, %d bytes", len(wr.SGL), size(wr.SGL))
	}
	return q.QPDriver.PostRecv(wrs)
}

// size returns the bytes that a gather list names.
func size(sgl []verbs.SGE) (n uint64) {
	for _, sge := range sgl {
		n += uint64(sge.Length)
	}
	return n
}
