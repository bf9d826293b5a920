package verbs

import (
	"testing"
)

// connectRaw connects two queue pairs of a type by hand and returns the steps of both.
func connectRaw(t *testing.T, typ QPType, oa, ob OOB) (a, b *QP, ra, rb connected) {
	t.Helper()
	a, b = rawQP(t, typ), rawQP(t, typ)
	sa, sb := socketPair(t)
	ctx := testContext(t)
	active, passive := goConnect(ctx, oa, sa, a), goConnect(ctx, ob, sb, b)
	ra, rb = <-active, <-passive
	if ra.err != nil || rb.err != nil || ra.conn != nil || rb.conn != nil {
		t.Fatalf("got %+v, %+v", ra, rb)
	}
	if a.State() != StateRTS || b.State() != StateRTS {
		t.Errorf("states %v, %v", a.State(), b.State())
	}
	return a, b, ra, rb
}

// An unreliable connection has numbers and a path, and nothing about retries or reads.
// parity: V60
func TestOOBUnreliableConnection(t *testing.T) {
	path := AHAttr{PortNum: 2, SL: 3, SGIDIndex: 4, HasSGIDIndex: true}
	a, b, ra, rb := connectRaw(t, UC, OOB{Active: true, MTU: 5, Path: path}, OOB{Access: LocalWrite})
	if ra.info.GID != [16]byte{15: 9} || rb.info.GID != [16]byte{15: 11} || rb.info.LID != 8 {
		t.Errorf("got %+v and %+v", ra.info, rb.info)
	}
	stepsA, stepsB := a.drv.(*fakeQP).steps, b.drv.(*fakeQP).steps
	if len(stepsA) != 3 || len(stepsB) != 3 {
		t.Fatalf("%d and %d steps, want 3", len(stepsA), len(stepsB))
	}
	if stepsA[0].Access != RemoteWrite || stepsB[0].Access != LocalWrite || stepsA[0].Port != 2 {
		t.Errorf("INIT: %+v, %+v", stepsA[0], stepsB[0])
	}
	rtr := stepsA[1]
	want := AHAttr{GID: [16]byte{15: 9}, DLID: 7, PortNum: 2, SL: 3, SGIDIndex: 4, HasSGIDIndex: true}
	if rtr.AH != want || rtr.PathMTU != 5 || rtr.DestQPN != b.Num() || rtr.RQPSN != stepsB[2].SQPSN {
		t.Errorf("RTR: %+v", rtr)
	}
	if stepsB[1].PathMTU != rawMTU || stepsB[1].Access != LocalWrite {
		t.Errorf("RTR of the other side: %+v", stepsB[1])
	}
	if m := stepsA[2].Mask; m != AttrState|AttrSQPSN {
		t.Errorf("RTS: %v", m)
	}
}

// Datagrams have no connection; each side learns what its own need.
// parity: V60
func TestOOBDatagrams(t *testing.T) {
	a, _, ra, rb := connectRaw(t, UD, OOB{Active: true, QKey: 77}, OOB{})
	if ra.info.QKey != DefaultQKey || rb.info.QKey != 77 || ra.info.GID != [16]byte{15: 9} || ra.info.LID != 7 || ra.info.QPN == 0 {
		t.Errorf("got %+v and %+v", ra.info, rb.info)
	}
	steps := a.drv.(*fakeQP).steps
	if len(steps) != 3 || steps[0].QKey != 77 || steps[1].QKey != 77 || steps[2].Mask != AttrState|AttrSQPSN {
		t.Errorf("steps %+v", steps)
	}
	if got := (OOB{Path: AHAttr{SL: 2}}).AHAttr(ra.info); got != (AHAttr{GID: [16]byte{15: 9}, DLID: 7, SL: 2, PortNum: 1}) {
		t.Errorf("the way to the peer: %+v", got)
	}
}

// A key that the queue pair has already is what the peer is told.
func TestOOBKeepsKey(t *testing.T) {
	qp := rawQP(t, UD)
	if err := (OOB{QKey: 5}).InitQP(qp); err != nil {
		t.Fatal(err)
	}
	if in, err := LocalInfo(qp); err != nil || in.QKey != 5 {
		t.Errorf("got %+v, %v", in, err)
	}
	if in, err := LocalInfo(rawQP(t, UC)); err != nil || in.QKey != 0 {
		t.Errorf("of a connected type: %+v, %v", in, err)
	}
}
