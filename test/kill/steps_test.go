//go:build unix

package kill

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// steps counts what a process does and ends it at one of them.
type steps struct {
	n     atomic.Int64
	fatal int64         // the number of the last step, from 1; 0: none
	cont  chan struct{} // stop instead of dying, until this is closed; nil: die
}

// newSteps makes the fatal step fatal for the process, or the end of its moving
// until it gets SIGCONT.
func newSteps(fatal int64, stop bool) *steps {
	s := &steps{fatal: fatal}
	if stop {
		s.cont = make(chan struct{})
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGCONT)
		go func() { // ends with the process at the latest
			<-signals
			close(s.cont)
		}()
	}
	return s
}

// at is called with every step. It does not return from the fatal one before the
// process is to go on, nor from those behind it: other threads may run for
// a moment after a signal was sent. Whoever started the process learns the step's
// name before.
func (s *steps) at(format string, args ...any) {
	n := s.n.Add(1)
	if s.fatal == 0 || n < s.fatal {
		return
	}
	fate := syscall.SIGKILL
	if s.cont != nil {
		fate = syscall.SIGSTOP
	}
	if n == s.fatal {
		say("%s %s", wordStep, fmt.Sprintf(format, args...))
		if err := syscall.Kill(os.Getpid(), fate); err != nil {
			panic(err) // a process may signal itself
		}
	}
	<-s.cont // nil blocks for ever: the process is dead
}

// device opens the software device, counted.
func (s *steps) device(noImmediates bool) (*verbs.Device, error) {
	dev, err := iwarp.Open(iwarp.Config{NoImmediates: noImmediates})
	if err != nil {
		return nil, err
	}
	return verbs.NewDevice(&device{dev.Driver(), s}), nil
}

// device counts the steps of the objects that are made through it.
type device struct {
	verbs.DeviceDriver
	s *steps
}

func (d *device) CreateCQ(depth int, context any) (verbs.CQDriver, error) {
	c, err := d.DeviceDriver.CreateCQ(depth, context)
	return &cq{c, d.s}, err
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p, err := d.DeviceDriver.AllocPD()
	return &pd{p, d.s}, err
}

func (d *device) Listen(addr netip.AddrPort, cfg verbs.ListenConfig) (verbs.ListenerDriver, error) {
	l, err := d.DeviceDriver.Listen(addr, cfg)
	return &listener{l, d.s}, err
}

func (d *device) Dial(ctx context.Context, q verbs.QPDriver, addr netip.AddrPort, p verbs.ConnParam) (verbs.ConnDriver, error) {
	d.s.at("before dialling")
	c, err := d.DeviceDriver.Dial(ctx, q.(*qp).QPDriver, addr, p)
	if err != nil {
		return nil, err
	}
	say("%s %s", wordConnected, c.LocalAddr())
	d.s.at("after dialling")
	return &conn{c, d.s}, nil
}

type cq struct {
	verbs.CQDriver
	s *steps
}

func (c *cq) Poll(wc []verbs.WC) (int, error) {
	n, err := c.CQDriver.Poll(wc)
	for i := range n {
		c.s.at("completion of %s, %s", wc[i].Op, wc[i].Status)
	}
	return n, err
}

type pd struct {
	verbs.PDDriver
	s *steps
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QPDriver, error) {
	init.SendCQ, init.RecvCQ = init.SendCQ.(*cq).CQDriver, init.RecvCQ.(*cq).CQDriver
	q, err := p.PDDriver.CreateQP(init)
	return &qp{q, p.s}, err
}

type qp struct {
	verbs.QPDriver
	s *steps
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.s.at("before posting %s", wrs[0].Op)
	n, err := q.QPDriver.PostSend(wrs)
	q.s.at("after posting %s", wrs[0].Op)
	return n, err
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.s.at("before posting a receive")
	return q.QPDriver.PostRecv(wrs)
}

type listener struct {
	verbs.ListenerDriver
	s *steps
}

func (l *listener) Accept(ctx context.Context) (verbs.ConnRequestDriver, error) {
	r, err := l.ListenerDriver.Accept(ctx)
	if err != nil {
		return nil, err
	}
	l.s.at("connection request")
	return &request{r, l.s}, nil
}

type request struct {
	verbs.ConnRequestDriver
	s *steps
}

func (r *request) Accept(ctx context.Context, q verbs.QPDriver, p verbs.ConnParam) (verbs.ConnDriver, error) {
	r.s.at("before accepting")
	c, err := r.ConnRequestDriver.Accept(ctx, q.(*qp).QPDriver, p)
	if err != nil {
		return nil, err
	}
	r.s.at("after accepting")
	return &conn{c, r.s}, nil
}

type conn struct {
	verbs.ConnDriver
	s *steps
}

func (c *conn) Disconnect(ctx context.Context) error {
	c.s.at("before disconnecting")
	return c.ConnDriver.Disconnect(ctx)
}

// source counts the reads of the sender's file.
type source struct {
	io.ReaderAt
	s *steps
}

func (f source) ReadAt(b []byte, off int64) (int, error) {
	f.s.at("before reading at %d", off)
	return f.ReaderAt.ReadAt(b, off)
}

// target counts the writes to the receiver's file and its end.
type target struct {
	xfer.File
	s *steps
}

func (f target) WriteAt(b []byte, off int64) (int, error) {
	f.s.at("before storing at %d", off)
	n, err := f.File.WriteAt(b, off)
	f.s.at("after storing at %d", off)
	return n, err
}

func (f target) Commit() error {
	f.s.at("before the file gets its name")
	err := f.File.Commit()
	f.s.at("after the file has its name")
	return err
}
