package sched

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// TestBurst admits a thousand requests of one host and one of another, on one processor. The one is served after few of the
// others, although all may have handlers at once. It is tried a few times, because the scheduler may preempt a goroutine, which
// then comes behind others.
func TestBurst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const tries = 5
	for try := 1; ; try++ {
		at, most := burst(t)
		if 0 <= at && at <= most {
			return
		}
		if try == tries {
			t.Fatalf("the other host's request was served as number %d, want at most %d", at, most)
		}
	}
}

// burst returns the place at which the other host's request was served, and the last place at which it may be.
func burst(t *testing.T) (at, most int) {
	g := &rig{pool: NewPool(PoolConfig{Workers: 4000, Alive: 4000, Queue: -1})}
	done := make(chan struct{}, 2000)
	admit := func(peer string, host byte, n int) {
		g.admit(&request{peer: peer, host: host, n: n, body: func() { done <- struct{}{} }})
	}
	for n := range 1000 {
		admit("a", 1, n)
	}
	admit("b", 2, 0)
	g.log.mu.Lock()
	before := len(g.log.text) // handlers that have run, perhaps many if this goroutine had to wait
	g.log.mu.Unlock()
	for n := range 100 { // because the scheduler runs the goroutine that was started last first
		admit("a", 1, 1000+n)
	}
	for range 1101 {
		<-done
	}
	g.log.mu.Lock()
	defer g.log.mu.Unlock()
	if s := strings.Join(g.log.text, " "); strings.Contains(s, "!") {
		t.Error("requests were refused although there was room for their handlers")
	}
	return slices.Index(g.log.text, "b0"), before + 3*burstPerProcessor
}

// TestBurstQueue admits more requests than may have handlers and places in the queue, before any of them has run.
func TestBurstQueue(t *testing.T) {
	for _, queue := range []int{-1, 0, 5} {
		synctest.Test(t, func(t *testing.T) {
			g := &rig{pool: NewPool(PoolConfig{Workers: 40, Alive: 40, Queue: queue})}
			hold := make(chan struct{})
			for n := range 60 {
				g.admit(&request{peer: Own, n: n, hold: hold})
				g.admit(&request{peer: "a", host: 1, n: n, hold: hold})
			}
			synctest.Wait()
			if s := g.pool.Stats(); s.Running != 40 || s.Queued < max(0, queue) {
				t.Errorf("queue of %d: %d run and %d wait", queue, s.Running, s.Queued)
			}
			close(hold)
			synctest.Wait()
			if s := g.pool.Stats(); s.Running != 0 || s.Queued != 0 || s.Served+s.Refused != 120 {
				t.Errorf("queue of %d: afterwards %+v", queue, s)
			}
		})
	}
}

// TestBurstOfManyHosts admits requests of many hosts, each with fewer than it may have handlers, before any of them has run.
// Those that are not refused are no more than there may be handlers and places in the queue.
func TestBurstOfManyHosts(t *testing.T) {
	const workers, hosts, each = 40, 50, 4
	for _, queue := range []int{-1, 0, 16} {
		synctest.Test(t, func(t *testing.T) {
			g := &rig{pool: NewPool(PoolConfig{Workers: workers, Alive: workers, Queue: queue})}
			hold := make(chan struct{})
			for host := range byte(hosts) {
				for n := range each {
					g.admit(&request{peer: "a", host: host + 1, n: n, hold: hold})
				}
			}
			if s := g.pool.Stats(); s.Running+s.Queued > workers+max(0, queue) {
				t.Errorf("queue of %d: %d run and %d wait before others have had a processor", queue, s.Running, s.Queued)
			}
			synctest.Wait()
			// Some may wait for their host's share, because other hosts have begun meanwhile.
			if s := g.pool.Stats(); s.Running > workers || s.Running+s.Queued > workers+max(0, queue) {
				t.Errorf("queue of %d: %d run and %d wait", queue, s.Running, s.Queued)
			}
			close(hold)
			synctest.Wait()
			if s := g.pool.Stats(); s.Running != 0 || s.Queued != 0 || s.Served+s.Refused != hosts*each {
				t.Errorf("queue of %d: afterwards %+v", queue, s)
			}
		})
	}
}
