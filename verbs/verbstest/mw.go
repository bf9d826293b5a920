package verbstest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cinnabar/verbs"
)

// The window of these tests covers windowLen bytes from windowOff on of a region of windowRegion bytes.
const (
	windowRegion = 256
	windowOff    = 64
	windowLen    = 64
)

// windowRights are the rights of most windows of these tests.
const windowRights = verbs.RemoteRead | verbs.RemoteWrite

// windowed is a pair whose passive side has a region that peers cannot use but by a window.
type windowed struct {
	*Pair
	t  *testing.T
	mr *verbs.MR
	w  verbs.MemoryWindow
}

// windowTypes runs test once for each type of windows that the device has, which skips the test if there is none.
func windowTypes(t *testing.T, dev *verbs.Device, test func(t *testing.T, typ verbs.MWType)) {
	a := attr(t, dev)
	if a.Caps&(verbs.CapMW1|verbs.CapMW2) == 0 {
		t.Skipf("device %s has no memory windows; MW/Types tests that it says so", a.Name)
	}
	for typ, c := range map[verbs.MWType]verbs.Caps{verbs.MWType1: verbs.CapMW1, verbs.MWType2: verbs.CapMW2} {
		if a.Caps.Has(c) {
			t.Run(typ.String(), func(t *testing.T) { test(t, typ) })
		}
	}
}

// needsType2 skips a test of windows of type 2 on a device without them.
func needsType2(t *testing.T, dev *verbs.Device) {
	t.Helper()
	if a := attr(t, dev); !a.Caps.Has(verbs.CapMW2) {
		t.Skipf("device %s has no memory windows of type 2; MW/Types tests that it says so", a.Name)
	}
}

func newWindowed(t *testing.T, dev *verbs.Device, typ verbs.MWType) *windowed {
	t.Helper()
	p := NewPair(t, dev, PairConfig{})
	return &windowed{Pair: p, t: t, mr: p.Passive.Alloc(windowRegion, verbs.LocalWrite|verbs.MWBind), w: p.Passive.allocMW(t, typ)}
}

func (s *Side) allocMW(t *testing.T, typ verbs.MWType) verbs.MemoryWindow {
	t.Helper()
	w, err := s.PD.AllocMW(typ)
	if err != nil {
		t.Fatalf("AllocMW(%v): %v", typ, err)
	}
	t.Cleanup(func() { closeAll(t, "memory window", w.Close) })
	return w
}

// bind is the request that binds the window to its range with the given rights.
func (x *windowed) bind(id uint64, access verbs.Access) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpBindMW, Flags: verbs.Signaled, MW: x.w, MWAccess: access, SGL: []verbs.SGE{x.mr.SGE(windowOff, windowLen)}}
}

// mustBind binds the window, and returns its key.
func (x *windowed) mustBind(access verbs.Access) uint32 {
	x.t.Helper()
	before := x.w.RKey()
	x.Passive.PostSend(x.bind(100, access))
	key := x.w.RKey()
	if key == before {
		x.t.Errorf("the key %#x is the one before the binding", key)
	}
	x.Passive.Expect(100, verbs.StatusSuccess, verbs.WCBindMW)
	return key
}

// through is a request of the active side for n bytes at off of the region by a key.
func (x *windowed) through(id uint64, op verbs.Opcode, off, n int, key uint32) verbs.SendWR {
	wr := x.Active.Send(id, off, n)
	wr.Op, wr.Remote = op, x.mr.RemoteAt(off).WithKey(key)
	return wr
}

// works writes and reads all of the window by a key.
func (x *windowed) works(key uint32) {
	x.t.Helper()
	want := x.Active.Fill(windowOff, windowLen, byte(key))
	x.Active.PostSend(x.through(1, verbs.OpWrite, windowOff, windowLen, key))
	x.Active.Expect(1, verbs.StatusSuccess, verbs.WCWrite)
	read := x.through(2, verbs.OpRead, windowOff, windowLen, key)
	read.SGL = []verbs.SGE{x.Active.MR.SGE(1024, windowLen)}
	x.Active.PostSend(read)
	x.Active.Expect(2, verbs.StatusSuccess, verbs.WCRead)
	if got := x.Active.MR.Bytes()[1024 : 1024+windowLen]; !bytes.Equal(got, want) {
		x.t.Errorf("read through the window = %x, want the %x that were written", got, want)
	}
}

// refused posts a request that the passive side must refuse, which changes no byte of the region.
func (x *windowed) refused(wr verbs.SendWR) {
	x.t.Helper()
	before := bytes.Clone(x.mr.Bytes())
	x.Active.Fill(0, windowRegion, 0xa5)
	x.Active.PostSend(wr)
	x.Active.Expect(wr.ID, verbs.StatusRemAccessErr, 0)
	x.Active.AwaitEnd()
	x.Passive.AwaitEnd()
	if !bytes.Equal(x.mr.Bytes(), before) {
		x.t.Error("a refused request has changed the region")
	}
}

// testMWTypes allocates windows of each type, which a device without them refuses by name.
// parity: V09 N12
func testMWTypes(t *testing.T, dev *verbs.Device) {
	a := attr(t, dev)
	some := a.Caps&(verbs.CapMW1|verbs.CapMW2) != 0
	for typ, c := range map[verbs.MWType]verbs.Caps{verbs.MWType1: verbs.CapMW1, verbs.MWType2: verbs.CapMW2} {
		pd := newPD(t, dev)
		w, err := pd.AllocMW(typ)
		if !a.Caps.Has(c) {
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), a.Name) || !strings.Contains(err.Error(), fmt.Sprintf("windows of type %d", typ)) {
				t.Errorf("AllocMW(%v) on a device without it: %v, want ErrUnsupported, the device and the type", typ, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("AllocMW(%v): %v", typ, err)
		}
		if w.Type() != typ {
			t.Errorf("type = %v, want %v", w.Type(), typ)
		}
		if err := pd.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close of the domain of an open window: %v, want ErrBusy", err)
		}
		closeAll(t, "memory window", w.Close, w.Close)
	}
	pd := newPD(t, dev)
	if _, err := pd.AllocMW(3); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("AllocMW(3): %v, want ErrInvalid", err)
	}
	if mr, err := pd.RegMR(make([]byte, 64), verbs.MWBind); some != (err == nil) {
		t.Errorf("capabilities %v, but a region with the right MWBind: %v", a.Caps, err)
	} else if err == nil {
		closeAll(t, "memory region", mr.Close)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("RegMR with MWBind: %v, want ErrUnsupported", err)
	}
	if some != (a.MaxMW > 0) {
		t.Errorf("capabilities %v and MaxMW %d contradict each other", a.Caps, a.MaxMW)
	}
}

// testMWBind uses the range of a window. The region itself has no right for peers.
// parity: V09 N12
func testMWBind(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		x := newWindowed(t, dev, typ)
		x.works(x.mustBind(windowRights))
		x.refused(x.through(3, verbs.OpWrite, windowOff, windowLen, x.mr.RKey()))
	})
}

// testMWOrder posts the binding and, without a wait, a message behind it, as a program does whose message carries the key to the peer.
// parity: V09
func testMWOrder(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		x := newWindowed(t, dev, typ)
		x.Active.PostRecv(9, 0, 8)
		x.Passive.PostSend(x.bind(1, windowRights), x.Passive.Send(2, 0, 8))
		x.Passive.Expect(1, verbs.StatusSuccess, verbs.WCBindMW)
		x.Passive.Expect(2, verbs.StatusSuccess, verbs.WCSend)
		x.Active.Expect(9, verbs.StatusSuccess, verbs.WCRecv)
		x.works(x.w.RKey())
	})
}

// testMWBeyond reaches for one byte outside of the window, at either end; the bytes belong to the region.
// parity: V09
func testMWBeyond(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			for _, off := range []int{windowOff - 1, windowOff + 1} {
				x := newWindowed(t, dev, typ)
				x.refused(x.through(3, op, off, windowLen, x.mustBind(windowRights)))
			}
		}
	})
}

// testMWRights uses a window against its rights.
// parity: V09
func testMWRights(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		for op, has := range map[verbs.Opcode]verbs.Access{verbs.OpWrite: verbs.RemoteRead, verbs.OpRead: verbs.RemoteWrite} {
			x := newWindowed(t, dev, typ)
			x.refused(x.through(3, op, windowOff, 8, x.mustBind(has)))
		}
	})
}

// testMWOtherQP uses the key of a window of type 2 on another connection of the same domain.
// parity: V09
func testMWOtherQP(t *testing.T, dev *verbs.Device) {
	needsType2(t, dev)
	x := newWindowed(t, dev, verbs.MWType2)
	key := x.mustBind(windowRights)
	other := &Side{t: t, ctx: x.Ctx, Dev: dev, PD: x.Passive.PD, CQ: x.Passive.CQ, MR: x.Passive.MR, QP: x.Passive.NewQP(verbs.QPConfig{})}
	y := &windowed{Pair: &Pair{Ctx: x.Ctx, Dev: dev, Active: newSide(t, x.Ctx, dev, PairConfig{}, false), Passive: other}, t: t, mr: x.mr, w: x.w}
	if err := y.connect(listen(t, dev, loopback), PairConfig{}); err != nil {
		t.Fatalf("connect: %v", err)
	}
	y.refused(y.through(3, verbs.OpWrite, windowOff, 8, key))
	x.works(key)
}

// localInv is a request that revokes a key of the side.
func localInv(id uint64, key uint32) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpLocalInv, Flags: verbs.Signaled, InvKey: key}
}

// testMWLocalInvalidate revokes the key of a window, and binds it again: the new key is valid, and the old one is not.
// parity: V09 N12
func testMWLocalInvalidate(t *testing.T, dev *verbs.Device) {
	needsType2(t, dev)
	x := newWindowed(t, dev, verbs.MWType2)
	first := x.mustBind(windowRights)
	x.works(first)
	x.Passive.PostSend(localInv(4, first))
	x.Passive.Expect(4, verbs.StatusSuccess, verbs.WCLocalInv)
	second := x.mustBind(windowRights)
	x.works(second)
	x.Passive.PostSend(localInv(5, second), x.bind(6, windowRights)) // in one list
	x.Passive.Expect(5, verbs.StatusSuccess, verbs.WCLocalInv)
	x.Passive.Expect(6, verbs.StatusSuccess, verbs.WCBindMW)
	x.works(x.w.RKey())
	x.refused(x.through(3, verbs.OpWrite, windowOff, 8, second))
}

// testMWInvalidated uses the key of a window that is not bound any more.
// parity: V09
func testMWInvalidated(t *testing.T, dev *verbs.Device) {
	needsType2(t, dev)
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		x := newWindowed(t, dev, verbs.MWType2)
		key := x.mustBind(windowRights)
		x.Passive.PostSend(localInv(4, key))
		x.Passive.Expect(4, verbs.StatusSuccess, verbs.WCLocalInv)
		x.refused(x.through(3, op, windowOff, 8, key))
	}
}

// testMWSendInvalidate has the peer revoke the key of a window; then the region can be closed.
// parity: V09 N12
func testMWSendInvalidate(t *testing.T, dev *verbs.Device) {
	needsType2(t, dev)
	x := newWindowed(t, dev, verbs.MWType2)
	key := x.mustBind(windowRights)
	x.works(key)
	x.Passive.PostRecv(9, 0, 16)
	inv := x.Active.Send(3, 0, 16)
	inv.Op, inv.InvKey = verbs.OpSendInvalidate, key
	x.Active.PostSend(inv)
	x.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	if wc := x.Passive.Expect(9, verbs.StatusSuccess, verbs.WCRecv); !wc.HasInv || wc.InvKey != key || wc.Len != 16 {
		t.Errorf("completion = %+v, want 16 bytes and the invalidated key %#x", wc, key)
	}
	x.refused(x.through(4, verbs.OpWrite, windowOff, 8, key))
	closeAll(t, "memory region", x.mr.Close)
}

// failsToBind posts a request that must be refused by PostSend or complete with StatusMWBindErr.
func (x *windowed) failsToBind(name string, wr verbs.SendWR) {
	x.t.Helper()
	switch n, err := x.Passive.QP.PostSend([]verbs.SendWR{wr}); {
	case err == nil:
		if wc := x.Passive.Take(1)[0]; wc.ID != wr.ID || wc.Status != verbs.StatusMWBindErr {
			x.t.Errorf("%s: completion = id %d, %v; want id %d, %v", name, wc.ID, wc.Status, wr.ID, verbs.StatusMWBindErr)
		}
	case n != 0 || !errors.Is(err, verbs.ErrInvalid):
		x.t.Errorf("%s: PostSend = %d, %v; want a failed completion, or 0 and ErrInvalid", name, n, err)
	}
}

// testMWBindRefused posts bindings that the device must refuse.
// parity: V09
func testMWBindRefused(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		for name, spoil := range map[string]func(x *windowed, wr *verbs.SendWR){
			"region without the right MWBind": func(x *windowed, wr *verbs.SendWR) { wr.SGL[0] = x.Passive.MR.SGE(0, 64) },
			"region of another domain": func(x *windowed, wr *verbs.SendWR) {
				wr.SGL[0] = x.Active.Alloc(64, verbs.LocalWrite|verbs.MWBind).SGE(0, 64)
			},
			"no region":                func(_ *windowed, wr *verbs.SendWR) { wr.SGL[0].LKey ^= 1 << 20 },
			"beyond the region":        func(_ *windowed, wr *verbs.SendWR) { wr.SGL[0].Length = windowRegion - windowOff + 1 },
			"region that is only read": func(x *windowed, wr *verbs.SendWR) { wr.SGL[0] = x.Passive.Alloc(64, verbs.MWBind).SGE(0, 64) },
		} {
			x := newWindowed(t, dev, typ)
			wr := x.bind(7, windowRights)
			spoil(x, &wr)
			x.failsToBind(name, wr)
		}
	})
}

// testMWBindTwice binds a bound window: type 2 refuses, type 1 gets a new key.
// parity: V09
func testMWBindTwice(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		x := newWindowed(t, dev, typ)
		old := x.mustBind(windowRights)
		if typ == verbs.MWType2 {
			x.failsToBind("second binding", x.bind(7, windowRights))
			return
		}
		x.works(x.mustBind(windowRights))
		x.refused(x.through(3, verbs.OpWrite, windowOff, 8, old))
	})
}

// testMWInvalidateUnknown revokes keys that belong to no window.
// parity: V09
func testMWInvalidateUnknown(t *testing.T, dev *verbs.Device) {
	needsType2(t, dev)
	for name, key := range map[string]func(x *windowed) uint32{
		"a key of nothing": func(x *windowed) uint32 { return x.w.RKey() ^ 1<<20 },
		"that of a region": func(x *windowed) uint32 { return x.mr.RKey() },
	} {
		x := newWindowed(t, dev, verbs.MWType2)
		x.failsToBind(name, localInv(7, key(x)))
	}
}

// testMWInvalidateTwice revokes a key a second time, by the owner and by the peer.
// parity: V09
func testMWInvalidateTwice(t *testing.T, dev *verbs.Device) {
	needsType2(t, dev)
	x := newWindowed(t, dev, verbs.MWType2)
	key := x.mustBind(windowRights)
	x.Passive.PostSend(localInv(4, key))
	x.Passive.Expect(4, verbs.StatusSuccess, verbs.WCLocalInv)
	x.failsToBind("second invalidation", localInv(7, key))

	x = newWindowed(t, dev, verbs.MWType2)
	key = x.mustBind(windowRights)
	x.Passive.PostSend(localInv(4, key))
	x.Passive.Expect(4, verbs.StatusSuccess, verbs.WCLocalInv)
	x.Passive.PostRecv(9, 0, 16)
	inv := x.Active.Send(3, 0, 16)
	inv.Op, inv.InvKey = verbs.OpSendInvalidate, key
	x.Active.PostSend(inv)
	if wc := x.Passive.Take(1)[0]; wc.Status == verbs.StatusSuccess || wc.HasInv {
		t.Errorf("the receiver's completion is %+v, want a failure", wc)
	}
	x.Active.AwaitEnd()
	x.Passive.AwaitEnd()
}

// testMWBusyRegion closes a region to which a window is bound, before and after the window is unbound or closed.
// parity: V09
func testMWBusyRegion(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		for _, byClose := range []bool{true, false} {
			x := newWindowed(t, dev, typ)
			key := x.mustBind(windowRights)
			if err := x.mr.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("Close of the region: %v, want ErrBusy", err)
			}
			if err := x.mr.Rereg(verbs.MRChange{Memory: make([]byte, windowRegion)}); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("Rereg of the region: %v, want ErrBusy", err)
			}
			x.works(key)
			switch {
			case byClose:
				closeAll(t, "memory window", x.w.Close)
			case typ == verbs.MWType2:
				x.Passive.PostSend(localInv(4, key))
				x.Passive.Expect(4, verbs.StatusSuccess, verbs.WCLocalInv)
			default:
				unbind := x.bind(4, 0)
				unbind.SGL = nil
				x.Passive.PostSend(unbind)
				x.Passive.Expect(4, verbs.StatusSuccess, verbs.WCBindMW)
			}
			closeAll(t, "memory region", x.mr.Close)
		}
	})
}

// testMWAtAddress binds a window to a part of a region at an address of the program's choice.
// parity: V07 V09
func testMWAtAddress(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		p := NewPair(t, dev, PairConfig{})
		x := &windowed{Pair: p, t: t, mr: p.regAt(t, windowRegion, verbs.LocalWrite|verbs.MWBind)}
		x.w = p.Passive.allocMW(t, typ) // after the region, which is closed after the window
		x.works(x.mustBind(windowRights))
	})
}

// testMWMisuse posts requests on windows that can never be carried out.
// parity: V09
func testMWMisuse(t *testing.T, dev *verbs.Device) {
	windowTypes(t, dev, func(t *testing.T, typ verbs.MWType) {
		x := newWindowed(t, dev, typ)
		for name, spoil := range map[string]func(wr *verbs.SendWR){
			"no window":                    func(wr *verbs.SendWR) { wr.MW = nil },
			"a window of another domain":   func(wr *verbs.SendWR) { wr.MW = x.Active.allocMW(t, typ) },
			"a right that is none":         func(wr *verbs.SendWR) { wr.MWAccess = verbs.LocalWrite },
			"inline":                       func(wr *verbs.SendWR) { wr.Flags |= verbs.Inline },
			"two entries":                  func(wr *verbs.SendWR) { wr.SGL = append(wr.SGL, x.mr.SGE(0, 8)) },
			"no bytes":                     func(wr *verbs.SendWR) { wr.SGL[0].Length = 0 },
			"an invalidation that gathers": func(wr *verbs.SendWR) { wr.Op = verbs.OpLocalInv },
		} {
			wr := x.bind(7, windowRights)
			spoil(&wr)
			if wr.Op == verbs.OpLocalInv && typ != verbs.MWType2 {
				continue
			}
			if n, err := x.Passive.QP.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: PostSend = %d, %v; want 0, ErrInvalid", name, n, err)
			}
		}
		x.works(x.mustBind(windowRights)) // the refusals have harmed nothing
	})
}
