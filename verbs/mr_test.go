package verbs_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"testing"
	"weak"

	"cinnabar/internal/hostmem"
	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// parity: V05
func TestRegMRRefusals(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	for _, c := range []struct {
		name   string
		size   int
		access verbs.Access
		want   []string
	}{
		{"empty", 0, verbs.LocalWrite, []string{"the size is 0 bytes"}},
		{"over the limit", 1<<20 + 1, verbs.LocalWrite, []string{"1048577 bytes", "limit of 1048576", "MaxMRSize"}},
		{"remote write alone", 8, verbs.RemoteWrite, []string{"need LocalWrite"}},
		{"remote atomic alone", 8, verbs.RemoteAtomic | verbs.RemoteRead, []string{"need LocalWrite"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := pd.RegMR(make([]byte, c.size), c.access)
			rig.WantErr(t, err, verbs.ErrInvalid, c.want...)
			_, err = pd.AllocMR(c.size, c.access)
			rig.WantErr(t, err, verbs.ErrInvalid, c.want...)
		})
	}
	_, err := pd.AllocMR(-1, 0)
	rig.WantErr(t, err, verbs.ErrInvalid, "-1 bytes")
	for _, ok := range []verbs.Access{0, verbs.RemoteRead, verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteAtomic} {
		rig.CloseAll(t, rig.Must(pd.RegMR(make([]byte, 8), ok))(t))
	}
}

func TestMRAddresses(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	buf := make([]byte, 64)
	mr := rig.Must(pd.RegMR(buf, verbs.LocalWrite))(t)
	rig.CloseAll(t, mr, pd, dev)

	base := hostmem.Addr(buf)
	if got, want := mr.SGE(8, 56), (verbs.SGE{Addr: base + 8, Length: 56, LKey: 0x11}); got != want {
		t.Errorf("SGE: got %+v, want %+v", got, want)
	}
	if got, want := mr.SGE(64, 0), (verbs.SGE{Addr: base + 64, LKey: 0x11}); got != want {
		t.Errorf("SGE at the end: got %+v, want %+v", got, want)
	}
	if got, want := mr.RemoteAt(3), (verbs.RemoteAddr{Addr: base + 3, RKey: 0x22}); got != want {
		t.Errorf("RemoteAt: got %v, want %v", got, want)
	}
	if got, want := mr.Region(), (verbs.Region{RemoteAddr: mr.Remote(), Size: 64}); got != want {
		t.Errorf("Region: got %v, want %v", got, want)
	}
	if mr.Len() != 64 || mr.LKey() != 0x11 || mr.RKey() != 0x22 || &mr.Bytes()[0] != &buf[0] {
		t.Errorf("got %d bytes, keys %#x %#x", mr.Len(), mr.LKey(), mr.RKey())
	}
}

func TestMRRangePanics(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	mr := rig.Must(pd.RegMR(make([]byte, 64), 0))(t)
	rig.CloseAll(t, mr, pd, dev)
	for _, r := range [][2]int{{-1, 1}, {0, -1}, {0, 65}, {64, 1}, {65, 0}, {math.MaxInt, math.MaxInt}} {
		if !panics(func() { mr.SGE(r[0], r[1]) }) {
			t.Errorf("SGE(%d, %d) did not panic", r[0], r[1])
		}
	}
	if !panics(func() { mr.RemoteAt(65) }) {
		t.Error("RemoteAt(65) did not panic")
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func TestSGEOf(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	whole := make([]byte, 96)
	mr := rig.Must(pd.RegMR(whole[16:80], 0))(t)
	rig.CloseAll(t, mr, pd, dev)
	for _, c := range []struct{ from, to int }{{16, 80}, {16, 17}, {79, 80}, {40, 48}} {
		got, err := mr.SGEOf(whole[c.from:c.to])
		if want := mr.SGE(c.from-16, c.to-c.from); err != nil || got != want {
			t.Errorf("[%d:%d]: got %+v, %v, want %+v", c.from, c.to, got, err, want)
		}
	}
	for _, c := range []struct{ from, to int }{{15, 17}, {0, 16}, {79, 81}, {80, 81}, {0, 96}} {
		_, err := mr.SGEOf(whole[c.from:c.to])
		rig.WantErr(t, err, verbs.ErrInvalid, "not inside the region")
	}
	if sge, err := mr.SGEOf(nil); err != nil || sge.Length != 0 {
		t.Errorf("empty slice: got %+v, %v", sge, err)
	}
}

func TestRegSlice(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	s := []uint64{1, 2, 3}
	mr := rig.Must(verbs.RegSlice(pd, s, verbs.LocalWrite))(t)
	rig.CloseAll(t, mr, pd, dev)
	if mr.Len() != 24 {
		t.Errorf("got %d bytes, want 24", mr.Len())
	}
	clear(mr.Bytes()[8:16])
	if s[0] != 1 || s[1] != 0 || s[2] != 3 {
		t.Errorf("got %v, want [1 0 3]: the region is not the slice's memory", s)
	}
	type celsius float32 // any type of numbers is accepted
	rig.CloseAll(t, rig.Must(verbs.RegSlice(pd, make([]celsius, 2), 0))(t))
}

// The registration alone keeps the memory alive, from RegMR to Close.
func TestPinLifetime(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	mr, memory := regCollectable(t, pd)
	runtime.GC()
	runtime.GC()
	if memory.Value() == nil {
		t.Fatal("the memory was collected while registered")
	}
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	mr = nil
	for memory.Value() != nil { // the test's time limit ends it
		runtime.GC()
	}
}

// regCollectable registers memory that nobody else holds on to.
func regCollectable(t *testing.T, pd *verbs.PD) (*verbs.MR, weak.Pointer[[4096]byte]) {
	t.Helper()
	memory := new([4096]byte)
	return rig.Must(pd.RegMR(memory[:], verbs.LocalWrite))(t), weak.Make(memory)
}

func TestMRClose(t *testing.T) {
	dev, f := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	mr := rig.Must(pd.RegMR(make([]byte, 8), 0))(t)
	boom := errors.New("boom")
	f.Fail(boom)
	rig.WantErr(t, mr.Close(), boom)
	if mr.Bytes() == nil {
		t.Error("a failed Close let go of the memory")
	}
	for range 2 {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
	if mr.Bytes() != nil {
		t.Error("Bytes is not nil after Close")
	}
}

func TestAllocMR(t *testing.T) {
	dev, f := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	before := hostmem.Mapped()
	mr := rig.Must(pd.AllocMR(10000, verbs.LocalWrite))(t)
	if got := hostmem.Mapped() - before; got != 1 {
		t.Errorf("%d mappings, want 1", got)
	}
	if mr.Len() != 10000 || mr.Remote().Addr%4096 != 0 || !bytes.Equal(mr.Bytes(), make([]byte, 10000)) {
		t.Error("the memory is not 10000 zeroed bytes on a page boundary")
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
	f.Fail(errors.New("no"))
	if _, err := pd.AllocMR(1, 0); err == nil {
		t.Error("no error from a driver that failed")
	}
	if got := hostmem.Mapped() - before; got != 0 {
		t.Errorf("%d mappings are left", got)
	}
}

// A region whose handle is lost is reported and counted, and stays registered.
func TestForgottenMR(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	log := rig.NewLogLines()
	dev.SetLogger(slog.New(log))
	_, memory := regCollectable(t, pd)
	for line := ""; line == ""; { // the test's time limit ends it
		runtime.GC()
		select {
		case line = <-log.Lines:
		default:
		}
	}
	if got := dev.Stats()["mr_forgotten"]; got != 1 {
		t.Errorf("mr_forgotten: got %d, want 1", got)
	}
	if memory.Value() == nil {
		t.Error("the memory was collected though the device may still use it")
	}
	rig.WantErr(t, pd.Close(), verbs.ErrBusy, "1 memory region")
}

// A closed region is not reported, whatever the collector does afterwards.
func TestClosedMRIsNotForgotten(t *testing.T) {
	dev, _ := rig.NewFake(t)
	pd := rig.Must(dev.AllocPD())(t)
	rig.CloseAll(t, pd, dev)
	mr, memory := regCollectable(t, pd)
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	mr = nil
	for memory.Value() != nil {
		runtime.GC()
	}
	if got := dev.Stats()["mr_forgotten"]; got != 0 {
		t.Errorf("mr_forgotten: got %d, want 0", got)
	}
}
