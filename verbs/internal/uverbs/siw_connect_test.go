//go:build linux

package uverbs

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs/internal/ucm"

	"golang.org/x/sys/unix"
)

// siwEnd is one side of a connection of siw with itself.
type siwEnd struct {
	t    *testing.T
	ctx  *Context
	pd   *PD
	cq   *CQ
	ch   *Channel
	qp   *QP
	srq  *SRQ // or nil
	id   *ucm.ID
	mem  []byte
	addr uint64
	mr   *MR
}

const siwRights = accessLocalWrite | accessRemoteWrite | accessRemoteRead

func newSiwEnd(t *testing.T, c *Context, shared bool) *siwEnd {
	t.Helper()
	e := &siwEnd{t: t, ctx: c}
	var err error
	e.pd, err = c.AllocPD()
	must(t, err)
	shut(t, e.pd.Close)
	e.mem = get[[]byte](t)(unix.Mmap(-1, 0, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))
	shut(t, func() error { return unix.Munmap(e.mem) })
	e.addr = hostmem.Addr(e.mem)
	e.mr, err = e.pd.RegMR(e.addr, e.addr, uint64(len(e.mem)), siwRights)
	must(t, err)
	shut(t, e.mr.Close)
	e.ch, err = c.CreateChannel()
	must(t, err)
	shut(t, e.ch.Close)
	e.cq, err = c.CreateCQ(256, 1, e.ch)
	must(t, err)
	shut(t, e.cq.Close)
	init := QPInit{SendCQ: e.cq, RecvCQ: e.cq, Type: qptRC, ID: 2, MaxSendWR: 16, MaxRecvWR: 64, MaxSendSGE: 6, MaxRecvSGE: 6, MaxInline: siwMaxInline}
	if shared {
		e.srq, err = e.pd.CreateSRQ(3, 64, 6)
		must(t, err)
		shut(t, e.srq.Close)
		init.SRQ = e.srq
	}
	e.qp, err = e.pd.CreateQP(init)
	must(t, err)
	shut(t, e.qp.Close)
	return e
}

// sge is an entry at off in the region.
func (e *siwEnd) sge(off, n int) SGE { return SGE{e.addr + uint64(off), uint32(n), e.mr.LKey} }

func (e *siwEnd) recv(id uint64, list ...SGE) {
	e.t.Helper()
	post := e.qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	if n, err := post([]RecvWR{{ID: id, Num: len(list)}}, list); n != 1 || err != nil {
		e.t.Fatal(n, err)
	}
}

func (e *siwEnd) send(wr SendWR, list ...SGE) {
	e.t.Helper()
	wr.Num = len(list)
	if n, err := e.qp.PostSend([]SendWR{wr}, list); n != 1 || err != nil {
		e.t.Fatalf("%+v: %d taken, %v", wr, n, err)
	}
}

// wait returns the next n completions.
func (e *siwEnd) wait(n int) []WC {
	e.t.Helper()
	var out []WC
	buf := make([]WC, n)
	for end := time.Now().Add(10 * time.Second); len(out) < n; runtime.Gosched() {
		got, err := e.cq.Poll(buf[:n-len(out)])
		must(e.t, err)
		out = append(out, buf[:got]...)
		if time.Now().After(end) {
			e.t.Fatalf("%d of %d completions: %+v", len(out), n, out)
		}
	}
	return out
}

func (e *siwEnd) want(wcs ...WC) {
	e.t.Helper()
	for i := range wcs {
		wcs[i].QPN = e.qp.Num
	}
	if got := e.wait(len(wcs)); !slices.Equal(got, wcs) {
		e.t.Fatalf("completions\n%+v, want\n%+v", got, wcs)
	}
}

// next returns the event of the connection manager, which has the type.
func next(t *testing.T, ch *ucm.Channel, typ uint32) ucm.Event {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(ch.FD()), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 10000); n != 1 {
		t.Fatalf("no event: %v", err)
	}
	ev, err := ch.Next()
	must(t, err)
	if ev.Type != typ {
		t.Fatalf("event %+v, want type %d", ev, typ)
	}
	return ev
}

func (e *siwEnd) toInit() {
	e.t.Helper()
	mask, a, err := e.id.QPAttr(qpsInit)
	must(e.t, err)
	must(e.t, e.qp.Modify(&QPAttr{Mask: mask, State: a.State, Access: siwRights, Port: a.Port, PKeyIndex: a.PKeyIndex}))
}

// Types of the events of connections (RDMA_CM_EVENT_*).
const (
	cmAddrResolved   = 0
	cmRouteResolved  = 2
	cmConnectRequest = 4
	cmEstablished    = 9
	cmDisconnected   = 10
)

// siwListener listens at the first address of a device. The test skips if it has none.
func siwListener(t *testing.T, ch *ucm.Channel, device string) *ucm.ID {
	t.Helper()
	for _, a := range get[[]net.Addr](t)(net.InterfaceAddrs()) {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().Is4() || prefix.Addr().IsLoopback() {
			continue
		}
		id := get[*ucm.ID](t)(ch.Create(1))
		shut(t, id.Destroy)
		if err := id.Bind(netip.AddrPortFrom(prefix.Addr(), 0)); err == nil && id.Device() == device {
			must(t, id.Listen(4))
			return id
		}
	}
	t.Skipf("%s has no IPv4 address", device)
	return nil
}

// siwPair connects two queue pairs.
func siwPair(t *testing.T, shared bool) (a, b *siwEnd, _ *ucm.Channel) {
	t.Helper()
	c := openDriver(t, "siw")
	shut(t, c.Close)
	ch, err := ucm.OpenChannel()
	must(t, err)
	a, b = newSiwEnd(t, c, shared), newSiwEnd(t, c, shared)
	shut(t, ch.Close)
	listener := siwListener(t, ch, c.name)
	to, _ := listener.Addrs()
	a.id, err = ch.Create(2)
	must(t, err)
	shut(t, a.id.Destroy)
	must(t, a.id.ResolveAddr(netip.AddrPort{}, to, 5000))
	next(t, ch, cmAddrResolved)
	must(t, a.id.ResolveRoute(5000))
	next(t, ch, cmRouteResolved)
	a.toInit()
	must(t, a.id.Connect(ucm.Param{QPN: a.qp.Num, Responder: 8, Depth: 8}))
	ev := next(t, ch, cmConnectRequest)
	b.id = ev.Child
	shut(t, b.id.Destroy)
	b.id.Adopt(3)
	b.toInit()
	must(t, b.id.Accept(ucm.Param{QPN: b.qp.Num, Responder: 8, Depth: 8}))
	next(t, ch, cmEstablished)
	next(t, ch, cmEstablished)
	return a, b, ch
}

func TestSiwTransfer(t *testing.T) { transfer(t, false) }

// TestSiwTransferShared takes the receives from a shared receive queue.
func TestSiwTransferShared(t *testing.T) { transfer(t, true) }

func transfer(t *testing.T, shared bool) {
	a, b, ch := siwPair(t, shared)
	sent := func(id uint64, op, n uint32) WC { return WC{ID: id, Op: op, Len: n} }
	got := func(id uint64, n uint32) WC { return WC{ID: id, Op: wcOpcodeRecv, Len: n} }
	for i := range a.mem {
		a.mem[i] = byte(i*7 + i>>8)
	}

	// Sends: scattered and gathered, empty, inline, long; some without a completion.
	b.recv(1, b.sge(0, 10), b.sge(100, 0), b.sge(200, 100))
	a.send(SendWR{ID: 2, Op: opSend, Flags: sendSignaled}, a.sge(0, 7), a.sge(0, 0), a.sge(50, 20), SGE{})
	a.want(sent(2, wcOpcodeSend, 27))
	b.want(got(1, 27))
	if want := slices.Concat(a.mem[:7], a.mem[50:70]); !bytes.Equal(slices.Concat(b.mem[:10], b.mem[200:217]), want) {
		t.Error("other bytes")
	}
	b.recv(3)
	b.recv(4, b.sge(0, 10))
	a.send(SendWR{ID: 5, Op: opSend, Flags: sendSignaled})
	a.send(SendWR{ID: 6, Op: opSend, Flags: sendSignaled}, SGE{})
	a.want(sent(5, wcOpcodeSend, 0), sent(6, wcOpcodeSend, 0))
	b.want(got(3, 0), got(4, 0))
	b.recv(7, b.sge(1000, 100))
	b.recv(8, b.sge(2000, 100))
	a.send(SendWR{ID: 8, Op: opSend, Flags: sendInline}, SGE{Addr: a.addr + 300, Length: 50}, SGE{Addr: a.addr + 400, Length: 30})
	a.send(SendWR{ID: 9, Op: opSend, Flags: sendInline | sendSignaled})
	b.want(got(7, 80), got(8, 0))
	a.want(sent(9, wcOpcodeSend, 0))
	if !bytes.Equal(b.mem[1000:1080], slices.Concat(a.mem[300:350], a.mem[400:430])) {
		t.Error("other bytes inline")
	}
	b.recv(10, b.sge(0, 2<<20))
	a.send(SendWR{ID: 11, Op: opSend, Flags: sendSignaled}, a.sge(0, 1<<20), a.sge(2<<20, 1<<20))
	a.want(sent(11, wcOpcodeSend, 2<<20))
	b.want(got(10, 2<<20))
	if !bytes.Equal(b.mem[:2<<20], slices.Concat(a.mem[:1<<20], a.mem[2<<20:3<<20])) {
		t.Error("other bytes of 2 MiB")
	}

	// Writes and reads, also empty and fenced ones. An empty read is the first one, because the kernel answers a later one with as many bytes as the
	// read before (siw_activate_tx leaves the entry as it was, siw_qp_sq_proc_tx takes it nevertheless).
	clear(b.mem)
	a.send(SendWR{ID: 16, Op: opRead, Flags: sendSignaled, Remote: b.addr, RKey: b.mr.RKey})
	a.want(sent(16, wcOpcodeRead, 0))
	a.send(SendWR{ID: 12, Op: opWrite, Flags: sendSignaled, Remote: b.addr + 77, RKey: b.mr.RKey}, a.sge(3, 100_000))
	a.send(SendWR{ID: 13, Op: opWrite, Flags: sendSignaled | sendFence})
	a.want(sent(12, wcOpcodeWrite, 100_000), sent(13, wcOpcodeWrite, 0))
	a.send(SendWR{ID: 14, Op: opRead, Flags: sendSignaled, Remote: b.addr + 77, RKey: b.mr.RKey}, a.sge(3<<20, 100_000))
	a.send(SendWR{ID: 15, Op: opRead, Flags: sendSignaled | sendFence, Remote: b.addr + 77, RKey: b.mr.RKey}, a.sge(3<<20+200_000, 5))
	a.want(sent(14, wcOpcodeRead, 100_000), sent(15, wcOpcodeRead, 5))
	if !bytes.Equal(a.mem[3<<20:3<<20+100_000], a.mem[3:100_003]) || !bytes.Equal(a.mem[3<<20+200_000:3<<20+200_005], a.mem[3:8]) {
		t.Error("other bytes were read")
	}
	if n, err := a.qp.PostSend([]SendWR{{Op: opRead, Num: 2}}, []SGE{a.sge(0, 1), a.sge(5, 1)}); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Error(n, err)
	}

	// Lists, up to a full queue.
	for range 20 {
		var wrs []SendWR
		for i := range 16 {
			b.recv(uint64(100+i), b.sge(i*1000, 1000))
			wrs = append(wrs, SendWR{ID: uint64(i), Op: opSend, Flags: sendSignaled, First: i, Num: 1})
		}
		var list []SGE
		for i := range 16 {
			list = append(list, a.sge(i*10, i+1))
		}
		for done := 0; done < 16; {
			n, err := a.qp.PostSend(wrs[done:], list)
			if done += n; done < 16 && !errors.Is(err, syscall.ENOMEM) {
				t.Fatal(done, err)
			}
		}
		for i := range 16 {
			a.want(sent(uint64(i), wcOpcodeSend, uint32(i+1)))
			b.want(got(uint64(100+i), uint32(i+1)))
		}
	}

	// Events.
	must(t, b.cq.Arm(false))
	if err := b.ch.Next(); !errors.Is(err, syscall.EAGAIN) {
		t.Error("an event: ", err)
	}
	b.recv(20, b.sge(0, 10))
	a.send(SendWR{ID: 21, Op: opSend, Flags: sendSolicited}, a.sge(0, 10))
	p := []unix.PollFd{{Fd: int32(b.ch.FD()), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 5000); n != 1 {
		t.Error("no event: ", err)
	}
	must(t, b.ch.Next())
	b.want(got(20, 10))

	// The end.
	b.recv(30, b.sge(0, 10))
	must(t, a.id.Disconnect())
	next(t, ch, cmDisconnected)
	next(t, ch, cmDisconnected)
	if !shared {
		b.want(WC{ID: 30, Op: wcOpcodeRecv, Status: wcStatusWRFlushErr})
	}
	if n, err := a.qp.PostSend([]SendWR{{ID: 31, Op: opSend}}, nil); n != 1 || err != nil {
		t.Logf("a send in ERR: %d taken, %v", n, err)
	}
	for {
		typ, id, err := a.ctx.NextAsync()
		t.Logf("asynchronous event %d of %d, %v", typ, id, err)
		if err != nil {
			break
		}
	}
}

// TestSiwWrongLocalKey sends from memory with a local key that the device did not give.
func TestSiwWrongLocalKey(t *testing.T) {
	a, _, _ := siwPair(t, false)
	a.send(SendWR{ID: 1, Op: opSend}, SGE{a.addr, 1, a.mr.LKey ^ 1})
	if wc := a.wait(1)[0]; wc.ID != 1 || wc.Status != wcStatusLocQPOpErr {
		t.Errorf("%+v", wc)
	}
}

// TestSiwWrongRemoteKey reads memory with a remote key that the peer did not give.
func TestSiwWrongRemoteKey(t *testing.T) {
	a, b, _ := siwPair(t, false)
	a.send(SendWR{ID: 1, Op: opRead, Remote: b.addr, RKey: b.mr.RKey ^ 1}, a.sge(0, 8))
	if wc := a.wait(1)[0]; wc.ID != 1 || wc.Status != wcStatusWRFlushErr {
		t.Errorf("%+v", wc)
	}
}

// TestSiwRevokedKey reads memory after its key was revoked by a send.
func TestSiwRevokedKey(t *testing.T) {
	a, b, ch := siwPair(t, false)
	m, err := b.pd.RegMR(b.addr, b.addr, 4096, siwRights)
	must(t, err)
	shut(t, m.Close)
	a.send(SendWR{ID: 1, Op: opRead, Remote: b.addr, RKey: m.RKey, Flags: sendSignaled}, a.sge(0, 8))
	a.want(WC{ID: 1, Op: wcOpcodeRead, Len: 8})
	b.recv(2, b.sge(8192, 10))
	a.send(SendWR{ID: 3, Op: opSendInv, Imm: m.RKey, Flags: sendSignaled}, a.sge(0, 3))
	a.want(WC{ID: 3, Op: wcOpcodeSend, Len: 3})
	b.want(WC{ID: 2, Op: wcOpcodeRecv, Len: 3})
	a.send(SendWR{ID: 4, Op: opRead, Remote: b.addr, RKey: m.RKey}, a.sge(0, 8))
	next(t, ch, cmDisconnected)
	if wc := a.wait(1)[0]; wc.ID != 4 || wc.Status != wcStatusWRFlushErr {
		t.Errorf("%+v", wc)
	}
}

// TestSiwBothWays sends from both sides at once, from goroutines for sends, receives and polls.
func TestSiwBothWays(t *testing.T) {
	const total = 3000
	a, b, _ := siwPair(t, false)
	var (
		wg       sync.WaitGroup
		quit     = make(chan bool)
		quitOnce sync.Once
	)
	fail := func(err error) {
		t.Error(err)
		quitOnce.Do(func() { close(quit) })
	}
	take := func(c chan bool) bool {
		select {
		case <-c:
			return true
		case <-quit:
			return false
		}
	}
	tokens := func(n int) chan bool {
		c := make(chan bool, 2*total)
		for range n {
			c <- true
		}
		return c
	}
	run := func(e *siwEnd, credits, granted chan bool) {
		sends, recvs := tokens(16), tokens(64)
		wg.Go(func() {
			for i := 0; i < total && take(recvs); i++ {
				if n, err := e.qp.PostRecv([]RecvWR{{ID: 1 << 32, Num: 1}}, []SGE{e.sge(i%64*64, 64)}); n != 1 {
					fail(fmt.Errorf("receive: %w", err))
				}
				granted <- true
			}
		})
		wg.Go(func() {
			for i := 0; i < total && take(sends) && take(credits); {
				n, err := e.qp.PostSend([]SendWR{{ID: uint64(i), Op: opSend, Flags: sendSignaled, Num: 1}}, []SGE{e.sge(8192, i%64)})
				if i += n; n == 1 {
					continue
				}
				if !errors.Is(err, syscall.ENOMEM) {
					fail(fmt.Errorf("send: %w", err))
				}
				sends <- true
				credits <- true
				runtime.Gosched()
			}
		})
		wg.Go(func() {
			var out [8]WC
			next, got := uint64(0), uint32(0)
			for end := time.Now().Add(60 * time.Second); next < total || got < total; runtime.Gosched() {
				n, err := e.cq.Poll(out[:])
				for _, wc := range out[:n] {
					switch {
					case wc.Status == 0 && wc.Op == wcOpcodeSend && wc.ID == next:
						next++
						sends <- true
					case wc.Status == 0 && wc.Op == wcOpcodeRecv && wc.Len == got%64:
						got++
						recvs <- true
					default:
						err = fmt.Errorf("%+v after %d and %d", wc, next, got)
					}
				}
				if err == nil && time.Now().After(end) {
					err = fmt.Errorf("only %d and %d", next, got)
				}
				if err != nil {
					fail(err)
					return
				}
			}
		})
	}
	toA, toB := tokens(0), tokens(0)
	run(a, toB, toA)
	run(b, toA, toB)
	wg.Wait()
}

// TestSiwRoundTrip measures, for the log alone.
func TestSiwRoundTrip(t *testing.T) {
	const rounds = 2000
	a, b, _ := siwPair(t, false)
	begin := time.Now()
	for i := range uint64(rounds) {
		b.recv(i, b.sge(0, 64))
		a.recv(i, a.sge(0, 64))
		a.send(SendWR{ID: i, Op: opSend, Flags: sendInline}, SGE{a.addr, 8, 0})
		b.wait(1)
		b.send(SendWR{ID: i, Op: opSend, Flags: sendInline}, SGE{b.addr, 8, 0})
		a.wait(1)
	}
	t.Logf("%v a round trip", time.Since(begin)/rounds)
}
