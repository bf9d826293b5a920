package iwarp

import (
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/verbs"
)

// moderated is a completion queue with moderation, in simulated time.
type moderated struct {
	*cq
	t *testing.T
}

func newModerated(t *testing.T, count int, period time.Duration) *moderated {
	t.Helper()
	q := &moderated{newCQ(&device{}, 100, nil), t}
	if err := q.Moderate(count, period); err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *moderated) arm(solicitedOnly bool) {
	q.t.Helper()
	if err := q.Arm(solicitedOnly); err != nil {
		q.t.Fatal(err)
	}
}

// complete adds n completions.
func (q *moderated) complete(n int, status verbs.WCStatus, solicited bool) {
	for range n {
		q.add(cqe{wc: verbs.WC{Status: status}}, solicited)
	}
}

// pass lets d of simulated time pass, because the clock of the synctest bubble moves only while all its goroutines wait.
func (q *moderated) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // simulated time
}

// takeEvent reports whether an event has come, and takes it.
func (q *moderated) takeEvent() bool {
	synctest.Wait()
	select {
	case <-q.event:
		return true
	default:
		return false
	}
}

// want checks whether an event has come.
func (q *moderated) want(event bool, when string) {
	q.t.Helper()
	if got := q.takeEvent(); got != event {
		q.t.Errorf("%s: an event: %t, want %t", when, got, event)
	}
}

// TestModeration: the event comes after count completions, after the period since the first of them, and at once after a failed one.
// parity: N12
func TestModeration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 10 * time.Millisecond
		q := newModerated(t, 3, period)
		q.arm(false)
		q.complete(2, verbs.StatusSuccess, false)
		q.want(false, "two completions of three")
		q.complete(1, verbs.StatusSuccess, false)
		q.want(true, "three completions of three")
		q.pass(2 * period)
		q.want(false, "the period after the event")
		q.complete(5, verbs.StatusSuccess, false)
		q.want(false, "completions of a queue that is not armed")
		q.arm(false)
		q.complete(1, verbs.StatusSuccess, false)
		q.pass(period - 1)
		q.complete(1, verbs.StatusSuccess, false)
		q.want(false, "before the end of the period")
		q.pass(time.Nanosecond)
		q.want(true, "the end of the period since the first completion")
		q.arm(false)
		q.complete(1, verbs.StatusWRFlushErr, false)
		q.want(true, "a failed completion")
		q.arm(true)
		q.complete(5, verbs.StatusSuccess, false)
		q.pass(2 * period)
		q.want(false, "completions that are not solicited")
		q.complete(3, verbs.StatusSuccess, true)
		q.want(true, "three solicited completions")
	})
}

// TestModerationEnds: a delayed event comes at once when another Moderate, Moderate(1, 0) or Close ends its moderation.
// parity: N12
func TestModerationEnds(t *testing.T) {
	for name, end := range map[string]func(q *moderated) error{
		"other moderation": func(q *moderated) error { return q.Moderate(5, time.Minute) },
		"none":             func(q *moderated) error { return q.Moderate(1, 0) },
		"close":            func(q *moderated) error { return q.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newModerated(t, 3, time.Hour)
				q.arm(false)
				q.complete(1, verbs.StatusSuccess, false)
				q.want(false, "one completion of three")
				if err := end(q); err != nil {
					t.Fatal(err)
				}
				q.want(true, "the end of the moderation")
				q.pass(2 * time.Hour)
				q.want(false, "the end of the period")
			})
		})
	}
}

// TestModerationOfClosed: a closed queue refuses.
func TestModerationOfClosed(t *testing.T) {
	q := newModerated(t, 1, 0)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if err := q.Moderate(2, time.Second); err == nil {
		t.Error("a closed queue takes a moderation")
	}
}
