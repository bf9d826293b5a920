package balance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/native"
)

// TestFeed changes the servers of a client by a Feed. The client takes over each change after MinRefresh at the latest, and keeps its servers on an error.
// parity: A06
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var feed Feed
		c, f := newFakes(t, Config{Resolver: &feed, Refresh: time.Hour, MinRefresh: 2 * time.Second})
		elapse(time.Second)
		if _, _, err := c.tryAcquire(nil); err != nil {
			t.Errorf("before the first Set: %v", err)
		}
		feed.Set(StaticAddrs("a"), nil)
		synctest.Wait()
		f.set(native.ServingYes, "a")
		if n := pick(t, c, f, nil); n != "a" {
			t.Errorf("picked %s", n)
		}
		broken := errors.New("the registry is gone")
		for _, step := range []struct {
			list []Address
			err  error
			want string
		}{
			{StaticAddrs("a", "b"), nil, "a b"}, {StaticAddrs("b"), nil, "b"}, {nil, broken, "b"}, {StaticAddrs("c"), broken, "b"}, {nil, nil, ""},
		} {
			feed.Set(step.list, step.err)
			elapse(2 * time.Second)
			var have []string
			servers, _ := c.Servers() // the error is the Feed's
			for _, s := range servers {
				have = append(have, s.Addr)
			}
			if got := strings.Join(have, " "); got != step.want {
				t.Errorf("after Set(%v, %v): %q, want %q", step.list, step.err, got, step.want)
			}
		}
		changed := feed.Changed()
		feed.Set(nil, nil)
		select {
		case <-changed:
			t.Error("a Set that changes nothing is announced")
		default:
		}
	})
}

// TestFeedUnset ends a Resolve that has nothing to return.
func TestFeedUnset(t *testing.T) {
	var feed Feed
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if list, err := feed.Resolve(ctx); !errors.Is(err, context.Canceled) || list != nil {
		t.Errorf("%v, %v", list, err)
	}
}
