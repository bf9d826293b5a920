//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/hostmem"

	"golang.org/x/sys/unix"
)

// Numbers that only tests use.
const (
	accessLocalWrite   = 1 << 0
	accessRemoteWrite  = 1 << 1
	accessRemoteRead   = 1 << 2
	accessRemoteAtomic = 1 << 3
	accessMWBind       = 1 << 4
	allAccess          = accessLocalWrite | accessRemoteWrite | accessRemoteRead | accessRemoteAtomic | accessMWBind

	wcOpRecv     = 128
	wcOpRecvImm  = 129
	statusFlush  = 5
	mtu1024      = 3
	eventSRQLow  = 15
	eventLastWQE = 16
)

// drivers are the numbers of drivers (RDMA_DRIVER_*) by their names.
var drivers = map[string]uint32{"rxe": rxe{}.driverID(), "siw": new(siw).driverID()}

// openDriver opens the first device of a driver. The test skips without one.
func openDriver(t *testing.T, driver string) *Context {
	t.Helper()
	devices, err := Devices()
	if err != nil {
		t.Skipf("this kernel has no RDMA devices: %v", err)
	}
	for _, d := range devices {
		c, err := Open(d.Name)
		var other *DriverError
		switch {
		case errors.As(err, &other):
			continue
		case err != nil:
			t.Skipf("%s cannot be opened: %v", d.Name, err)
		case c.prov.driverID() == drivers[driver]:
			return c
		}
		must(t, c.Close())
	}
	t.Skipf("none of %d RDMA devices has driver %s", len(devices), driver)
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// descriptors lists what the process has open and mapped of RDMA devices.
func descriptors(t *testing.T) string {
	t.Helper()
	var found []string
	entries := get[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(target, "infiniband") {
			found = append(found, target)
		}
	}
	for line := range strings.Lines(string(get[[]byte](t)(os.ReadFile("/proc/self/maps")))) {
		if strings.Contains(line, "infiniband") {
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}

// rig is a device with a domain and a registered page.
type rig struct {
	t    *testing.T
	ctx  *Context
	pd   *PD
	mem  []byte
	mr   *MR
	sgid uint8
	gid  [16]byte
}

// newRig opens a device of a driver. Its cleanup checks that nothing stays open.
func newRig(t *testing.T, driver string) *rig {
	r := &rig{t: t, ctx: openDriver(t, driver)}
	r.pd = get[*PD](t)(r.ctx.AllocPD())
	r.mem = get[[]byte](t)(unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))
	r.mr = get[*MR](t)(r.pd.RegMR(r.addr(0), r.addr(0), uint64(len(r.mem)), allAccess))
	r.findGID()
	t.Cleanup(func() {
		must(t, r.mr.Close())
		must(t, r.pd.Close())
		must(t, r.ctx.Close())
		must(t, unix.Munmap(r.mem))
		if left := descriptors(t); left != "" {
			t.Errorf("still open or mapped:\n%s", left)
		}
	})
	return r
}

func (r *rig) addr(at int) uint64 { return hostmem.Addr(r.mem[at:]) }

func (r *rig) sge(at, n int) SGE {
	return SGE{Addr: r.addr(at), Length: uint32(n), LKey: r.mr.LKey}
}

// findGID chooses the first entry of RoCE v2 with an IPv4 address.
func (r *rig) findGID() {
	dir := filepath.Join(deviceClass, r.ctx.name, "ports/1")
	for i := range 16 {
		gid, err := netip.ParseAddr(readLine(dir, "gids", strconv.Itoa(i)))
		if err == nil && gid.Is4In6() && readLine(dir, "gid_attrs/types", strconv.Itoa(i)) == "RoCE v2" {
			r.sgid, r.gid = uint8(i), gid.As16()
			return
		}
	}
}

func (r *rig) cq(depth int, ch *Channel) *CQ {
	r.t.Helper()
	q := get[*CQ](r.t)(r.ctx.CreateCQ(depth, 7, ch))
	r.t.Cleanup(func() { must(r.t, q.Close()) })
	return q
}

// qp makes a queue pair with room for 16 requests each way.
func (r *rig) qp(typ uint32, cq *CQ, srq *SRQ) *QP {
	r.t.Helper()
	q := get[*QP](r.t)(r.pd.CreateQP(QPInit{
		SendCQ: cq, RecvCQ: cq, SRQ: srq, ID: 9, Type: typ, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 200,
	}))
	r.t.Cleanup(func() { must(r.t, q.Close()) })
	return q
}

func (r *rig) path() Path {
	return Path{DGID: r.gid, Port: 1, SGIDIndex: r.sgid, HopLimit: 64, Global: true}
}

// connect takes a queue pair to RTS with a peer of this device.
func (r *rig) connect(q *QP, peer uint32) {
	r.t.Helper()
	must(r.t, q.Modify(r.toInit(q.typ)))
	must(r.t, q.Modify(r.toRTR(q.typ, peer)))
	must(r.t, q.Modify(toRTS(q.typ)))
}

const testQKey = 0x11223344

func (r *rig) toInit(typ uint32) *QPAttr {
	a := &QPAttr{Mask: attrState | attrPKeyIndex | attrPort, State: qpsInit, Port: 1}
	if typ == qptUD {
		a.Mask |= attrQKey
		a.QKey = testQKey
	} else {
		a.Mask |= attrAccess
		a.Access = accessRemoteWrite
		if typ == qptRC {
			a.Access |= accessRemoteRead | accessRemoteAtomic
		}
	}
	return a
}

func (r *rig) toRTR(typ, peer uint32) *QPAttr {
	a := &QPAttr{Mask: attrState, State: qpsRTR}
	if typ != qptUD {
		a.Mask |= attrAV | attrPathMTU | attrDestQPN | attrRQPSN
		a.Path, a.PathMTU, a.DestQPN, a.RQPSN = r.path(), mtu1024, peer, 100
	}
	if typ == qptRC {
		a.Mask |= attrDestRdAtomic | attrMinRNR
		a.DestRdAtomic, a.MinRNR = 4, 1
	}
	return a
}

func toRTS(typ uint32) *QPAttr {
	a := &QPAttr{Mask: attrState | attrSQPSN, State: qpsRTS, SQPSN: 100}
	if typ == qptRC {
		a.Mask |= attrTimeout | attrRetry | attrRNRRetry | attrRdAtomic
		a.Timeout, a.Retry, a.RNRRetry, a.RdAtomic = 14, 7, 7, 4
	}
	return a
}

// pair makes two connected queue pairs on one completion queue.
func (r *rig) pair(typ uint32, srq *SRQ) (a, b *QP, cq *CQ) {
	r.t.Helper()
	cq = r.cq(64, nil)
	a, b = r.qp(typ, cq, nil), r.qp(typ, cq, srq)
	r.connect(a, b.Num)
	r.connect(b, a.Num)
	return a, b, cq
}

// wait polls until n completions are there, and returns them by their ids.
func (r *rig) wait(cq *CQ, n int) map[uint64]WC {
	r.t.Helper()
	got := map[uint64]WC{}
	var out [4]WC
	r.until(func() bool {
		for k := -1; k != 0; {
			k = get[int](r.t)(cq.Poll(out[:]))
			for _, w := range out[:k] {
				got[w.ID] = w
			}
		}
		return len(got) >= n
	})
	return got
}

// until asks every millisecond whether something is so, for at most 20 s.
func (r *rig) until(so func() bool) {
	r.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !so(); <-tick.C {
		if time.Now().After(end) {
			r.t.Fatal("it has not come in 20 s")
		}
	}
}

// good is wait for completions without errors.
func (r *rig) good(cq *CQ, n int) map[uint64]WC {
	r.t.Helper()
	got := r.wait(cq, n)
	for _, w := range got {
		if w.Status != 0 {
			r.t.Fatalf("completion with an error: %+v", w)
		}
	}
	return got
}

// send posts one request, whose list is all of sges.
func (r *rig) send(q *QP, wr SendWR, sges ...SGE) {
	r.t.Helper()
	wr.Num = len(sges)
	wr.Flags |= sendSignaled
	if n, err := q.PostSend([]SendWR{wr}, sges); n != 1 || err != nil {
		r.t.Fatalf("PostSend: %d, %v", n, err)
	}
}

func (r *rig) recv(q interface {
	PostRecv([]RecvWR, []SGE) (int, error)
}, id uint64, sges ...SGE,
) {
	r.t.Helper()
	if n, err := q.PostRecv([]RecvWR{{ID: id, Num: len(sges)}}, sges); n != 1 || err != nil {
		r.t.Fatalf("PostRecv: %d, %v", n, err)
	}
}

func (r *rig) u64(at int) uint64       { return binary.NativeEndian.Uint64(r.mem[at:]) }
func (r *rig) setU64(at int, v uint64) { binary.NativeEndian.PutUint64(r.mem[at:], v) }

// fill writes a pattern.
func (r *rig) fill(at, n int, seed byte) {
	for i := range n {
		r.mem[at+i] = seed + byte(i*7)
	}
}

func (r *rig) equal(a, b, n int) {
	r.t.Helper()
	if string(r.mem[a:a+n]) != string(r.mem[b:b+n]) {
		r.t.Fatalf("%d bytes at %d and %d differ", n, a, b)
	}
}

// Limit returns the limit, 0 if none is set or if the event has occurred.
func (s *SRQ) Limit() (int, error) {
	r := newRequest(cmdQuerySRQ, 16).u32(s.handle, 0) // struct ib_uverbs_query_srq_resp
	if err := r.send(s.ctx.fd); err != nil {
		return 0, err
	}
	return int(r.respU32(8)), nil
}
