package fault

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"cinnabar/verbs"
)

// Event is one fault that was injected.
type Event struct {
	At    Point
	Queue int          // the object's number in order of creation, from 1
	N     int          // number of the candidate among those of the rule at this queue, from 1
	Op    verbs.Opcode // AtSend: the operation
	Rule  int          // index in Plan.Rules
	Do    string       // the action in words
}

// String prints one line without its end.
func (e Event) String() string {
	s := fmt.Sprintf("%v %d #%d", e.At, e.Queue, e.N)
	if e.At == AtSend {
		s += " " + e.Op.String()
	}
	return fmt.Sprintf("%s: %s (rule %d)", s, e.Do, e.Rule)
}

func (in *Injector) record(e Event) { in.trace = append(in.trace, e) }

// unrecord takes the latest event back.
func (in *Injector) unrecord() { in.trace = in.trace[:len(in.trace)-1] }

// Trace returns the faults that were injected so far, ordered by point, queue
// and number: two runs that post the same to each queue give the same trace,
// however their goroutines were scheduled.
func (in *Injector) Trace() []Event {
	in.mu.Lock()
	t := slices.Clone(in.trace)
	in.mu.Unlock()
	slices.SortStableFunc(t, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.N, b.N), cmp.Compare(a.Rule, b.Rule))
	})
	return t
}

// WriteTrace writes the trace, a line for each fault.
func (in *Injector) WriteTrace(w io.Writer) error {
	for _, e := range in.Trace() {
		if _, err := fmt.Fprintln(w, e); err != nil {
			return err
		}
	}
	return nil
}
