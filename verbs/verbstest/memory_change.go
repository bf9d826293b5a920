package verbstest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// refusesByName reports whether err says that the device does not have an operation. Such an error must have the name of the device.
func refusesByName(t *testing.T, dev *verbs.Device, err error) bool {
	t.Helper()
	if !errors.Is(err, errors.ErrUnsupported) {
		return false
	}
	if a := attr(t, dev); !strings.Contains(err.Error(), a.Name) {
		t.Errorf("the refusal does not name device %s: %v", a.Name, err)
	}
	return true
}

// testAtAddress registers memory at addresses of the program's choice, which both sides use in work requests.
// parity: V07 N12
func testAtAddress(t *testing.T, dev *verbs.Device) {
	const size, n = 256, 64
	p := NewPair(t, dev, PairConfig{})
	memory := p.Passive.Alloc(size, 0).Bytes()
	within := p.Passive.MR.Remote().Addr % uint64(os.Getpagesize()) // offset within a page of mapped memory, the same for memory
	for _, iova := range []uint64{within, 1<<40 + within, 0 - 2*uint64(os.Getpagesize()) + within} {
		mr, err := p.Passive.PD.RegMRAt(memory, iova, fullAccess)
		if refusesByName(t, dev, err) {
			t.Skip("the device takes no addresses of the program, and says so")
		}
		if err != nil {
			t.Fatalf("RegMRAt(%#x): %v", iova, err)
		}
		if r := mr.RemoteAt(8); r.Addr != iova+8 || mr.SGE(8, 1).Addr != iova+8 {
			t.Errorf("the address of byte 8 is %#x for peers and %#x here, want %#x", r.Addr, mr.SGE(8, 1).Addr, iova+8)
		}
		if e, err := mr.SGEOf(memory[8:16]); err != nil || e != mr.SGE(8, 8) {
			t.Errorf("SGEOf = %+v, %v; want %+v", e, err, mr.SGE(8, 8))
		}
		want := bytes.Clone(p.Active.Fill(0, n, byte(iova>>40)+1))
		write := p.Active.RDMA(1, verbs.OpWrite, 0, n, p.Passive)
		write.Remote = mr.RemoteAt(size - n)
		p.Active.PostSend(write)
		p.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
		read := p.Active.RDMA(2, verbs.OpRead, n, n, p.Passive)
		read.Remote = mr.RemoteAt(size - n)
		p.Active.PostSend(read)
		p.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
		if got := p.Active.MR.Bytes()[n : 2*n]; !bytes.Equal(got, want) {
			t.Errorf("read at %#x = %x, want the %x that were written", iova, got, want)
		}
		back := p.Passive.RDMA(3, verbs.OpWrite, 2*n, n, p.Active)
		back.SGL = []verbs.SGE{mr.SGE(size-n, n)}
		p.Passive.PostSend(back, p.Passive.RDMA(4, verbs.OpRead, 2*n, n, p.Active)) // the read finds what was written before
		p.Passive.Take(2)
		if got := p.Passive.MR.Bytes()[2*n : 3*n]; !bytes.Equal(got, want) {
			t.Errorf("written from %#x and read back: %x, want %x", iova, got, want)
		}
		closeAll(t, "memory region", mr.Close)
	}
	for _, iova := range []uint64{within + 1, 0 - uint64(os.Getpagesize()) + within + size} {
		if mr, err := p.Passive.PD.RegMRAt(memory, iova, 0); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("RegMRAt(%#x): %v, want ErrInvalid", iova, err)
			if err == nil {
				closeAll(t, "memory region", mr.Close)
			}
		}
	}
}

// regAt registers n bytes of the passive side at an address of the program's choice, or skips the test.
func (p *Pair) regAt(t *testing.T, n int, access verbs.Access) *verbs.MR {
	t.Helper()
	memory := p.Passive.Alloc(n, 0).Bytes()
	mr, err := p.Passive.PD.RegMRAt(memory, 1<<40+p.Passive.MR.Remote().Addr%uint64(os.Getpagesize()), access)
	if refusesByName(t, p.Dev, err) {
		t.Skip("the device takes no addresses of the program, and says so")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, "memory region", mr.Close) })
	return mr
}

// testUsesOfAddress has a region of RegMRAt take the data of a read, a message, and an atomic of the peer.
// parity: V07
func testUsesOfAddress(t *testing.T, dev *verbs.Device) {
	const n = 64
	p := NewPair(t, dev, PairConfig{})
	mr := p.regAt(t, 3*n, fullAccess)
	want := bytes.Clone(p.Active.Fill(0, n, 3))
	read := p.Passive.RDMA(1, verbs.OpRead, 0, n, p.Active)
	read.SGL = []verbs.SGE{mr.SGE(0, n)}
	p.Passive.PostSend(read)
	p.Passive.Expect(1, verbs.StatusSuccess, verbs.WCRead)
	p.Passive.postRecvWR(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{mr.SGE(n, n)}})
	p.Active.PostSend(p.Active.Send(3, 0, n))
	p.Passive.Expect(2, verbs.StatusSuccess, verbs.WCRecv)
	p.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	if got := mr.Bytes()[:2*n]; !bytes.Equal(got, append(bytes.Clone(want), want...)) {
		t.Errorf("after a read and a receive = %x, want twice %x", got, want)
	}
	if !attr(t, dev).Caps.Has(verbs.CapAtomics) {
		return
	}
	add := p.Active.RDMA(4, verbs.OpFetchAdd, 0, 8, p.Passive)
	add.Remote, add.CompareAdd = mr.RemoteAt(2*n), 7
	p.Active.PostSend(add)
	p.Active.Expect(4, verbs.StatusSuccess, verbs.WCFetchAdd)
	if got := binary.NativeEndian.Uint64(mr.Bytes()[2*n:]); got != 7 {
		t.Errorf("after the addition of 7 to 0 = %d", got)
	}
}

// testBeyondAddress writes beyond each end of a region of RegMRAt. Each write must fail and change no byte.
// parity: V04 V07
func testBeyondAddress(t *testing.T, dev *verbs.Device) {
	for name, off := range map[string]uint64{"before": ^uint64(0), "behind": 1, "far behind": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			p := NewPair(t, dev, PairConfig{})
			mr := p.regAt(t, 64, fullAccess)
			p.Active.Fill(0, 64, 1)
			wr := p.Active.RDMA(1, verbs.OpWrite, 0, 64, p.Passive)
			wr.Remote = mr.Remote()
			wr.Remote.Addr += off
			p.Active.PostSend(wr)
			p.Active.Expect(1, verbs.StatusRemAccessErr, 0)
			if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
				t.Error("memory was written to")
			}
		})
	}
}

// rereg changes a region. It skips the test if the device cannot, and the region must then work as before.
func (p *Pair) rereg(t *testing.T, mr *verbs.MR, c verbs.MRChange) {
	t.Helper()
	err := mr.Rereg(c)
	if refusesByName(t, p.Dev, err) {
		p.write(t, mr, verbs.StatusSuccess)
		t.Skip("the device cannot make this change, and says so")
	}
	if err != nil {
		t.Fatalf("Rereg(%+v): %v", c, err)
	}
}

// write writes 8 bytes to the beginning of a region of the passive side.
func (p *Pair) write(t *testing.T, mr *verbs.MR, want verbs.WCStatus) {
	t.Helper()
	p.Active.Fill(0, 8, 1)
	wr := p.Active.RDMA(7, verbs.OpWrite, 0, 8, p.Passive)
	wr.Remote = mr.Remote()
	p.Active.PostSend(wr)
	p.Active.Expect(7, want, verbs.WCWrite)
	if want != verbs.StatusSuccess {
		p.Passive.AwaitEnd()
	}
}

// testReregAccess takes the right to write from a region.
// parity: V07 N12
func testReregAccess(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	mr := p.Passive.Alloc(64, fullAccess)
	p.rereg(t, mr, verbs.MRChange{Access: verbs.LocalWrite | verbs.RemoteRead, ChangeAccess: true})
	if len(mr.Bytes()) != 64 {
		t.Errorf("%d bytes, want 64", len(mr.Bytes()))
	}
	p.rereg(t, mr, verbs.MRChange{Access: fullAccess, ChangeAccess: true})
	p.write(t, mr, verbs.StatusSuccess)
	p.rereg(t, mr, verbs.MRChange{Access: verbs.LocalWrite | verbs.RemoteRead, ChangeAccess: true})
	clear(mr.Bytes())
	p.write(t, mr, verbs.StatusRemAccessErr)
	if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
		t.Error("memory was written to without the right")
	}
}

// testReregDomain moves a region to another protection domain, whose keys queue pairs of the old one may not use.
// parity: V03 V07 N12
func testReregDomain(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	mr := p.Passive.Alloc(64, fullAccess)
	other := newPD(t, dev)
	p.rereg(t, mr, verbs.MRChange{PD: other})
	if err := other.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close of the new domain: %v, want ErrBusy", err)
	}
	p.rereg(t, mr, verbs.MRChange{PD: p.Passive.PD})
	p.write(t, mr, verbs.StatusSuccess)
	p.rereg(t, mr, verbs.MRChange{PD: other})
	p.write(t, mr, verbs.StatusRemAccessErr)
	closeAll(t, "memory region", mr.Close)
	closeAll(t, "protection domain", other.Close)
}

// testReregMemory gives a region other memory. The old key and the old memory are out of use.
// parity: V07 N12
func testReregMemory(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	before := make([]byte, 64)
	mr, err := p.Passive.PD.RegMR(before, fullAccess)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, "memory region", mr.Close) })
	old := mr.Remote()
	after := make([]byte, 128)
	p.rereg(t, mr, verbs.MRChange{Memory: after})
	if mr.Len() != len(after) || &mr.Bytes()[0] != &after[0] {
		t.Errorf("the region has %d bytes at %p, want those at %p", mr.Len(), &mr.Bytes()[0], &after[0])
	}
	p.write(t, mr, verbs.StatusSuccess)
	read := p.Active.RDMA(8, verbs.OpRead, 0, 8, p.Passive)
	read.Remote = mr.Remote()
	p.Active.PostSend(read)
	p.Active.Expect(8, verbs.StatusSuccess, verbs.WCRead)
	if bytes.Equal(after, make([]byte, 128)) || !bytes.Equal(before, make([]byte, 64)) {
		t.Errorf("after the write the new memory is %x and the old %x", after, before)
	}
	if old == mr.Remote() {
		return // the device has kept key and address, so old names the new memory
	}
	wr := p.Active.RDMA(9, verbs.OpWrite, 0, 8, p.Passive)
	wr.Remote = old
	p.Active.PostSend(wr)
	p.Active.Expect(9, verbs.StatusRemAccessErr, 0)
	if !bytes.Equal(before, make([]byte, 64)) {
		t.Error("the old memory was written to")
	}
}

// testReregInTraffic gives the target of writes other memory while they are under way. The old memory is unmapped then, so a device that
// still touched it would crash.
// parity: V07
func testReregInTraffic(t *testing.T, dev *verbs.Device) {
	for i := range sized(20, 4) {
		p, target := pairInTraffic(t, dev, i%2 == 0)
		after := make([]byte, 1<<20)
		if err := target.Rereg(verbs.MRChange{Memory: after}); refusesByName(t, dev, err) {
			t.Skip("the device cannot make this change, and says so")
		} else if err != nil {
			t.Fatal(err)
		}
		p.Active.Break()
		closeAll(t, "queue pairs", p.Active.QP.Close, p.Passive.QP.Close)
		if !bytes.Equal(after, make([]byte, 1<<20)) {
			t.Error("a request by the old key has changed the new memory")
		}
	}
}

// testReregMisuse makes changes that no device can make. The region then works as before.
// parity: V07
func testReregMisuse(t *testing.T, dev *verbs.Device) {
	p := NewPair(t, dev, PairConfig{})
	mr := p.Passive.Alloc(64, fullAccess)
	for name, c := range map[string]verbs.MRChange{
		"nothing":                   {},
		"no bytes":                  {Memory: []byte{}},
		"remote without local":      {Access: verbs.RemoteWrite, ChangeAccess: true},
		"rights that do not change": {Memory: make([]byte, 8), Access: verbs.RemoteRead},
		"memory and too few rights": {Memory: make([]byte, 8), Access: verbs.RemoteAtomic, ChangeAccess: true},
	} {
		if err := mr.Rereg(c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	p.write(t, mr, verbs.StatusSuccess)
	closeAll(t, "memory region", mr.Close)
	if err := mr.Rereg(verbs.MRChange{Access: verbs.LocalWrite, ChangeAccess: true}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Rereg after Close: %v, want ErrClosed", err)
	}
}
