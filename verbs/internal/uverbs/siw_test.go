//go:build linux

package uverbs

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"cinnabar/internal/hostmem"

	"golang.org/x/sys/unix"
)

var testPage = uint64(os.Getpagesize())

// siwTestContext is a context on a file, which can be mapped like the device. Commands
// are appended to the file, at 1 MiB.
func siwTestContext(t *testing.T) (*Context, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("siw", unix.MFD_CLOEXEC)
	if err != nil {
		t.Skip("this kernel has no memory files: ", err)
	}
	f := os.NewFile(uintptr(fd), "siw")
	t.Cleanup(func() { f.Close() })
	if err := errors.Join(f.Truncate(2<<20), second(f.Seek(1<<20, 0))); err != nil {
		t.Fatal(err)
	}
	return &Context{name: "siw0", fd: fd, prov: new(siw)}, f
}

func second(_ int64, err error) error { return err }

// mappings counts the mappings of the file.
func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	return bytes.Count(b, []byte("/memfd:siw "))
}

func readAt(t *testing.T, f *os.File, at int64, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSiwOpenCQ(t *testing.T) {
	c, f := siwTestContext(t)
	page := int64(testPage)
	q := &CQ{ctx: c, depth: 3}
	ring, err := c.prov.openCQ(q, image{}.u32(99).u32(4).u64(uint64(2*page)))
	if err != nil || q.depth != 4 {
		t.Fatal(err, q.depth)
	}
	if _, err := f.WriteAt(cqe(7, 1, 8, 0, 5, 3), 2*page); err != nil {
		t.Fatal(err)
	}
	var out [2]WC
	if n, err := ring.poll(out[:]); n != 1 || err != nil || out[0] != (WC{ID: 7, Op: wcOpcodeRecv, Len: 5, QPN: 3}) {
		t.Error(n, err, out[0])
	}
	if err := ring.arm(false); err != nil {
		t.Error(err)
	}
	same(t, "siw_cq_ctrl", readAt(t, f, 2*page+4*siwCQELen, siwCtrlLen), image{}.u32(3).u32(0))
	if err := ring.close(); err != nil || mappings(t) != 0 {
		t.Error(err, mappings(t))
	}
}

func TestSiwOpenSRQ(t *testing.T) {
	c, f := siwTestContext(t)
	ring, err := c.prov.openSRQ(&SRQ{ctx: c}, image{}.u32(2).u32(0).u64(testPage))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ring.postRecv([]RecvWR{{ID: 1}, {ID: 2}, {ID: 3}}, nil); n != 2 || !errors.Is(err, syscall.ENOMEM) {
		t.Error(n, err)
	}
	same(t, "the element", readAt(t, f, int64(testPage)+siwRQELen, 12), image{}.u64(2).u16(1).u16(0))
	if err := ring.close(); err != nil || mappings(t) != 0 {
		t.Error(err, mappings(t))
	}
}

// qpResponse is struct siw_uresp_create_qp with the queues in pages 1 and 2.
func qpResponse(sends, recvs uint32) image {
	return image{}.u32(5).u32(sends).u32(recvs).u32(0).u64(testPage).u64(2 * testPage)
}

func TestSiwOpenQP(t *testing.T) {
	c, f := siwTestContext(t)
	page := int64(testPage)
	ring, err := c.prov.openQP(&QP{ctx: c, handle: 0xabcd, signalAll: true}, qpResponse(4, 2))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ring.postSend([]SendWR{{ID: 9, Op: opSend}}, nil); n != 1 || err != nil {
		t.Error(n, err)
	}
	if n, err := ring.postRecv([]RecvWR{{ID: 8, Num: 1}}, []SGE{{1, 2, 3}}); n != 1 || err != nil {
		t.Error(n, err)
	}
	same(t, "the send", readAt(t, f, page, 12), image{}.u64(9).u16(1|4).append(0, 3))
	same(t, "the receive", readAt(t, f, 2*page, 32), image{}.u64(8).u16(1).append(1, 0).u32(0).sge(SGE{1, 2, 3}))
	resp := hostmem.Addr(ring.(*siwQP).bell.resp[:])
	bell := image{}.u32(cmdPostSend).u16(32 / 4).u16(1).u64(resp).u32(0xabcd).u32(0).u32(0).u32(56)
	same(t, "struct ib_uverbs_post_send", readAt(t, f, 1<<20, 32), bell)
	if err := ring.close(); err != nil || mappings(t) != 0 {
		t.Error(err, mappings(t))
	}
}

// TestSiwNoRecvQueue opens pairs without a receive queue of their own, for which the kernel names one nevertheless.
func TestSiwNoRecvQueue(t *testing.T) {
	c, _ := siwTestContext(t)
	for _, open := range []struct {
		srq   *SRQ
		recvs uint32
	}{{new(SRQ), 2}, {nil, 0}} {
		ring, err := c.prov.openQP(&QP{ctx: c, srq: open.srq}, qpResponse(1, open.recvs))
		if err != nil {
			t.Fatal(err)
		}
		if n := mappings(t); n != 1 {
			t.Errorf("%d queues are mapped", n)
		}
		if n, err := ring.postRecv([]RecvWR{{}}, nil); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Error(n, err)
		}
		if err := ring.close(); err != nil || mappings(t) != 0 {
			t.Error(err, mappings(t))
		}
	}
}

// TestSiwOpenFails with responses that make no sense, and leaves nothing mapped.
func TestSiwOpenFails(t *testing.T) {
	c, _ := siwTestContext(t)
	odd := testPage / 2 // no offset for mmap
	check := func(name string, err error, want syscall.Errno) {
		t.Helper()
		if !errors.Is(err, want) || mappings(t) != 0 {
			t.Errorf("%s: %v, want %v; %d mappings", name, err, want, mappings(t))
		}
	}
	for _, n := range []uint32{0, 3, 1 << 27, 1<<32 - 1} {
		_, err := c.prov.openCQ(&CQ{ctx: c}, image{}.u32(0).u32(n).u64(0))
		check("completion queue", err, syscall.EPROTO)
		_, err = c.prov.openSRQ(&SRQ{ctx: c}, image{}.u32(n).u32(0).u64(0))
		check("shared queue", err, syscall.EPROTO)
		_, err = c.prov.openQP(&QP{ctx: c}, qpResponse(n, 2))
		check("send queue", err, syscall.EPROTO)
		if n > 0 {
			_, err = c.prov.openQP(&QP{ctx: c}, qpResponse(2, n))
			check("receive queue", err, syscall.EPROTO)
		}
	}
	_, err := c.prov.openCQ(&CQ{ctx: c}, image{}.u32(0).u32(4).u64(odd))
	check("offset of a completion queue", err, syscall.EINVAL)
	_, err = c.prov.openSRQ(&SRQ{ctx: c}, image{}.u32(4).u32(0).u64(odd))
	check("offset of a shared queue", err, syscall.EINVAL)
	_, err = c.prov.openQP(&QP{ctx: c}, image{}.u32(5).u32(2).u32(2).u32(0).u64(0).u64(odd))
	check("offset of a receive queue", err, syscall.EINVAL)
}

// TestSiwRequest compares struct siw_ureq_reg_mr of two registrations.
func TestSiwRequest(t *testing.T) {
	s := new(siw)
	for key := range 300 {
		same(t, "siw_ureq_reg_mr", s.mrRequest(), image{}.append(byte(key+1)).pad(8))
	}
}
