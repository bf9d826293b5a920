package grace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/grace"
	"cinnabar/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.Cleanup(leaktest.Exit)) }

func TestPeriod(t *testing.T) {
	const limit = 3 * time.Second
	for _, c := range []struct {
		name    string
		ends    time.Duration // when the operation's context ends; negative: never
		release time.Duration // when the caller is done; 0: it waits for the end
		want    time.Duration
	}{
		{"Whole", -1, 0, limit},
		{"EndedBefore", 0, 0, grace.Interrupted},
		{"EndsMeanwhile", time.Second, 0, time.Second + grace.Interrupted},
		{"EndsLate", limit - time.Millisecond, 0, limit},
		{"Released", 0, time.Millisecond, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				operation, end := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
				defer end()
				switch {
				case c.ends == 0:
					end()
				case c.ends > 0:
					time.AfterFunc(c.ends, end)
				}
				start := time.Now()
				period, release := grace.Period(operation, limit)
				defer release()
				if c.release > 0 {
					time.AfterFunc(c.release, release)
				}
				if got := period.Value(key{}); got != "value" {
					t.Errorf("the period has the value %v, want that of the operation", got)
				}
				<-period.Done()
				if got := time.Since(start); got != c.want {
					t.Errorf("the period ended after %v, want %v", got, c.want)
				}
			})
		})
	}
}

type key struct{}
