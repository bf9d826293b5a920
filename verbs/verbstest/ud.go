package verbstest

import (
	"bytes"
	"errors"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// datagrams are two queue pairs of type UD that know of each other.
type datagrams struct {
	*Pair
	toPassive, toActive verbs.AddressHandle
	passive, active     oob.QPInfo // as the other side received them
}

func newDatagrams(t *testing.T, dev *verbs.Device, cfg PairConfig, active, passive oob.Config) *datagrams {
	t.Helper()
	needsType(t, dev, verbs.UD)
	cfg.QP.Type = verbs.UD
	d := &datagrams{}
	d.Pair, d.passive, d.active = newPairByHand(t, dev, cfg, active, passive)
	d.toPassive = d.Active.newAH(active.AHAttr(d.passive))
	d.toActive = d.Passive.newAH(passive.AHAttr(d.active))
	return d
}

// newAH makes an address handle until the test ends.
func (s *Side) newAH(a verbs.AHAttr) verbs.AddressHandle {
	s.t.Helper()
	ah, err := s.PD.CreateAH(a)
	if err != nil {
		s.t.Fatalf("CreateAH(%+v): %v", a, err)
	}
	s.t.Cleanup(func() { closeAll(s.t, "address handle", ah.Close) })
	return ah
}

// send is a signaled datagram of n bytes at off from the active side.
func (d *datagrams) send(id uint64, off, n int) verbs.SendWR {
	wr := d.Active.Send(id, off, n)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = d.toPassive, d.passive.QPN, d.passive.QKey
	return wr
}

// expectDatagram waits for a datagram of n bytes from the queue pair src, in the
// receive at off, and checks the header in front of it.
func (s *Side) expectDatagram(id uint64, src uint32, off, n int) verbs.WC {
	s.t.Helper()
	wc := s.Expect(id, verbs.StatusSuccess, verbs.WCRecv)
	if wc.SrcQP != src || int(wc.Len) != verbs.GRHLen+n {
		s.t.Errorf("completion %+v; want %d bytes and those of the header from queue pair %#x", wc, n, src)
	}
	if !wc.HasGRH {
		return wc
	}
	grh, err := verbs.ParseGRH(s.MR.Bytes()[off:])
	if gids := attr(s.t, s.Dev).Ports[0].GIDs; err != nil || grh.SGID != gids[0] || grh.DGID != gids[0] {
		s.t.Errorf("header % x = %+v, %v; want %x twice", s.MR.Bytes()[off:off+verbs.GRHLen], grh, err, gids[0])
	}
	return wc
}

// testUDMessages sends datagrams of several sizes with one handle, with and without immediate.
func testUDMessages(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	roce := attr(t, dev).Ports[0].LinkLayer == "Ethernet"
	for i, size := range []int{1, 0, 100, 256} {
		id := uint64(i)
		want := d.Active.Fill(0, size, byte(i)+1)
		d.Passive.PostRecv(id, 1000, verbs.GRHLen+256)
		wr := d.send(100+id, 0, size)
		if i%2 == 0 {
			wr.Op, wr.Imm = verbs.OpSendImm, immediate
		}
		d.Active.PostSend(wr)
		d.Active.Expect(100+id, verbs.StatusSuccess, verbs.WCSend)
		wc := d.Passive.expectDatagram(id, d.Active.QP.Num(), 1000, size)
		if wc.HasImm != (i%2 == 0) || wc.HasImm && wc.Imm != immediate || roce && !wc.HasGRH {
			t.Errorf("%d bytes: completion %+v", size, wc)
		}
		if got := d.Passive.MR.Bytes()[1000+verbs.GRHLen:][:size]; !bytes.Equal(got, want) {
			t.Errorf("%d bytes: the payload differs", size)
		}
	}
}

// testUDReply answers a sender that is known only by the completion of its datagram.
// parity(vm): V40
func testUDReply(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	d.Passive.PostRecv(1, 0, verbs.GRHLen+8)
	d.Active.PostRecv(2, 0, verbs.GRHLen+8)
	d.Active.PostSend(d.send(3, 100, 8))
	d.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	wc := d.Passive.expectDatagram(1, d.Active.QP.Num(), 0, 8)
	a, err := d.Passive.PD.AHAttrFromWC(1, &wc, d.Passive.MR.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if a.GID != d.active.GID || a.PortNum != 1 || wc.HasGRH && attr(t, dev).Ports[0].GIDTable != nil && !a.HasSGIDIndex {
		t.Errorf("the way back is %+v, want that of %+v", a, d.active)
	}
	ah, err := d.Passive.PD.CreateAHFromWC(1, &wc, d.Passive.MR.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	wr := d.Passive.Send(4, 200, 8)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, wc.SrcQP, d.active.QKey
	d.Passive.PostSend(wr)
	d.Passive.Expect(4, verbs.StatusSuccess, verbs.WCSend)
	d.Active.expectDatagram(2, d.Passive.QP.Num(), 0, 8)
	closeAll(t, "address handle", ah.Close, ah.Close)
	wc.HasGRH = true
	if _, err := d.Passive.PD.CreateAHFromWC(1, &wc, make([]byte, verbs.GRHLen)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("from a header that is none: %v, want ErrInvalid", err)
	}
}

// testUDManySenders receives from several queue pairs, and sends to several with one handle.
func testUDManySenders(t *testing.T, dev *verbs.Device) {
	const senders = 4
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	for i := range uint64(senders) {
		qp := d.Active.NewQP(verbs.QPConfig{Type: verbs.UD})
		in, err := oob.LocalQPInfo(qp)
		if err != nil {
			t.Fatal(err)
		}
		if err := (oob.Config{}).DriveToRTS(qp, in, d.passive); err != nil {
			t.Fatal(err)
		}
		d.Passive.PostRecv(i, 0, verbs.GRHLen+8)
		if _, err := qp.PostSend([]verbs.SendWR{d.send(i, 0, 8)}); err != nil {
			t.Fatal(err)
		}
		if wc := d.Active.Take(1)[0]; wc.ID != i || wc.Err() != nil || wc.QPNum != qp.Num() {
			t.Errorf("sender %d: completion %+v", i, wc)
		}
		d.Passive.expectDatagram(i, qp.Num(), 0, 8)
	}
	own := d.Active.NewQP(verbs.QPConfig{Type: verbs.UD}) // not in RTR: datagrams sent there are lost
	wr := d.send(1, 0, 8)
	wr.RemoteQPN = own.Num()
	d.Active.PostSend(wr)
	d.Active.Expect(1, verbs.StatusSuccess, verbs.WCSend)
}

func testUDLost(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	afterLoss(t, d.Pair, verbs.GRHLen+64, func(id uint64, imm uint32) verbs.SendWR {
		wr := d.send(id, 0, 64)
		wr.Op, wr.Imm = verbs.OpSendImm, imm
		return wr
	})
}

// testUDWrongQKey: a datagram with another key is dropped, the next arrives.
func testUDWrongQKey(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	d.Passive.PostRecv(1, 0, verbs.GRHLen+8)
	d.Passive.PostRecv(2, 0, verbs.GRHLen+8)
	bad := d.send(3, 0, 1)
	bad.RemoteQKey ^= 1
	d.Active.PostSend(bad, d.send(4, 0, 8))
	d.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	d.Active.Expect(4, verbs.StatusSuccess, verbs.WCSend)
	d.Passive.expectDatagram(1, d.Active.QP.Num(), 0, 8)
	d.Passive.Quiet()
}

// testUDOwnQKey gives each side a key of its own, which the exchange carries.
func testUDOwnQKey(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{QKey: 0x1234}, oob.Config{QKey: 0x5678})
	if d.active.QKey != 0x1234 || d.passive.QKey != 0x5678 {
		t.Errorf("keys %#x and %#x", d.active.QKey, d.passive.QKey)
	}
	if a, _ := d.Active.QP.Query(); a.Mask&verbs.AttrQKey != 0 && a.QKey != 0x1234 {
		t.Errorf("query says %#x", a.QKey)
	}
	d.Passive.PostRecv(1, 0, verbs.GRHLen+8)
	d.Active.PostRecv(2, 0, verbs.GRHLen+8)
	d.Active.PostSend(d.send(3, 0, 8))
	back := d.Passive.Send(4, 0, 8)
	back.AH, back.RemoteQPN, back.RemoteQKey = d.toActive, d.active.QPN, d.active.QKey
	d.Passive.PostSend(back)
	d.Passive.expectBoth(d.Active.QP.Num(), 4, 1)
	d.Active.expectBoth(d.Passive.QP.Num(), 3, 2)
}

// expectBoth waits for the completion of a send and of a datagram, in either order.
func (s *Side) expectBoth(src uint32, sent, received uint64) {
	s.t.Helper()
	for _, wc := range s.Take(2) {
		ok := wc.ID == sent && wc.Op == verbs.WCSend || wc.ID == received && wc.Op == verbs.WCRecv && wc.SrcQP == src
		if !ok || wc.Err() != nil {
			s.t.Errorf("completion %+v; want send %d and receive %d from %#x", wc, sent, received, src)
		}
	}
}

// testUDLongest sends as much as a packet holds, and one byte more.
// parity(vm): V29
func testUDLongest(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	most := attr(t, dev).Ports[0].ActiveMTU.Bytes()
	d.Passive.PostRecv(1, 0, verbs.GRHLen+most)
	want := d.Active.Fill(0, most, 3)
	d.Active.PostSend(d.send(2, 0, most))
	d.Active.Expect(2, verbs.StatusSuccess, verbs.WCSend)
	d.Passive.expectDatagram(1, d.Active.QP.Num(), 0, most)
	if !bytes.Equal(d.Passive.MR.Bytes()[verbs.GRHLen:][:most], want) {
		t.Error("the payload differs")
	}
	d.Active.refuseSend(d.send(3, 0, most+1), verbs.ErrInvalid, "MTU")
	two := d.send(3, 0, most)
	two.SGL = append(two.SGL, d.Active.MR.SGE(0, 1))
	d.Active.refuseSend(two, verbs.ErrInvalid, "MTU")
}

// testUDRefusals posts operations that datagrams do not have, or without a destination.
// parity(vm): V29
func testUDRefusals(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	d.refuseOpcodes(verbs.UD, d.toPassive, verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd)
	nowhere := d.send(1, 0, 8)
	nowhere.AH = nil
	d.Active.refuseSend(nowhere, verbs.ErrInvalid, "AH is nil")
	foreign := d.send(1, 0, 8)
	foreign.AH = d.toActive
	d.Active.refuseSend(foreign, verbs.ErrInvalid, "protection domain")
	number := d.send(1, 0, 8)
	number.RemoteQPN = 1 << 24
	d.Active.refuseSend(number, verbs.ErrInvalid, "24 bits")
	d.Passive.PostRecv(2, 0, verbs.GRHLen+8)
	d.Active.PostSend(d.send(3, 0, 8))
	d.Active.Expect(3, verbs.StatusSuccess, verbs.WCSend)
	d.Passive.expectDatagram(2, d.Active.QP.Num(), 0, 8)
}

// testUDHandleInUse closes a handle while a datagram is on its way to it: that
// is refused, or the datagram arrives all the same.
// parity(vm): V40
func testUDHandleInUse(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	ah := d.Active.newAH(oob.Config{}.AHAttr(d.passive))
	if err := d.Active.PD.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("close of the domain: %v, want ErrBusy", err)
	}
	const n = 10
	for i := range uint64(n) {
		d.Passive.PostRecv(i, 0, verbs.GRHLen+8)
		wr := d.send(i, 0, 8)
		wr.AH = ah
		if i < n-1 {
			wr.Flags = 0 // done when the last one is
		}
		d.Active.PostSend(wr)
	}
	if err := ah.Close(); err != nil && !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close: %v, want ErrBusy or success", err)
	}
	d.Active.Expect(n-1, verbs.StatusSuccess, verbs.WCSend)
	for i := range uint64(n) {
		d.Passive.expectDatagram(i, d.Active.QP.Num(), 0, 8)
	}
	closeAll(t, "address handle", ah.Close)
	wr := d.send(1, 0, 8)
	wr.AH = ah
	d.Active.refuseSend(wr, verbs.ErrClosed)
	d.Active.Quiet()

	// A request that is flushed or forgotten holds a handle no longer.
	flushed, forgotten := d.Active.newAH(oob.Config{}.AHAttr(d.passive)), d.Active.newAH(oob.Config{}.AHAttr(d.passive))
	wr.AH = flushed
	d.Active.Break()
	d.Active.PostSend(wr)
	if err := d.Active.QP.Modify(toState(verbs.StateReset)); err != nil {
		t.Fatal(err)
	}
	closeAll(t, "address handle", flushed.Close)
	d.Active.Break()
	wr.AH = forgotten
	d.Active.PostSend(wr)
	closeAll(t, "queue pair", d.Active.QP.Close)
	closeAll(t, "address handle", forgotten.Close)
}

// testUDHandleRefusals describes ways that there are not.
// parity(vm): V40
func testUDHandleRefusals(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	good := oob.Config{}.AHAttr(d.passive)
	ports := uint8(len(attr(t, dev).Ports))
	for what, change := range map[string]func(a *verbs.AHAttr){
		"port":          func(a *verbs.AHAttr) { a.PortNum = ports + 1 },
		"service level": func(a *verbs.AHAttr) { a.SL = 16 },
		"flow label":    func(a *verbs.AHAttr) { a.FlowLabel = 1 << 20 },
	} {
		bad := good
		change(&bad)
		if ah, err := d.Active.PD.CreateAH(bad); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
			if err == nil {
				closeAll(t, "address handle", ah.Close)
			}
		}
	}
}

// testUDShared receives datagrams from a shared queue.
func testUDShared(t *testing.T, dev *verbs.Device) {
	needsType(t, dev, verbs.UD)
	needs(t, dev, verbs.CapSRQ)
	d := newDatagrams(t, dev, PairConfig{SRQ: true}, oob.Config{}, oob.Config{})
	for i := range uint64(3) {
		d.Passive.PostRecv(i, 0, verbs.GRHLen+8)
		d.Active.PostSend(d.send(10+i, 0, 8))
		d.Active.Expect(10+i, verbs.StatusSuccess, verbs.WCSend)
		d.Passive.expectDatagram(i, d.Active.QP.Num(), 0, 8)
	}
}

// testUDStates asks for steps that the type does not have: it has no peer.
// parity(vm): V26
func testUDStates(t *testing.T, dev *verbs.Device) {
	needsType(t, dev, verbs.UD)
	s := newSide(t, testContext(t), dev, PairConfig{QP: verbs.QPConfig{Type: verbs.UD}}, false)
	if _, cfg := s.QP.Query(); cfg.Type != verbs.UD {
		t.Errorf("query = %+v", cfg)
	}
	refused := func(what string, to verbs.QPState, mask verbs.QPAttrMask) {
		t.Helper()
		before := s.QP.State()
		a := verbs.QPAttr{Mask: verbs.AttrState | mask, State: to}
		if err := s.QP.Modify(a); !errors.Is(err, verbs.ErrInvalid) || s.QP.State() != before {
			t.Errorf("%s: %v, state %v; want ErrInvalid, %v", what, err, s.QP.State(), before)
		}
	}
	step := func(to verbs.QPState, mask verbs.QPAttrMask) {
		t.Helper()
		a := verbs.QPAttr{Mask: verbs.AttrState | mask, State: to, Port: 1, QKey: 7}
		if err := s.QP.Modify(a); err != nil || s.QP.State() != to {
			t.Fatalf("to %v: %v, state %v", to, err, s.QP.State())
		}
	}
	step(verbs.StateErr, 0)
	step(verbs.StateReset, 0)
	refused("RESET to RTR", verbs.StateRTR, 0)
	refused("INIT with rights", verbs.StateInit, verbs.AttrPKeyIndex|verbs.AttrPort|verbs.AttrQKey|verbs.AttrAccess)
	step(verbs.StateInit, verbs.AttrPKeyIndex|verbs.AttrPort|verbs.AttrQKey)
	refused("RTR with a path", verbs.StateRTR, verbs.AttrAV)
	refused("RTR with a peer", verbs.StateRTR, verbs.AttrDestQPN)
	step(verbs.StateRTR, 0)
	refused("RTS without a number", verbs.StateRTS, 0)
	refused("RTS with retries", verbs.StateRTS, verbs.AttrSQPSN|verbs.AttrRetryCount)
	step(verbs.StateRTS, verbs.AttrSQPSN)
	step(verbs.StateRTS, verbs.AttrQKey)
	step(verbs.StateErr, 0)
}

func testUDFlush(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	toTheBreak(t, d.Active, func(id uint64) verbs.SendWR { return d.send(id, 0, 8) })
	closeAll(t, "address handle", d.toPassive.Close)
}

// testUDAllocs counts the allocations of posting, sending and polling datagrams.
func testUDAllocs(t *testing.T, dev *verbs.Device) {
	d := newDatagrams(t, dev, PairConfig{}, oob.Config{}, oob.Config{})
	send := []verbs.SendWR{d.send(1, 0, 8)}
	recv := []verbs.RecvWR{{ID: 2, SGL: []verbs.SGE{d.Passive.MR.SGE(0, verbs.GRHLen+8)}}}
	wc := make([]verbs.WC, 1)
	await := func(cq *verbs.CQ) {
		for n := 0; n == 0; {
			var err error
			if n, err = cq.Poll(wc); err != nil || d.Ctx.Err() != nil || n == 1 && wc[0].Status != verbs.StatusSuccess {
				t.Fatalf("Poll: %v, %+v", err, wc[0])
			}
		}
	}
	allocs := testing.AllocsPerRun(200, func() {
		if _, err := d.Passive.QP.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Active.QP.PostSend(send); err != nil {
			t.Fatal(err)
		}
		await(d.Active.CQ)
		await(d.Passive.CQ)
	})
	if allocs != 0 && !invariants.Race {
		t.Errorf("%v allocations for a datagram", allocs)
	}
}
