package oob

import (
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// connectRaw connects two queue pairs of a type by hand and returns the steps of both.
func connectRaw(t *testing.T, typ verbs.QPType, oa, ob Config) (a, b *verbs.QP, ra, rb connected) {
	t.Helper()
	a, b = rawQP(t, typ), rawQP(t, typ)
	sa, sb := socketPair(t)
	ctx := rig.Context(t)
	active, passive := goConnect(ctx, oa, sa, a), goConnect(ctx, ob, sb, b)
	ra, rb = <-active, <-passive
	if ra.err != nil || rb.err != nil || ra.conn != nil || rb.conn != nil {
		t.Fatalf("got %+v, %+v", ra, rb)
	}
	if a.State() != verbs.StateRTS || b.State() != verbs.StateRTS {
		t.Errorf("states %v, %v", a.State(), b.State())
	}
	return a, b, ra, rb
}

// An unreliable connection has numbers and a path, and nothing about retries or reads.
// parity: V60
func TestUnreliableConnection(t *testing.T) {
	path := verbs.AHAttr{PortNum: 2, SL: 3, SGIDIndex: 4, HasSGIDIndex: true}
	a, b, ra, rb := connectRaw(t, verbs.UC, Config{Active: true, MTU: 5, Path: path}, Config{Access: verbs.LocalWrite})
	if ra.info.GID != [16]byte{15: 9} || rb.info.GID != [16]byte{15: 11} || rb.info.LID != 8 {
		t.Errorf("got %+v and %+v", ra.info, rb.info)
	}
	stepsA, stepsB := rig.FakeQPOf(t, a).Steps(), rig.FakeQPOf(t, b).Steps()
	if len(stepsA) != 3 || len(stepsB) != 3 {
		t.Fatalf("%d and %d steps, want 3", len(stepsA), len(stepsB))
	}
	if stepsA[0].Access != verbs.RemoteWrite || stepsB[0].Access != verbs.LocalWrite || stepsA[0].Port != 2 {
		t.Errorf("INIT: %+v, %+v", stepsA[0], stepsB[0])
	}
	rtr := stepsA[1]
	want := verbs.AHAttr{GID: [16]byte{15: 9}, DLID: 7, PortNum: 2, SL: 3, SGIDIndex: 4, HasSGIDIndex: true}
	if rtr.AH != want || rtr.PathMTU != 5 || rtr.DestQPN != b.Num() || rtr.RQPSN != stepsB[2].SQPSN {
		t.Errorf("RTR: %+v", rtr)
	}
	if stepsB[1].PathMTU != rawMTU || stepsB[1].Access != verbs.LocalWrite {
		t.Errorf("RTR of the other side: %+v", stepsB[1])
	}
	if m := stepsA[2].Mask; m != verbs.AttrState|verbs.AttrSQPSN {
		t.Errorf("RTS: %v", m)
	}
}

// Datagrams have no connection; each side learns what its own need.
// parity: V60
func TestDatagrams(t *testing.T) {
	a, _, ra, rb := connectRaw(t, verbs.UD, Config{Active: true, QKey: 77}, Config{})
	if ra.info.QKey != verbs.DefaultQKey || rb.info.QKey != 77 || ra.info.GID != [16]byte{15: 9} || ra.info.LID != 7 || ra.info.QPN == 0 {
		t.Errorf("got %+v and %+v", ra.info, rb.info)
	}
	steps := rig.FakeQPOf(t, a).Steps()
	if len(steps) != 3 || steps[0].QKey != 77 || steps[1].QKey != 77 || steps[2].Mask != verbs.AttrState|verbs.AttrSQPSN {
		t.Errorf("steps %+v", steps)
	}
	if got := (Config{Path: verbs.AHAttr{SL: 2}}).AHAttr(ra.info); got != (verbs.AHAttr{GID: [16]byte{15: 9}, DLID: 7, SL: 2, PortNum: 1}) {
		t.Errorf("the way to the peer: %+v", got)
	}
}

// A key that the queue pair has already is what the peer is told.
func TestKeepsKey(t *testing.T) {
	qp := rawQP(t, verbs.UD)
	if err := (Config{QKey: 5}).InitQP(qp); err != nil {
		t.Fatal(err)
	}
	if in, err := LocalQPInfo(qp); err != nil || in.QKey != 5 {
		t.Errorf("got %+v, %v", in, err)
	}
	if in, err := LocalQPInfo(rawQP(t, verbs.UC)); err != nil || in.QKey != 0 {
		t.Errorf("of a connected type: %+v, %v", in, err)
	}
}
