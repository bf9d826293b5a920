package verbs_test

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"weak"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
	"cinnabar/verbs/iwarp"
)

// TestRegMRAt checks that the driver and the SGEs have the chosen address.
// parity: V07
func TestRegMRAt(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	buf := make([]byte, 64)
	page := uint64(os.Getpagesize())
	within := hostmem.Addr(buf) % page
	mr := rig.Must(pd.RegMRAt(buf, 5*page+within, verbs.LocalWrite))(t)
	rig.CloseAll(t, mr)
	if got, want := mr.SGE(8, 56), (verbs.SGE{Addr: 5*page + within + 8, Length: 56, LKey: 0x11}); got != want {
		t.Errorf("SGE: got %+v, want %+v", got, want)
	}
	if got := rig.Must(mr.SGEOf(buf[8:64]))(t); got != mr.SGE(8, 56) {
		t.Errorf("SGEOf: got %+v, want %+v", got, mr.SGE(8, 56))
	}
	_, err := pd.RegMRAt(buf, 5*page+within^8, verbs.LocalWrite)
	rig.WantErr(t, err, verbs.ErrInvalid, "iova begins at byte", "mmap")
	large := make([]byte, 3*page)
	_, err = pd.RegMRAt(large, 0-page+hostmem.Addr(large)%page, verbs.LocalWrite)
	rig.WantErr(t, err, verbs.ErrInvalid, "reach 2^64")
	_, err = pd.RegMRAt(nil, 0, 0)
	rig.WantErr(t, err, verbs.ErrInvalid, "the size is 0 bytes")
}

// TestReregKeepsMemory gives a region other memory. The old memory is unpinned after a successful change, and the new memory after one that was
// refused. After another error both stay, because the device may use either.
// parity: V07
func TestReregKeepsMemory(t *testing.T) {
	dev, f := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	mr, old := regCollectable(t, pd)
	boom := errors.New("boom")
	f.Fail(boom)
	unknown := reregCollectable(t, mr, boom)
	f.Fail(verbs.ErrLockLimit)
	collected(reregCollectable(t, mr, verbs.ErrLockLimit))
	if old.Value() == nil || len(mr.Bytes()) != 4096 {
		t.Fatal("a failed change let go of the memory")
	}
	if unknown.Value() == nil {
		t.Fatal("the memory is collected, though the device may use it after an error that leaves the region in an unknown state")
	}
	next := reregCollectable(t, mr, nil)
	collected(old)
	collected(unknown)
	if next.Value() == nil || &mr.Bytes()[0] != &next.Value()[0] {
		t.Fatal("the region has not the new memory")
	}
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	mr = nil
	collected(next)
	if got := dev.Stats()["mr_forgotten"]; got != 0 {
		t.Errorf("%d regions are forgotten", got)
	}
}

// reregCollectable gives mr memory that only mr keeps alive.
func reregCollectable(t *testing.T, mr *verbs.MR, want error) weak.Pointer[[4096]byte] {
	t.Helper()
	memory := new([4096]byte)
	if err := mr.Rereg(verbs.MRChange{Memory: memory[:]}); !errors.Is(err, want) {
		t.Fatalf("Rereg: %v, want %v", err, want)
	}
	return weak.Make(memory)
}

// collected returns when memory was collected. The test's time limit ends it.
func collected(memory weak.Pointer[[4096]byte]) {
	for memory.Value() != nil {
		runtime.GC()
	}
}

// TestReregForgotten loses a region that was changed: it is reported and counted once, and its domain says that it is open.
func TestReregForgotten(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd, other := rig.Must(dev.AllocPD())(t), rig.Must(dev.AllocPD())(t)
	func() {
		mr, _ := regCollectable(t, pd)
		if err := mr.Rereg(verbs.MRChange{PD: other}); err != nil {
			t.Fatal(err)
		}
	}()
	rig.CloseAll(t, pd)
	for dev.Stats()["mr_forgotten"] == 0 { // the test's time limit ends it
		runtime.GC()
	}
	runtime.GC()
	if got := dev.Stats()["mr_forgotten"]; got != 1 {
		t.Errorf("mr_forgotten: got %d, want 1", got)
	}
	rig.WantErr(t, other.Close(), verbs.ErrBusy, "1 memory region")
}

// TestReregOfMappedMemory changes a region of AllocMR, whose mapping ends: not while the new memory is a part of it.
func TestReregOfMappedMemory(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	before := hostmem.Mapped()
	mr := rig.Must(pd.AllocMR(10000, verbs.LocalWrite))(t)
	for _, part := range [][]byte{mr.Bytes(), mr.Bytes()[:1], mr.Bytes()[9999:], mr.Bytes()[100:200]} {
		rig.WantErr(t, mr.Rereg(verbs.MRChange{Memory: part}), verbs.ErrInvalid, "AllocMR")
	}
	if err := mr.Rereg(verbs.MRChange{Access: verbs.LocalWrite, ChangeAccess: true}); err != nil || hostmem.Mapped()-before != 1 {
		t.Errorf("a change of the rights: %v, %d mappings", err, hostmem.Mapped()-before)
	}
	memory := make([]byte, 100)
	if err := mr.Rereg(verbs.MRChange{Memory: memory}); err != nil || hostmem.Mapped() != before {
		t.Errorf("other memory: %v, %d mappings", err, hostmem.Mapped()-before)
	}
	if err := mr.Rereg(verbs.MRChange{Memory: memory[:50]}); err != nil || mr.Len() != 50 {
		t.Errorf("a part of memory of the Go heap: %v", err)
	}
	rig.CloseAll(t, mr)
}

// TestReregKeepsAddress changes a region of RegMRAt: it keeps its address until it gets other memory.
// parity: V07
func TestReregKeepsAddress(t *testing.T) {
	dev := rig.Must(iwarp.Open(iwarp.Config{}))(t)
	pd, other := rig.Must(dev.AllocPD())(t), rig.Must(dev.AllocPD())(t)
	buf := make([]byte, 64)
	iova := 1<<40 + hostmem.Addr(buf)%uint64(os.Getpagesize())
	mr := rig.Must(pd.RegMRAt(buf, iova, verbs.LocalWrite))(t)
	for name, c := range map[string]verbs.MRChange{"domain": {PD: other}, "rights": {Access: verbs.RemoteRead, ChangeAccess: true}} {
		if err := mr.Rereg(c); err != nil || mr.Remote().Addr != iova || mr.SGE(8, 8).Addr != iova+8 {
			t.Errorf("%s: %v, the address is %#x for peers and %#x here, want %#x", name, err, mr.Remote().Addr, mr.SGE(0, 8).Addr, iova)
		}
	}
	memory := make([]byte, 128)
	if err := mr.Rereg(verbs.MRChange{Memory: memory}); err != nil || mr.Remote().Addr == iova || mr.SGE(8, 8).Addr != hostmem.Addr(memory)+8 {
		t.Errorf("other memory: %v, the address is %#x for peers and %#x here", err, mr.Remote().Addr, mr.SGE(0, 8).Addr)
	}
	rig.CloseAll(t, mr, pd, other, dev)
}

// TestReregOfOtherDevice moves a region to a domain of another device, which is refused.
func TestReregOfOtherDevice(t *testing.T) {
	dev, _ := rig.NewFake(t)
	foreign, _ := rig.NewFake(t)
	pd, theirs := rig.Must(dev.AllocPD())(t), rig.Must(foreign.AllocPD())(t)
	mr := rig.Must(pd.RegMR(make([]byte, 8), 0))(t)
	rig.CloseAll(t, mr, pd, dev, theirs, foreign)
	rig.WantErr(t, mr.Rereg(verbs.MRChange{PD: theirs}), verbs.ErrInvalid, "another device")
}

// TestReregAtOnce changes a region and closes it, while goroutines use its addresses and keys.
func TestReregAtOnce(t *testing.T) {
	dev := rig.Must(iwarp.Open(iwarp.Config{}))(t)
	pds := []*verbs.PD{rig.Must(dev.AllocPD())(t), rig.Must(dev.AllocPD())(t)}
	memory := [][]byte{make([]byte, 64), make([]byte, 4096)}
	mr := rig.Must(pds[0].RegMR(memory[0], verbs.LocalWrite))(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				c := verbs.MRChange{PD: pds[(i+n)%2], Memory: memory[n%2]}
				if n%3 == 0 {
					c.Access, c.ChangeAccess = verbs.LocalWrite|verbs.RemoteRead, true
				}
				err := mr.Rereg(c)
				if err != nil && !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("Rereg: %v", err)
				}
				if mr.SGE(8, 8).LKey == 0 || mr.Remote().RKey == 0 || mr.Len() < 64 {
					t.Error("a region without a key")
				}
				for _, m := range memory {
					if e, err := mr.SGEOf(m[8:16]); err == nil && e.Addr != hostmem.Addr(m)+8 {
						t.Errorf("SGEOf has the address %#x for the byte at %#x", e.Addr, hostmem.Addr(m)+8)
					}
				}
				if r := mr.Region(); r.Size != 64 && r.Size != 4096 {
					t.Errorf("a region of %d bytes", r.Size)
				}
				if n < 150 && i == 3 && mr.Bytes() == nil {
					t.Error("an open region without memory")
				}
				if i == 3 && n == 150 {
					if err := mr.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	if mr.Bytes() != nil {
		t.Error("the region has memory after Close")
	}
	rig.CloseAll(t, pds[0], pds[1], dev)
}
