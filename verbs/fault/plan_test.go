package fault_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/fault"
	"cinnabar/verbs/verbstest/memdev"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestPlanCheck refuses plans that cannot do what they say.
func TestPlanCheck(t *testing.T) {
	ok := fault.Match{At: fault.AtSend}
	for name, rule := range map[string]fault.Rule{
		"no point":           {Match: fault.Match{}, Do: fault.Drop()},
		"unknown point":      {Match: fault.Match{At: 99}, Do: fault.Drop()},
		"no action":          {Match: ok},
		"wrong place":        {Match: fault.Match{At: fault.AtDial}, Do: fault.Drop()},
		"dup at receive":     {Match: fault.Match{At: fault.AtRecv}, Do: fault.Duplicate()},
		"negative nth":       {Match: fault.Match{At: fault.AtSend, Nth: -1}, Do: fault.Drop()},
		"chance over 1":      {Match: fault.Match{At: fault.AtSend, Chance: 1.5}, Do: fault.Drop()},
		"operation at dial":  {Match: fault.Match{At: fault.AtDial, Ops: []verbs.Opcode{verbs.OpSend}}, Do: fault.Refuse()},
		"reject of requests": {Match: fault.Match{At: fault.AtRegister}, Do: fault.Reject(nil)},
	} {
		_, err := fault.New(fault.Plan{Rules: []fault.Rule{{Match: ok, Do: fault.Drop()}, rule}})
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "rule 1") {
			t.Errorf("%s: %v, want ErrInvalid that names rule 1", name, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("Wrap accepted a plan without sense")
		}
	}()
	fault.Wrap(verbs.NewDevice(memdev.Open(memdev.Config{})), fault.Plan{Rules: []fault.Rule{{}}})
}

// TestEmptyPlan returns the device itself.
func TestEmptyPlan(t *testing.T) {
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	if got := fault.Wrap(dev, fault.Plan{Seed: 5}); got != dev {
		t.Error("the layer is there though it has nothing to do")
	}
}

// TestMatch goes through the conditions of a match by what they hit.
func TestMatch(t *testing.T) {
	writes := []verbs.Opcode{verbs.OpWrite}
	for name, tc := range map[string]struct {
		match fault.Match
		want  []uint64 // ids of the sends, 1 to 6 on queue pair 1 and 11 to 16 on queue pair 3; odd ones are writes
	}{
		"all":        {fault.Match{}, []uint64{1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16}},
		"queue":      {fault.Match{Queue: 3}, []uint64{11, 12, 13, 14, 15, 16}},
		"nth":        {fault.Match{Nth: 2}, []uint64{2, 12}},
		"ops":        {fault.Match{Ops: writes}, []uint64{1, 3, 5, 11, 13, 15}},
		"ops, nth":   {fault.Match{Ops: writes, Nth: 2}, []uint64{3, 13}},
		"skip":       {fault.Match{Skip: 4}, []uint64{5, 6, 15, 16}},
		"limit":      {fault.Match{Limit: 1}, []uint64{1, 11}},
		"skip,limit": {fault.Match{Queue: 1, Skip: 1, Limit: 2}, []uint64{2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.match.At = fault.AtSend
			r := newRig(t, 2, 0, fault.Rule{Match: tc.match, Do: fault.Delay(0)})
			for i := range uint64(12) {
				qp, id := r.qps[0], i+1
				if i >= 6 {
					qp, id = r.qps[2], i+5
				}
				op := verbs.OpRead
				if id%2 == 1 {
					op = verbs.OpWrite
				}
				r.post(qp, r.send(op, id, 8))
			}
			r.take(0, 12)
			var want []fault.Event
			for _, id := range tc.want {
				want = append(want, fault.Event{Queue: 1 + 2*int(id/10), Op: verbs.OpRead})
				if id%2 == 1 {
					want[len(want)-1].Op = verbs.OpWrite
				}
			}
			var got []fault.Event
			for _, e := range r.in.Trace() {
				got = append(got, fault.Event{Queue: e.Queue, Op: e.Op})
			}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("hits (-got +want):\n%s", diff)
			}
		})
	}
}

// chaos is a plan that leaves much to chance and breaks nothing for good.
var chaos = []fault.Rule{
	{Match: fault.Match{At: fault.AtSend, Chance: 0.3}, Do: fault.Delay(7)},
	{Match: fault.Match{At: fault.AtSend, Chance: 0.3}, Do: fault.Reorder(2)},
	{Match: fault.Match{At: fault.AtSend, Chance: 0.2}, Do: fault.NotReady(5)},
	{Match: fault.Match{At: fault.AtRecv, Chance: 0.2}, Do: fault.Delay(3)},
	{Match: fault.Match{At: fault.AtSend, Chance: 0.1}, Do: fault.Raise(verbs.EventPathMig)},
}

// chaosTrace runs two queue pairs at the same time under chaos.
func chaosTrace(t *testing.T, seed uint64) string {
	t.Helper()
	const n = 60
	r := newRig(t, 2, seed, chaos...)
	var wg sync.WaitGroup
	for i := range 2 {
		r.receive(r.qps[2*i+1], make([]uint64, n)...)
		wg.Go(func() {
			for id := range uint64(n) {
				if _, err := r.qps[2*i].PostSend([]verbs.SendWR{r.send(verbs.OpSend, id, 8)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for side := range 2 {
		for _, wc := range r.take(side, 2*n) {
			if wc.Status != verbs.StatusSuccess {
				t.Errorf("completion = %+v, want success", wc)
			}
		}
	}
	var s strings.Builder
	if err := r.in.WriteTrace(&s); err != nil {
		t.Fatal(err)
	}
	return s.String()
}

// TestReplay runs with one seed twice, though the goroutines are scheduled as
// they like, and with another one.
// parity: Y11
func TestReplay(t *testing.T) {
	first := chaosTrace(t, 42)
	if diff := cmp.Diff(chaosTrace(t, 42), first); diff != "" {
		t.Errorf("the same seed, another trace:\n%s", diff)
	}
	if chaosTrace(t, 43) == first {
		t.Error("another seed, the same trace")
	}
	if lines := strings.Count(first, "\n"); lines < 50 {
		t.Errorf("only %d faults in 240 posts:\n%s", lines, first)
	}
}

// anyAction draws an action that can be done at a work request and keeps the
// order of its queue: a dropped receive does not, since later ones overtake it.
func anyAction(t *rapid.T, at fault.Point) fault.Action {
	s := verbs.WCStatus(rapid.IntRange(0, verbs.NumWCStatus-1).Draw(t, "status"))
	actions := []fault.Action{fault.Status(s), fault.Delay(rapid.IntRange(0, 20).Draw(t, "polls")), fault.Reorder(2)}
	if at == fault.AtSend {
		ready := rapid.IntRange(-1, 20).Draw(t, "ready")
		actions = append(actions, fault.Drop(), fault.Duplicate(), fault.Disconnect(), fault.NotReady(ready), fault.Partial(5, s))
	}
	return rapid.SampledFrom(actions).Draw(t, "action")
}

func anyRule(t *rapid.T) fault.Rule {
	at := rapid.SampledFrom([]fault.Point{fault.AtSend, fault.AtRecv}).Draw(t, "at")
	return fault.Rule{
		Match: fault.Match{At: at, Nth: rapid.IntRange(0, 8).Draw(t, "nth"), Chance: rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "chance")},
		Do:    anyAction(t, at),
	}
}

// TestCountInCountOut runs random plans over random posts. Whatever happens, each
// request completes once, in the order of its queue, if it is of a kind that
// completes.
// parity: V35
func TestCountInCountOut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rules := rapid.SliceOfN(rapid.Custom(anyRule), 1, 4).Draw(rt, "rules")
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 40).Draw(rt, "steps")
		// The rig reports through a test of its own, which ends with its clean-up.
		t.Run("history", func(t *testing.T) { countHistory(t, rules, steps) })
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}

func countHistory(t *testing.T, rules []fault.Rule, steps []int) {
	r := newRig(t, 1, 7, rules...)
	a, b := r.qps[0], r.qps[1]
	for i := range uint64(60) {
		r.receive(b, 1000+i)
	}
	silent := map[uint64]bool{}
	for i, step := range steps {
		wr := r.send(verbs.OpSend, uint64(i), 8)
		switch step {
		case 0:
			wr.Op = verbs.OpWrite
		case 1:
			wr.Op = verbs.OpRead
		case 2:
			wr.Flags, silent[wr.ID] = 0, true
		case 3:
			wr.Flags |= verbs.Inline
		case 4:
			wr.Op = verbs.OpFetchAdd
		}
		r.post(a, wr)
		if step == 5 {
			r.none0()
		}
	}
	for i := range 2 {
		if err := r.in.Disconnect(i + 1); err != nil {
			t.Fatal(err)
		}
	}
	r.in.Advance(1 << 20)
	r.checkCounts(0, uint64(len(steps)), 0, silent)
	r.checkCounts(1, 60, 1000, nil)
}

// none0 polls with no room, which takes nothing and lets time pass.
func (r *rig) none0() {
	if n, err := r.cq[0].Poll(nil); n != 0 || err != nil {
		r.t.Errorf("Poll without room = %d, %v", n, err)
	}
}

// checkCounts takes all completions of a side and checks that the requests from
// first on completed once each, in order.
func (r *rig) checkCounts(side int, n, first uint64, silent map[uint64]bool) {
	r.t.Helper()
	var ids []uint64
	wc := make([]verbs.WC, 16)
	for idle := 0; idle < 200; idle++ {
		m, err := r.cq[side].Poll(wc)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, w := range wc[:m] {
			ids = append(ids, w.ID)
			idle = 0
		}
	}
	next := 0
	for id := first; id < first+n; id++ {
		if next < len(ids) && ids[next] == id {
			next++
		} else if !silent[id] {
			r.t.Fatalf("side %d: request %d is missing or out of order in %v", side, id, ids)
		}
	}
	if next != len(ids) {
		r.t.Fatalf("side %d: %v came beyond what was posted", side, ids[next:])
	}
}

// BenchmarkWrap measures a write through no layer, an empty plan, and a layer
// whose rules never match.
func BenchmarkWrap(b *testing.B) {
	never := fault.Rule{Match: fault.Match{At: fault.AtSend, Queue: 99}, Do: fault.Drop()}
	for _, bc := range []struct {
		name string
		wrap func(dev *verbs.Device) *verbs.Device
	}{
		{"none", func(dev *verbs.Device) *verbs.Device { return dev }},
		{"empty", func(dev *verbs.Device) *verbs.Device { return fault.Wrap(dev, fault.Plan{}) }},
		{"rules", func(dev *verbs.Device) *verbs.Device { return fault.Wrap(dev, fault.Plan{Rules: []fault.Rule{never}}) }},
	} {
		b.Run(bc.name, func(b *testing.B) { benchmarkWrites(b, bc.wrap(verbs.NewDevice(memdev.Open(memdev.Config{})))) })
	}
}
