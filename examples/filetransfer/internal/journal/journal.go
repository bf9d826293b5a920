// Package journal writes down what a program asks of a device, in order, so
// that tests can compare it with the steps of the protocol.
package journal

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"cinnabar/verbs"
	"cinnabar/verbs/driver"
)

// Journal is what was asked so far. It is safe for concurrent use.
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
	return verbs.NewDevice(&device{Device: dev.Driver(), j: j})
}

type device struct {
	driver.Device
	j *Journal
}

func (d *device) AllocPD() (driver.PD, error) {
	p, err := d.Device.AllocPD()
	return &domain{PD: p, j: d.j}, err
}

func (d *device) Dial(ctx context.Context, q driver.QP, addr netip.AddrPort, p driver.ConnParam) (driver.Conn, error) {
	d.j.add("dial")
	return d.Device.Dial(ctx, below(q), addr, p)
}

func (d *device) Listen(addr netip.AddrPort, backlog int) (driver.Listener, error) {
	l, err := d.Device.Listen(addr, backlog)
	return &listener{Listener: l, j: d.j}, err
}

type domain struct {
	driver.PD
	j *Journal
}

func (p *domain) CreateQP(init driver.QPInit) (driver.QP, error) {
	q, err := p.PD.CreateQP(init)
	return &queues{QP: q, j: p.j}, err
}

type listener struct {
	driver.Listener
	j *Journal
}

func (l *listener) Accept(ctx context.Context) (driver.ConnRequest, error) {
	r, err := l.Listener.Accept(ctx)
	return &request{ConnRequest: r, j: l.j}, err
}

type request struct {
	driver.ConnRequest
	j *Journal
}

func (r *request) Accept(ctx context.Context, q driver.QP, p driver.ConnParam) (driver.Conn, error) {
	r.j.add("accept")
	return r.ConnRequest.Accept(ctx, below(q), p)
}

type queues struct {
	driver.QP
	j *Journal
}

// below returns the queue pair of the device that is wrapped.
func below(q driver.QP) driver.QP {
	if own, ok := q.(*queues); ok {
		return own.QP
	}
	return q
}

func (q *queues) PostSend(wrs []driver.SendWR) (int, error) {
	for _, wr := range wrs {
		line := fmt.Sprintf("%v %d bytes", wr.Op, size(wr.SGL))
		if wr.Op == driver.OpWriteImm {
			line += fmt.Sprintf(", immediate %d", wr.Imm)
		}
		q.j.add("%s", line)
	}
	return q.QP.PostSend(wrs)
}

func (q *queues) PostRecv(wrs []driver.RecvWR) (int, error) {
	for _, wr := range wrs {
		q.j.add("receive %d entries, %d bytes", len(wr.SGL), size(wr.SGL))
	}
	return q.QP.PostRecv(wrs)
}

// size returns the bytes that a gather list names.
func size(sgl []driver.SGE) (n uint64) {
	for _, sge := range sgl {
		n += uint64(sge.Length)
	}
	return n
}
