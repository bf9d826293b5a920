package fault_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"

	"github.com/google/go-cmp/cmp"
)

func sendRule(nth int, do fault.Action) fault.Rule {
	return fault.Rule{Match: fault.Match{At: fault.AtSend, Queue: 1, Nth: nth}, Do: do}
}

// TestStatusOfSend reaches every completion status on the send side: requests
// before the failed one succeed, those behind it are flushed, and so is the peer.
// parity: V21 Y11
func TestStatusOfSend(t *testing.T) {
	for s := range verbs.WCStatus(verbs.NumWCStatus) {
		t.Run(s.String(), func(t *testing.T) {
			r := newRig(t, 1, 0, sendRule(2, fault.Status(s)))
			a, b := r.qps[0], r.qps[1]
			r.receive(b, 100)
			r.post(a, r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8), r.send(verbs.OpWrite, 3, 8))
			want := []outcome{{1, verbs.StatusSuccess}, {2, s}, {3, verbs.StatusWRFlushErr}}
			if s == verbs.StatusSuccess {
				want[2].Status = verbs.StatusSuccess
			}
			if diff := cmp.Diff(outcomes(r.take(0, 3)), want); diff != "" {
				t.Errorf("completions (-got +want):\n%s", diff)
			}
			if s == verbs.StatusSuccess {
				return
			}
			if got := a.State(); got != verbs.StateErr {
				t.Errorf("state = %v, want ERR", got)
			}
			if diff := cmp.Diff(outcomes(r.take(1, 1)), []outcome{{100, verbs.StatusWRFlushErr}}); diff != "" {
				t.Errorf("peer's completions (-got +want):\n%s", diff)
			}
			r.none(0, 3)
		})
	}
}

// TestStatusOfReceive reaches every completion status on the receive side.
// parity: V21
func TestStatusOfReceive(t *testing.T) {
	for s := range verbs.WCStatus(verbs.NumWCStatus) {
		t.Run(s.String(), func(t *testing.T) {
			r := newRig(t, 1, 0, fault.Rule{Match: fault.Match{At: fault.AtRecv, Queue: 2, Nth: 1}, Do: fault.Status(s)})
			a, b := r.qps[0], r.qps[1]
			r.receive(b, 100, 101)
			r.post(a, r.send(verbs.OpSend, 1, 8))
			if diff := cmp.Diff(outcomes(r.take(1, 1)), []outcome{{100, s}}); diff != "" {
				t.Errorf("completions (-got +want):\n%s", diff)
			}
			if s == verbs.StatusSuccess {
				return
			}
			if diff := cmp.Diff(outcomes(r.take(1, 1)), []outcome{{101, verbs.StatusWRFlushErr}}); diff != "" {
				t.Errorf("completions (-got +want):\n%s", diff)
			}
			if got := b.State(); got != verbs.StateErr {
				t.Errorf("state = %v, want ERR", got)
			}
		})
	}
}

// TestStatusHasNoEffect checks that a failed write does not reach the peer, and
// that an unsignaled one makes a completion when it fails.
func TestStatusHasNoEffect(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Status(verbs.StatusRemAccessErr)))
	copy(r.mr.Bytes(), "payload!")
	wr := r.send(verbs.OpWrite, 7, 8)
	wr.Flags = 0
	r.post(r.qps[0], wr)
	if diff := cmp.Diff(outcomes(r.take(0, 1)), []outcome{{7, verbs.StatusRemAccessErr}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	if got := r.mr.Bytes()[rigMemory/2 : rigMemory/2+8]; !bytes.Equal(got, make([]byte, 8)) {
		t.Errorf("target memory = %q, want zeros", got)
	}
}

// TestDropUntilFlush loses a send: it and those behind it come back when the
// queue pair fails, and only then.
func TestDropUntilFlush(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(2, fault.Drop()))
	a := r.qps[0]
	inline := r.send(verbs.OpWrite, 3, 8)
	inline.Flags |= verbs.Inline
	r.post(a, r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8), inline)
	if diff := cmp.Diff(outcomes(r.take(0, 1)), []outcome{{1, verbs.StatusSuccess}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	r.none(0, 100)
	if err := r.in.Disconnect(1); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outcomes(r.take(0, 2)), []outcome{{2, verbs.StatusWRFlushErr}, {3, verbs.StatusWRFlushErr}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
}

// TestDropFlushedByPeer parks a waiter; the peer's end must wake it.
func TestDropFlushedByPeer(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Drop()))
	r.cq[0].SetSpin(0)
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8))
	got := make(chan []outcome)
	go func() { got <- outcomes(r.take(0, 1)) }()
	if err := r.qps[1].Modify(verbs.QPAttr{Mask: verbs.AttrState, State: verbs.StateErr}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(<-got, []outcome{{1, verbs.StatusWRFlushErr}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
}

// TestDropBeyondDepth fills the queue behind a lost send.
func TestDropBeyondDepth(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Drop()))
	_, cfg := r.qps[0].Query()
	for i := range cfg.MaxSendWR {
		r.post(r.qps[0], r.send(verbs.OpWrite, uint64(i), 8))
	}
	n, err := r.qps[0].PostSend([]verbs.SendWR{r.send(verbs.OpWrite, 999, 8)})
	if n != 0 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostSend = %d, %v; want 0, ErrQueueFull", n, err)
	}
}

// TestDropOfReceive loses a receive: the message takes the next one.
func TestDropOfReceive(t *testing.T) {
	r := newRig(t, 1, 0, fault.Rule{Match: fault.Match{At: fault.AtRecv, Queue: 2, Nth: 1}, Do: fault.Drop()})
	r.receive(r.qps[1], 100, 101)
	r.post(r.qps[0], r.send(verbs.OpSend, 1, 8))
	if diff := cmp.Diff(outcomes(r.take(1, 1)), []outcome{{101, verbs.StatusSuccess}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	if err := r.in.Disconnect(2); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outcomes(r.take(1, 1)), []outcome{{100, verbs.StatusWRFlushErr}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
}

// TestDelayCountsPolls withholds a completion and keeps the order behind it.
func TestDelayCountsPolls(t *testing.T) {
	const polls = 10
	r := newRig(t, 1, 0, sendRule(1, fault.Delay(polls)))
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8))
	r.none(0, polls)
	if diff := cmp.Diff(outcomes(r.take(0, 2)), []outcome{{1, 0}, {2, 0}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
}

// TestDelayWakesParkedWaiter checks that a program which parks goes on.
func TestDelayWakesParkedWaiter(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(0, fault.Delay(50)))
	r.cq[0].SetSpin(0)
	for i := range uint64(10) {
		r.post(r.qps[0], r.send(verbs.OpWrite, i, 8))
		r.take(0, 1)
	}
}

// TestAdvance ends a delay without polls.
func TestAdvance(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Delay(1000)))
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8))
	r.none(0, 10)
	r.in.Advance(1000)
	r.take(0, 1)
}

// TestReorder lets completions of one queue pair overtake those of another.
func TestReorder(t *testing.T) {
	r := newRig(t, 2, 0, sendRule(1, fault.Reorder(2)))
	a, b := r.qps[0], r.qps[2]
	r.post(a, r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8))
	r.post(b, r.send(verbs.OpWrite, 11, 8), r.send(verbs.OpWrite, 12, 8), r.send(verbs.OpWrite, 13, 8))
	var ids []uint64
	for range 5 {
		ids = append(ids, r.take(0, 1)[0].ID)
	}
	// A poll of one entry looks below only when nothing is ready, so the two of
	// the first queue pair come as soon as two of the second have gone by.
	if diff := cmp.Diff(ids, []uint64{11, 12, 1, 2, 13}); diff != "" {
		t.Errorf("order (-got +want):\n%s", diff)
	}
}

// TestReorderAlone gives up when there is nothing to be overtaken by.
func TestReorderAlone(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Reorder(5)))
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8))
	r.take(0, 1)
}

// TestDuplicate carries an addition out twice and completes it once.
func TestDuplicate(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Duplicate()))
	wr := r.send(verbs.OpFetchAdd, 1, 8)
	wr.CompareAdd = 5
	r.post(r.qps[0], wr, r.send(verbs.OpRead, 2, 8))
	if diff := cmp.Diff(outcomes(r.take(0, 2)), []outcome{{1, 0}, {2, 0}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	if got := r.mr.Bytes()[0]; got != 10 {
		t.Errorf("counter = %d, want 10", got)
	}
}

// TestDisconnectAfter breaks the connection after so many operations.
func TestDisconnectAfter(t *testing.T) {
	const n = 5
	r := newRig(t, 1, 0, sendRule(n+1, fault.Disconnect()))
	var want []outcome
	for i := range uint64(n + 3) {
		r.post(r.qps[0], r.send(verbs.OpWrite, i, 8))
		want = append(want, outcome{ID: i})
		if i >= n {
			want[i].Status = verbs.StatusWRFlushErr
		}
	}
	if diff := cmp.Diff(outcomes(r.take(0, n+3)), want); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	if got := r.qps[1].State(); got != verbs.StateErr {
		t.Errorf("peer's state = %v, want ERR", got)
	}
}

// TestNotReady holds a send back, then lets it through with what was inline at
// the time of the post; used up retries have their status.
func TestNotReady(t *testing.T) {
	const polls = 20
	r := newRig(t, 1, 0, sendRule(1, fault.NotReady(polls)), sendRule(3, fault.NotReady(-1)))
	a, b := r.qps[0], r.qps[1]
	r.receive(b, 100, 101)
	copy(r.mr.Bytes(), "first")
	wr := r.send(verbs.OpSend, 1, 5)
	wr.Flags |= verbs.Inline
	r.post(a, wr, r.send(verbs.OpRead, 2, 0))
	copy(r.mr.Bytes(), "later")
	r.none(0, polls-1)
	r.none(1, 1)
	if diff := cmp.Diff(outcomes(r.take(0, 2)), []outcome{{1, 0}, {2, 0}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	if got := string(r.mr.Bytes()[rigMemory/2 : rigMemory/2+5]); got != "first" {
		t.Errorf("received %q, want %q", got, "first")
	}
	r.post(a, r.send(verbs.OpSend, 3, 5))
	if diff := cmp.Diff(outcomes(r.take(0, 1)), []outcome{{3, verbs.StatusRNRRetryExcErr}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
}

// TestPartial lets a prefix arrive.
func TestPartial(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpWriteImm, verbs.OpSend} {
		t.Run(op.String(), func(t *testing.T) {
			r := newRig(t, 1, 0, sendRule(1, fault.Partial(12, verbs.StatusRetryExcErr)))
			r.receive(r.qps[1], 100)
			for i := range 16 {
				r.mr.Bytes()[i] = 0xaa
			}
			wr := r.send(op, 1, 8)
			wr.SGL = append(wr.SGL, r.mr.SGE(8, 8))
			r.post(r.qps[0], wr)
			if diff := cmp.Diff(outcomes(r.take(0, 1)), []outcome{{1, verbs.StatusRetryExcErr}}); diff != "" {
				t.Errorf("completions (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(outcomes(r.take(1, 1)), []outcome{{100, verbs.StatusWRFlushErr}}); diff != "" {
				t.Errorf("peer's completions (-got +want):\n%s", diff)
			}
			want := 12
			if op == verbs.OpSend {
				want = 0
			}
			if got := bytes.Count(r.mr.Bytes()[rigMemory/2:], []byte{0xaa}); got != want {
				t.Errorf("%d bytes arrived, want %d", got, want)
			}
		})
	}
}

// TestOverrun loses a completion and says so at the queue and by an event.
// parity: V23
func TestOverrun(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(2, fault.Overrun()))
	wr := r.send(verbs.OpWrite, 2, 8)
	wr.Flags = 0
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8), wr, r.send(verbs.OpWrite, 3, 8))
	if diff := cmp.Diff(outcomes(r.take(0, 1)), []outcome{{1, 0}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
	var wc [1]verbs.WC
	if n, err := r.cq[0].Wait(r.ctx, wc[:]); n != 0 || !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Wait = %d, %v; want 0, ErrCQOverrun", n, err)
	}
	ev, err := r.dev.NextEvent(r.ctx)
	if err != nil || ev.Type != verbs.EventCQErr || ev.CQ != r.cq[0] {
		t.Errorf("event = %+v, %v; want CQ error of the first queue", ev, err)
	}
}

// TestFailOfPost refuses a request of a list and leaves the others.
func TestFailOfPost(t *testing.T) {
	errOdd := errors.New("odd")
	r := newRig(t, 1, 0, sendRule(2, fault.Fail(errOdd)),
		fault.Rule{Match: fault.Match{At: fault.AtRecv, Queue: 2, Nth: 1}, Do: fault.Fail(verbs.ErrQueueFull)})
	n, err := r.qps[0].PostSend([]verbs.SendWR{r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8), r.send(verbs.OpWrite, 3, 8)})
	if n != 1 || !errors.Is(err, errOdd) {
		t.Errorf("PostSend = %d, %v; want 1, %v", n, err, errOdd)
	}
	if n, err := r.qps[1].PostRecv([]verbs.RecvWR{{}}); n != 0 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv = %d, %v; want 0, ErrQueueFull", n, err)
	}
	r.post(r.qps[0], r.send(verbs.OpWrite, 2, 8))
	r.take(0, 2)
}

// TestRefusedBelowIsNotCounted posts something that the device refuses: the rule
// for the first request must still find the next one.
func TestRefusedBelowIsNotCounted(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Delay(3)))
	bad := r.send(verbs.OpFetchAdd, 1, 7)
	if n, err := r.qps[0].PostSend([]verbs.SendWR{bad}); n != 0 || err == nil {
		t.Fatalf("PostSend = %d, %v; want a refusal", n, err)
	}
	if got := r.in.Trace(); len(got) != 0 {
		t.Errorf("trace = %v, want nothing", got)
	}
	r.post(r.qps[0], r.send(verbs.OpWrite, 2, 8))
	r.none(0, 3)
	r.take(0, 1)
}

// TestResetStartsAnew resets a broken queue pair and connects it again.
func TestResetStartsAnew(t *testing.T) {
	r := newRig(t, 1, 0, sendRule(1, fault.Drop()))
	r.post(r.qps[0], r.send(verbs.OpWrite, 1, 8), r.send(verbs.OpWrite, 2, 8))
	for _, qp := range r.qps {
		for _, s := range []verbs.QPState{verbs.StateReset, verbs.StateInit} {
			if err := qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: s}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.connect(r.qps[0], r.qps[1]); err != nil {
		t.Fatal(err)
	}
	r.post(r.qps[0], r.send(verbs.OpWrite, 3, 8))
	if diff := cmp.Diff(outcomes(r.take(0, 1)), []outcome{{ID: 3}}); diff != "" {
		t.Errorf("completions (-got +want):\n%s", diff)
	}
}

// Example of the text that a trace prints.
func ExampleEvent_String() {
	fmt.Println(fault.Event{At: fault.AtSend, Queue: 1, N: 3, Op: verbs.OpWrite, Rule: 0, Do: fault.Status(verbs.StatusRetryExcErr).String()})
	// Output: send 1 #3 rdma-write: status 12 (transport retry counter exceeded) (rule 0)
}
