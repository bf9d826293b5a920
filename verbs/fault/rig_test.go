package fault_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest/memdev"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a faulty device with connected pairs of queue pairs. Queue pairs 1, 3,
// 5, ... dial and 2, 4, 6, ... accept. They share one completion queue per side.
type rig struct {
	t        *testing.T
	ctx      context.Context
	in       *fault.Injector
	dev      *verbs.Device
	pd       *verbs.PD
	mr       *verbs.MR
	cq       [2]*verbs.CQ // of the dialling and of the accepting side
	qps      []*verbs.QP
	lis      *verbs.Listener
	finished []func() error
}

const rigMemory = 4096 // bytes; the accepting side uses the upper half

// newRig opens a device under rules and connects n pairs.
func newRig(t *testing.T, n int, seed uint64, rules ...fault.Rule) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	in, err := fault.New(fault.Plan{Seed: seed, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: ctx, in: in, dev: in.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})))}
	t.Cleanup(r.close)
	r.keep(r.dev.Close)
	r.pd = must(r.dev.AllocPD())(t)
	r.keep(r.pd.Close)
	r.mr = must(r.pd.AllocMR(rigMemory, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic))(t)
	r.keep(r.mr.Close)
	for i := range r.cq {
		r.cq[i] = must(r.dev.CreateCQ(1024))(t)
		r.keep(r.cq[i].Close)
	}
	r.lis = must(verbs.Listen(r.dev, netip.MustParseAddrPort("127.0.0.1:0")))(t)
	r.keep(r.lis.Close)
	for range n {
		a, b := r.newQP(0, nil), r.newQP(1, nil)
		if err := r.connect(a, b); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// must turns a result and an error into the result.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (r *rig) keep(f func() error) { r.finished = append(r.finished, f) }

func (r *rig) close() {
	for i := range r.finished {
		if err := r.finished[len(r.finished)-1-i](); err != nil {
			r.t.Errorf("close: %v", err)
		}
	}
}

func (r *rig) newQP(side int, srq *verbs.SRQ) *verbs.QP {
	r.t.Helper()
	qp := must(r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq[side], SRQ: srq, MaxInline: 64}))(r.t)
	r.qps = append(r.qps, qp)
	r.keep(qp.Close)
	return qp
}

// connect joins a to b through the listener and returns the error of the dial.
func (r *rig) connect(a, b *verbs.QP) error {
	accepted := make(chan error, 1)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	go func() {
		req, err := r.lis.Accept(ctx)
		if err == nil {
			_, err = req.Accept(ctx, b, verbs.ConnParam{})
		}
		accepted <- err
	}()
	_, err := verbs.Dial(ctx, a, r.lis.Addr(), verbs.ConnParam{})
	if err != nil {
		cancel()
	}
	if aerr := <-accepted; err == nil {
		err = aerr
	}
	return err
}

// send is a signaled request of n bytes with the given id.
func (r *rig) send(op verbs.Opcode, id uint64, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{r.mr.SGE(0, n)}, Remote: r.mr.RemoteAt(rigMemory / 2)}
}

// post posts requests that must be accepted.
func (r *rig) post(qp *verbs.QP, wrs ...verbs.SendWR) {
	r.t.Helper()
	if n, err := qp.PostSend(wrs); n != len(wrs) || err != nil {
		r.t.Fatalf("PostSend = %d, %v; want %d, nil", n, err, len(wrs))
	}
}

// receive posts receives with the given ids.
func (r *rig) receive(qp *verbs.QP, ids ...uint64) {
	r.t.Helper()
	for _, id := range ids {
		if _, err := qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: []verbs.SGE{r.mr.SGE(rigMemory/2, 64)}}}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// take waits for n completions of a side.
func (r *rig) take(side, n int) []verbs.WC {
	r.t.Helper()
	got := make([]verbs.WC, 0, n)
	buf := make([]verbs.WC, n)
	for len(got) < n {
		m, err := r.cq[side].Wait(r.ctx, buf[:n-len(got)])
		if err != nil {
			r.t.Fatalf("after %d of %d completions: %v", len(got), n, err)
		}
		got = append(got, buf[:m]...)
	}
	return got
}

// none checks that polling finds nothing.
func (r *rig) none(side, polls int) {
	r.t.Helper()
	var buf [4]verbs.WC
	for i := range polls {
		if n, err := r.cq[side].Poll(buf[:]); n != 0 || err != nil {
			r.t.Fatalf("poll %d = %d, %v (%+v); want nothing", i, n, err, buf[:n])
		}
	}
}

// outcome is what a test looks at in a completion.
type outcome struct {
	ID     uint64
	Status verbs.WCStatus
}

func outcomes(wcs []verbs.WC) []outcome {
	out := make([]outcome, len(wcs))
	for i, wc := range wcs {
		out[i] = outcome{wc.ID, wc.Status}
	}
	return out
}
