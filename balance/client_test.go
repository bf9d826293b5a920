package balance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

var three = StaticAddrs("a", "b", "c")

// TestPolicies picks servers by each policy.
// parity: A06
func TestPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: three})
		f.set(native.ServingYes, "a", "b", "c")
		counts := map[string]int{}
		last := ""
		for range 9 {
			n := pick(t, c, f, nil)
			if n == last {
				t.Errorf("round robin picks %s twice", n)
			}
			counts[n]++
			last = n
		}
		if counts["a"] != 3 || counts["b"] != 3 || counts["c"] != 3 {
			t.Errorf("round robin has picked %v", counts)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: three, Policy: LeastLoaded})
		f.set(native.ServingYes, "a", "b", "c")
		held := map[string]func(error){}
		for range 3 {
			to, done, err := c.Pick(t.Context())
			must(t, err)
			held[f.names[to.(*cinnabar.Endpoint)]] = done
		}
		if len(held) != 3 {
			t.Fatalf("three calls are at %v", held)
		}
		held["b"](nil)
		held["b"](nil) // no effect
		for range 5 {
			if n := pick(t, c, f, nil); n != "b" {
				t.Errorf("the least loaded server is b, picked %s", n)
			}
		}
		held["a"](nil)
		held["c"](nil)
	})
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: three, Policy: PickFirst})
		f.set(native.ServingYes, "b", "c")
		for _, step := range []struct {
			change func()
			want   string
		}{
			{func() {}, "b"},
			{func() { f.set(native.ServingYes, "a") }, "a"},
			{func() { f.set(native.ServingNo, "a") }, "b"},
			{func() { f.set(native.ServingUnknown, "b") }, "c"},
		} {
			step.change()
			if n := pick(t, c, f, nil); n != step.want {
				t.Errorf("picked %s, want %s", n, step.want)
			}
		}
	})
}

// TestWaitForServer waits for the first server, and fails at once when all servers are known not to be ready.
func TestWaitForServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &resolver{list: append(slices.Clone(three), Address{Addr: "bad"}, Address{Addr: "a"})}
		c, f := newFakes(t, Config{Resolver: r})
		picked := make(chan string)
		go func() { picked <- pick(t, c, f, nil) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := c.Pick(ctx)
		wantError(t, err, codes.Timeout, "choose a server")
		f.set(native.ServingYes, "c")
		if n := <-picked; n != "c" {
			t.Errorf("picked %s", n)
		}
		f.set(native.ServingNo, "c")
		for _, n := range []string{"a", "b"} {
			f.fail(n, lost)
			f.ends[n] <- lost
		}
		synctest.Wait()
		_, _, err = c.Pick(t.Context())
		wantError(t, err, codes.HostUnreach, "none of 4 servers is ready", "a is down", "c is not serving", "bad is down", "connection lost", "no address")
		list, err := c.Servers()
		if len(list) != 4 || err != nil || list[2].State != "not serving" || list[2].Ready {
			t.Errorf("servers %+v, %v", list, err)
		}
		must(t, c.Close())
		_, _, err = c.Pick(t.Context())
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestSilentServer has a server that takes the watch and never reports. Calls do not wait for it for good, and it is watched again.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: StaticAddrs("a", "b")})
		f.set(native.ServingNo, "b")
		ctx, cancel := context.WithTimeout(t.Context(), 2*reportTime)
		defer cancel()
		began := time.Now()
		_, _, err := c.Pick(ctx)
		if wantError(t, err, codes.HostUnreach, "has not reported its health", "b is not serving"); time.Since(began) != reportTime {
			t.Errorf("the call has waited for %v", time.Since(began))
		}
		elapse(lastPause)
		f.set(native.ServingYes, "a")
		elapse(2 * reportTime)
		if n := pick(t, c, f, nil); n != "a" || f.watches["a"] != 2 {
			t.Errorf("picked %s after %d watches", n, f.watches["a"])
		}
	})
}

// TestDrainingServer marks a server by the answer of a call, and takes it back when it serves again.
func TestDrainingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: StaticAddrs("a", "b"), Policy: PickFirst})
		f.set(native.ServingYes, "a", "b")
		f.fail("a", remote(codes.Draining, nil))
		if n := pick(t, c, f, remote(codes.Draining, nil)); n != "a" {
			t.Fatalf("picked %s", n)
		}
		if n := pick(t, c, f, remote(codes.Draining, &native.Error{Code: codes.Draining})); n != "b" {
			t.Errorf("picked %s while a is draining", n)
		}
		if n := pick(t, c, f, remote(codes.Draining, nil)); n != "b" {
			t.Errorf("the answer of a handler of b has marked b: picked %s", n)
		}
		_, _, err := c.Pick(t.Context())
		wantError(t, err, codes.Draining, "a is draining", "b is draining")
		synctest.Wait()
		f.fail("a", nil)
		elapse(lastPause)
		f.set(native.ServingYes, "a")
		if n := pick(t, c, f, nil); n != "a" {
			t.Errorf("picked %s", n)
		}
	})
}

// TestFlappingServer has a server that is ready and fails at once, again and again. The Client connects to it less and less often. After a longer time of
// health it returns as quickly as at first.
func TestFlappingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFakes(t, Config{Resolver: StaticAddrs("a")})
		var times []time.Time
		watch := c.watch
		c.mu.Lock()
		c.watch = func(ctx context.Context, to cinnabar.Target, service string, report func(native.Serving)) error {
			times = append(times, time.Now())
			report(native.ServingYes)
			return lost
		}
		c.mu.Unlock()
		f.ends["a"] <- lost
		elapse(2 * time.Minute)
		if n := len(times); n < 15 || n > 40 {
			t.Errorf("%d connections in two minutes", n)
		}
		most := firstPause
		for i := 1; i < len(times); i++ {
			most = min(2*most, lastPause)
			if gap := times[i].Sub(times[i-1]); gap < most/2 || gap > most {
				t.Errorf("connection %d comes after %v, want %v to %v", i, gap, most/2, most)
			}
		}
		c.mu.Lock()
		c.watch = watch
		c.mu.Unlock()
		elapse(lastPause)
		f.set(native.ServingYes, "a")
		elapse(steadyTime)
		before := f.watches["a"]
		f.ends["a"] <- lost
		elapse(firstPause)
		if f.watches["a"] != before+1 {
			t.Errorf("%d connections within the first pause after a time of health, want 1", f.watches["a"]-before)
		}
	})
}

// TestResolving follows the Resolver, and asks it no more often than allowed.
func TestResolving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &resolver{list: StaticAddrs("a", "b")}
		c, f := newFakes(t, Config{Resolver: r, Refresh: time.Minute, MinRefresh: 10 * time.Second, MaxServers: 3})
		f.set(native.ServingYes, "a", "b")
		for range 100 { // an outage
			c.want()
			elapse(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(r.queries()); n > 2 {
			t.Errorf("%d queries in 10 s", n)
		}
		r.change(nil, errors.New("no answer"))
		elapse(2 * time.Minute)
		if n := pick(t, c, f, nil); n != "a" && n != "b" {
			t.Errorf("picked %s", n)
		}
		if list, err := c.Servers(); len(list) != 2 || err == nil {
			t.Errorf("after an error of the resolver: %v, %v", list, err)
		}
		var many []Address
		for i := range 9 {
			many = append(many, Address{Addr: fmt.Sprint(i)})
		}
		r.change(many, nil)
		elapse(2 * time.Minute)
		if list, err := c.Servers(); len(list) != 3 || err != nil || list[0].Addr != "0" {
			t.Errorf("many servers: %v, %v", list, err)
		}
		r.change(nil, nil)
		elapse(2 * time.Minute)
		_, _, err := c.Pick(t.Context())
		wantError(t, err, codes.HostUnreach, "lists no servers")
		times := r.queries()
		for i := 1; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < 10*time.Second {
				t.Errorf("queries %v after each other", gap)
			}
		}
	})
}

// TestConfig refuses configurations.
func TestConfig(t *testing.T) {
	for _, cfg := range []*Config{nil, {}, {Resolver: three, Policy: 9}, {Resolver: three, Attempts: -1}, {Resolver: three, RetryRatio: -1}, {Resolver: three}} {
		_, err := New(nil, cfg)
		wantError(t, err, codes.InvalidArg)
	}
}
