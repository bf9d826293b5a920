package verbstest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"cinnabar/verbs"
)

// patience bounds every wait of the suite. It is reached only by a device that
// hangs.
const patience = 20 * time.Second

// fullAccess are all rights to read and write that a region can have.
const fullAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

// loopback is where the suite's listeners listen unless a test is about addresses.
var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// PairConfig configures the two sides of a [Pair]. The zero value is
// good for most tests.
type PairConfig struct {
	Memory int            // bytes of each side's region; 0: 64 KiB
	Access verbs.Access   // of the regions; 0: all rights
	CQ     int            // depth of each side's completion queue; 0: 512
	QP     verbs.QPConfig // template; its queues are filled in
	SRQ    bool           // the passive side receives from a shared queue

	Active, Passive verbs.ConnParam // wishes of the two sides

	// Before runs before the sides are connected, to post receives.
	Before func(p *Pair)
}

// Pair is two connected queue pairs of one device, each with a protection
// domain, a completion queue and a memory region of its own. Everything is closed
// by the test's cleanup; closing parts of it earlier is allowed.
type Pair struct {
	Active, Passive *Side // the one that dialled and the one that accepted
	Dev             *verbs.Device
	Ctx             context.Context // ends when a device must be taken to hang
}

// Side is one side of a [Pair].
type Side struct {
	Dev  *verbs.Device
	PD   *verbs.PD
	CQ   *verbs.CQ
	SRQ  *verbs.SRQ // nil: none
	MR   *verbs.MR
	QP   *verbs.QP
	Conn *verbs.Conn

	t   *testing.T
	ctx context.Context
}

// NewPair connects two queue pairs of dev over its loopback address. It fails
// the test if it cannot.
func NewPair(t *testing.T, dev *verbs.Device, cfg PairConfig) *Pair {
	t.Helper()
	ctx := testContext(t)
	p := &Pair{Dev: dev, Ctx: ctx, Active: newSide(t, ctx, dev, cfg, false), Passive: newSide(t, ctx, dev, cfg, cfg.SRQ)}
	if cfg.Before != nil {
		cfg.Before(p)
	}
	l := listen(t, dev, loopback)
	if err := p.connect(l, cfg); err != nil {
		t.Fatalf("connect: %v", err)
	}
	closeAll(t, "listener", l.Close)
	if a := attr(t, dev); a.Caps.Has(verbs.CapActiveFirst) && !a.Caps.Has(verbs.CapPassiveSend) {
		p.Active.PostSend(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled}) // so that either side may send from now on
		p.Active.Expect(0, verbs.StatusSuccess, verbs.WCWrite)
	}
	return p
}

// testContext is a context that ends with the test or when patience does.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newSide(t *testing.T, ctx context.Context, dev *verbs.Device, cfg PairConfig, shared bool) *Side {
	t.Helper()
	s := &Side{t: t, ctx: ctx, Dev: dev}
	s.PD = newPD(t, dev)
	s.CQ = newCQ(t, dev, or(cfg.CQ, 512))
	s.MR = s.Alloc(or(cfg.Memory, 64<<10), verbs.Access(or(int(cfg.Access), int(fullAccess))))
	if shared {
		s.SRQ = s.newSRQ(verbs.SRQConfig{})
	}
	qp := cfg.QP
	qp.SendCQ, qp.RecvCQ, qp.SRQ = s.CQ, s.CQ, s.SRQ
	s.QP = s.NewQP(qp)
	return s
}

// or returns v, or def if v is zero.
func or(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

func newPD(t *testing.T, dev *verbs.Device) *verbs.PD {
	t.Helper()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatalf("AllocPD: %v", err)
	}
	t.Cleanup(func() { closeAll(t, "protection domain", pd.Close) })
	return pd
}

func newCQ(t *testing.T, dev *verbs.Device, depth int) *verbs.CQ {
	t.Helper()
	cq, err := dev.CreateCQ(depth)
	if err != nil {
		t.Fatalf("CreateCQ(%d): %v", depth, err)
	}
	t.Cleanup(func() { closeAll(t, "completion queue", cq.Close) })
	return cq
}

func listen(t *testing.T, dev *verbs.Device, addr netip.AddrPort) *verbs.Listener {
	t.Helper()
	l, err := verbs.Listen(dev, addr)
	if err != nil {
		t.Fatalf("Listen(%v): %v", addr, err)
	}
	t.Cleanup(func() { closeAll(t, "listener", l.Close) })
	return l
}

// Alloc registers new memory in the side's domain until the test ends.
func (s *Side) Alloc(size int, access verbs.Access) *verbs.MR {
	s.t.Helper()
	mr, err := s.PD.AllocMR(size, access)
	if err != nil {
		s.t.Fatalf("AllocMR(%d, %v): %v", size, access, err)
	}
	s.t.Cleanup(func() { closeAll(s.t, "memory region", mr.Close) })
	return mr
}

func (s *Side) newSRQ(cfg verbs.SRQConfig) *verbs.SRQ {
	s.t.Helper()
	srq, err := s.PD.CreateSRQ(cfg)
	if err != nil {
		s.t.Fatalf("CreateSRQ(%+v): %v", cfg, err)
	}
	s.t.Cleanup(func() { closeAll(s.t, "shared receive queue", srq.Close) })
	return srq
}

// NewQP makes another queue pair in the side's domain; queues that cfg leaves
// out are the side's.
func (s *Side) NewQP(cfg verbs.QPConfig) *verbs.QP {
	s.t.Helper()
	if cfg.SendCQ == nil {
		cfg.SendCQ = s.CQ
	}
	qp, err := s.PD.CreateQP(cfg)
	if err != nil {
		s.t.Fatalf("CreateQP: %v", err)
	}
	s.t.Cleanup(func() { closeAll(s.t, "queue pair", qp.Close) })
	return qp
}

// connect joins the two sides' queue pairs through l.
func (p *Pair) connect(l *verbs.Listener, cfg PairConfig) (err error) {
	p.Active.Conn, p.Passive.Conn, err = connect(p.Ctx, l, p.Active.QP, p.Passive.QP, cfg.Active, cfg.Passive)
	return err
}

// connect dials l with one queue pair and accepts with the other.
func connect(ctx context.Context, l *verbs.Listener, active, passive *verbs.QP, ap, pp verbs.ConnParam) (a, p *verbs.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			p, err = req.Accept(ctx, passive, pp)
		}
		if err != nil {
			cancel() // or the other side would wait
		}
		accepted <- err
	}()
	a, err = verbs.Dial(ctx, active, l.Addr(), ap)
	if err != nil {
		cancel()
	}
	if aerr := <-accepted; aerr != nil {
		return nil, nil, aerr
	}
	return a, p, err
}

// PostSend posts send requests, which must all be accepted.
func (s *Side) PostSend(wrs ...verbs.SendWR) {
	s.t.Helper()
	if n, err := s.QP.PostSend(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("PostSend of %d requests = %d, %v", len(wrs), n, err)
	}
}

// PostRecv posts a receive of n bytes at off of the side's region.
func (s *Side) PostRecv(id uint64, off, n int) {
	s.t.Helper()
	s.postRecvWR(verbs.RecvWR{ID: id, SGL: []verbs.SGE{s.MR.SGE(off, n)}})
}

func (s *Side) postRecvWR(wrs ...verbs.RecvWR) {
	s.t.Helper()
	post := s.QP.PostRecv
	if s.SRQ != nil {
		post = s.SRQ.PostRecv
	}
	if n, err := post(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("PostRecv of %d receives = %d, %v", len(wrs), n, err)
	}
}

// Send is a signaled send of n bytes at off of the side's region.
func (s *Side) Send(id uint64, off, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{s.MR.SGE(off, n)}}
}

// RDMA is a signaled one-sided request between n bytes at off of the side's
// region and the same place of the peer's.
func (s *Side) RDMA(id uint64, op verbs.Opcode, off, n int, peer *Side) verbs.SendWR {
	wr := s.Send(id, off, n)
	wr.Op, wr.Remote = op, peer.MR.RemoteAt(off)
	return wr
}

// Take waits for n completions.
func (s *Side) Take(n int) []verbs.WC {
	s.t.Helper()
	wcs := make([]verbs.WC, n)
	for got := 0; got < n; {
		m, err := s.CQ.Wait(s.ctx, wcs[got:])
		if err != nil {
			s.t.Fatalf("after %d of %d completions %+v: %v", got, n, wcs[:got], err)
		}
		got += m
	}
	return wcs
}

// Expect waits for one completion and checks its id and status; after a success
// also the kind of work.
func (s *Side) Expect(id uint64, status verbs.WCStatus, op verbs.WCOp) verbs.WC {
	s.t.Helper()
	wc := s.Take(1)[0]
	if wc.ID != id || wc.Status != status || status == verbs.StatusSuccess && wc.Op != op {
		s.t.Fatalf("completion = id %d, %v (%v); want id %d, %v (%v)", wc.ID, wc.Status, wc.Op, id, status, op)
	}
	if wc.QPNum != s.QP.Num() {
		s.t.Errorf("completion of queue pair %#x, want %#x", wc.QPNum, s.QP.Num())
	}
	return wc
}

// quietPolls is how often a queue is polled to see that nothing comes.
const quietPolls = 200

// Quiet checks that polling finds nothing.
func (s *Side) Quiet() {
	s.t.Helper()
	var wc [1]verbs.WC
	for range quietPolls {
		if n, err := s.CQ.Poll(wc[:]); n != 0 || err != nil {
			s.t.Fatalf("Poll = %d, %v, %+v; want nothing", n, err, wc[0])
		}
	}
}

// AwaitEnd waits for the end of the connection; Conn.Err has its cause then.
func (s *Side) AwaitEnd() {
	s.t.Helper()
	select {
	case <-s.Conn.Done():
	case <-s.ctx.Done():
		s.t.Fatal("the connection did not end")
	}
}

// Break moves the queue pair to ERR by hand.
func (s *Side) Break() {
	s.t.Helper()
	if err := s.QP.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err != nil {
		s.t.Fatalf("Modify to ERR: %v", err)
	}
}

// Fill writes a pattern that depends on seed into the side's region.
func (s *Side) Fill(off, n int, seed byte) []byte {
	b := s.MR.Bytes()[off : off+n]
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}
