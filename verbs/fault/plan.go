package fault

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cinnabar/verbs"
)

// Point is a place where a rule can act.
type Point uint8

const (
	// AtSend is the post of one send work request; Match.Queue is the queue pair.
	AtSend Point = iota + 1
	// AtRecv is the post of one receive; Match.Queue is the queue pair.
	AtRecv
	// AtSharedRecv is the post of one receive to a shared queue; Match.Queue is that queue.
	AtSharedRecv
	// AtDial is an attempt to connect; Match.Queue is the queue pair.
	AtDial
	// AtRequest is a connection request that came in; Match.Queue is the listener.
	AtRequest
	// AtRegister is the registration of a memory region, or a change of it (MR.Rereg); Match.Queue is the protection domain, before the change.
	AtRegister
	// AtCreateCQ is the creation of a completion queue.
	AtCreateCQ
	// AtCreateQP is the creation of a queue pair; Match.Queue is the protection domain.
	AtCreateQP
)

var pointNames = [...]string{AtSend: "send", AtRecv: "recv", AtSharedRecv: "shared-recv", AtDial: "dial",
	AtRequest: "request", AtRegister: "register", AtCreateCQ: "create-cq", AtCreateQP: "create-qp"}

// String names the point.
func (p Point) String() string {
	if p == 0 || int(p) >= len(pointNames) {
		return "unknown"
	}
	return pointNames[p]
}

// Plan lists the faults to inject. The zero value injects nothing.
type Plan struct {
	Seed  uint64 // decides the rules that have a Chance
	Rules []Rule
}

// Rule pairs a condition with an action. Rules are values: one rule may
// stand in many plans, and a plan may be used for many devices.
type Rule struct {
	Match Match
	Do    Action
}

// Match selects the candidates of a rule. All conditions must hold. Candidates are
// counted per rule and per queue, so that work on other queues at the same time
// changes nothing.
type Match struct {
	At    Point          // where; required
	Queue int            // the object's number in order of creation, from 1; 0: any
	Ops   []verbs.Opcode // AtSend: one of these operations; empty: any

	Nth    int     // only the nth candidate of a queue, from 1; 0: any
	Skip   int     // not the first Skip candidates of a queue
	Limit  int     // at most so many times per queue; 0: no bound
	Chance float64 // with this probability, decided by Plan.Seed; 0: always
}

// String prints the conditions.
func (m Match) String() string {
	s := []string{m.At.String()}
	add := func(format string, v any, ok bool) {
		if ok {
			s = append(s, fmt.Sprintf(format, v))
		}
	}
	add("queue %d", m.Queue, m.Queue != 0)
	add("ops %v", m.Ops, len(m.Ops) > 0)
	add("nth %d", m.Nth, m.Nth != 0)
	add("skip %d", m.Skip, m.Skip != 0)
	add("limit %d", m.Limit, m.Limit != 0)
	add("chance %v", m.Chance, m.Chance != 0)
	return strings.Join(s, ", ")
}

// check refuses a plan with a rule that could never match or act.
func (p *Plan) check() error {
	for i, r := range p.Rules {
		if err := r.check(); err != nil {
			return verbs.Errorf("fault plan", verbs.ErrInvalid, "rule %d (%v): %v", i, r.Match, err)
		}
	}
	return nil
}

func (r *Rule) check() error {
	m := &r.Match
	switch {
	case m.At.String() == "unknown":
		return fmt.Errorf("point %d of Match.At does not exist", m.At)
	case r.Do == nil:
		return errors.New("there is no action: Do is nil")
	case !slices.Contains(r.Do.points(), m.At):
		return fmt.Errorf("%v can be done at %v only", r.Do, r.Do.points())
	case m.Queue < 0 || m.Nth < 0 || m.Skip < 0 || m.Limit < 0:
		return errors.New("a count is negative")
	case m.Chance < 0 || m.Chance > 1:
		return fmt.Errorf("a chance of %v is outside 0 to 1", m.Chance)
	case len(m.Ops) > 0 && m.At != AtSend:
		return fmt.Errorf("operations (Ops) exist only at %v", AtSend)
	}
	return nil
}

// tally is how often a rule saw and hit one queue.
type tally struct{ seen, hit int }

// ruleQueue names the tally of one rule at one queue.
type ruleQueue struct{ rule, queue int }

// decision is the plan's answer for one candidate.
type decision struct {
	rule   int    // number in the plan, -1: nothing
	do     Action // nil: nothing
	raises []verbs.EventType
	undo   []func()
}

// apply ends a decision with err, the result of posting its request, and returns err: it takes the candidate back if the
// device refused it, because it will come again, and raises the decision's events otherwise.
func (d *decision) apply(err error, raise func(verbs.EventType)) error {
	if err != nil {
		if _, asked := d.do.(fail); !asked {
			d.cancel()
		}
		return err
	}
	for _, ev := range d.raises {
		raise(ev)
	}
	return nil
}

// cancel takes the candidate back: the device refused it, so it will come again.
func (d *decision) cancel() {
	for _, f := range d.undo {
		f()
	}
}

// decide asks the rules in order. Every rule counts the candidate; events are
// raised by each that hits, and the first other action is done. The caller holds mu.
func (in *Injector) decide(at Point, queue int, op verbs.Opcode) decision {
	d := decision{rule: -1}
	for i := range in.plan.Rules {
		r := &in.plan.Rules[i]
		if !r.Match.candidate(at, queue, op) || !in.hits(i, queue, &d) {
			continue
		}
		if ev, ok := r.Do.(raise); ok {
			d.raises = append(d.raises, ev.event)
		} else if d.do == nil {
			d.do, d.rule = r.Do, i
		} else {
			continue // an earlier rule decided
		}
		at, n := at, in.tallies[ruleQueue{i, queue}].seen
		in.record(Event{At: at, Queue: queue, N: n, Op: op, Rule: i, Do: r.Do.String()})
		d.undo = append(d.undo, in.unrecord)
	}
	return d
}

// candidate reports whether the fixed conditions hold.
func (m *Match) candidate(at Point, queue int, op verbs.Opcode) bool {
	return m.At == at && (m.Queue == 0 || m.Queue == queue) && (len(m.Ops) == 0 || slices.Contains(m.Ops, op))
}

// hits counts a candidate of rule i and reports whether it is to be acted on.
func (in *Injector) hits(i, queue int, d *decision) bool {
	m, key := &in.plan.Rules[i].Match, ruleQueue{i, queue}
	before := in.tallies[key]
	t := before
	t.seen++
	hit := t.seen > m.Skip && (m.Nth == 0 || t.seen == m.Nth) && (m.Limit == 0 || t.hit < m.Limit) &&
		(m.Chance == 0 || draw(in.plan.Seed, i, queue, t.seen) < m.Chance)
	if hit {
		t.hit++
	}
	in.tallies[key] = t
	d.undo = append(d.undo, func() { in.tallies[key] = before })
	return hit
}

// draw returns a number in [0, 1) that depends on its arguments alone, so that
// neither scheduling nor other queues change it: the finaliser of SplitMix64
// over each in turn.
func draw(seed uint64, ns ...int) float64 {
	x := seed
	for _, n := range ns {
		x += 0x9e3779b97f4a7c15 * (uint64(n) + 1)
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return float64(x>>11) / (1 << 53)
}
