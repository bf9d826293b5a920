package sched

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// TestHostLeavesHandlersToOthers has one host ask for more handlers than there are, and let none of them end, which once
// left no handler to any other host. A request of another host is served at once, and that of the host when one ends.
func TestHostLeavesHandlersToOthers(t *testing.T) {
	for _, workers := range []int{64, 2} { // handlers that wait for something keep no worker
		synctest.Test(t, func(t *testing.T) {
			g := &rig{pool: NewPool(PoolConfig{Workers: workers, Alive: 64, Queue: 1000})}
			hold := make(chan struct{})
			for i := range 100 {
				r := &request{peer: fmt.Sprint("a", i%7), host: 1, n: i, hold: hold}
				r.body = r.Pause
				g.run(r)
				synctest.Wait()
			}
			g.log.take()
			if s := g.pool.Stats(); s.Waiting != 36 || s.Queued != 64 {
				t.Errorf("one host has %d of 64 handlers and %d requests that wait, want 36 and 64", s.Waiting, s.Queued)
			}
			for host := byte(2); host < 6; host++ {
				g.run(&request{peer: "good", host: host})
				expect(t, g, "good0")
			}
			end := make(chan struct{})
			g.run(&request{peer: "brief", host: 2, hold: end})
			g.run(&request{peer: "late", host: 1})
			expect(t, g, "brief0")
			close(end)
			synctest.Wait()
			if s := g.pool.Stats(); s.Waiting != 36 || s.Queued != 65 {
				t.Errorf("after the others: %+v", s)
			}
			close(hold)
			synctest.Wait()
			if s := g.pool.Stats(); s.Running+s.Waiting != 0 || s.Queued != 0 || s.Served != 106 {
				t.Errorf("in the end: %+v", s)
			}
		})
	}
}

// TestPeerLeavesHandlersToItsHost has one peer hold all handlers that it gets, and never let go. Other peers of its host
// are served all the same, because clients behind one address are not one client.
func TestPeerLeavesHandlersToItsHost(t *testing.T) {
	for _, kind := range []Kind{FIFO, Priority, EarliestFirst} {
		synctest.Test(t, func(t *testing.T) {
			g := &rig{pool: NewPool(PoolConfig{Workers: 64, Alive: 64, Queue: 1000, Kind: kind})}
			hold := make(chan struct{})
			for i := range 100 {
				r := &request{peer: "greedy", host: 1, n: i, hold: hold}
				r.body = r.Pause
				g.run(r)
				synctest.Wait()
			}
			g.log.take()
			if s := g.pool.Stats(); s.Waiting != 31 {
				t.Errorf("%v: one peer has %d of the 36 handlers of its host, want 31", kind, s.Waiting)
			}
			if kind != EarliestFirst { // which does not tell peers of a host apart
				for i := range 10 {
					g.run(&request{peer: "modest", host: 1, n: i})
					expect(t, g, fmt.Sprint("modest", i))
				}
			}
			close(hold)
			synctest.Wait()
			if s := g.pool.Stats(); s.Running+s.Waiting+s.Queued != 0 {
				t.Errorf("%v: in the end: %+v", kind, s)
			}
			g.pool.mu.Lock()
			defer g.pool.mu.Unlock()
			for _, host := range g.pool.tenants.byHost {
				if host.peers != nil {
					t.Errorf("%v: peers are counted while the host holds nothing: %v", kind, host.peers)
				}
			}
		})
	}
}

// TestHostsTakeTurns has one host come by many connections, which once had as many turns.
func TestHostsTakeTurns(t *testing.T) {
	for _, kind := range []Kind{FIFO, Priority} {
		var rs []*request
		for i := range 20 {
			rs = append(rs, &request{peer: fmt.Sprint("p", i, "-"), host: 1})
		}
		for i := range 3 {
			rs = append(rs, &request{peer: "good", host: 2, n: i})
		}
		turns := strings.Fields(served(t, kind, 100, rs...))
		if turns[1] != "good0" || turns[3] != "good1" || turns[5] != "good2" {
			t.Errorf("%v: order %v, want every other turn for the second host", kind, turns)
		}
	}
}

// TestFullQueueHasRoomForAnotherHost fills the queue by as many peers of one host as it has places, each with one request,
// which once left no room for another host.
func TestFullQueueHasRoomForAnotherHost(t *testing.T) {
	for _, kind := range []Kind{FIFO, Priority, EarliestFirst} {
		synctest.Test(t, func(t *testing.T) {
			g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 64, Kind: kind})}
			hold := make(chan struct{})
			for i := range 200 {
				g.run(&request{peer: fmt.Sprint("p", i, "-"), host: 1, hold: hold, priority: 7})
			}
			synctest.Wait()
			g.log.take()
			for i := range 10 {
				g.run(&request{peer: "good", host: 2, n: i, hold: hold, priority: 7})
			}
			if refused := g.log.take(); strings.Contains(refused, "good") {
				t.Errorf("%v: refused %s", kind, refused)
			}
			close(hold)
			synctest.Wait()
			if s := g.log.take(); strings.Count(s, "good") != 10 {
				t.Errorf("%v: served %s", kind, s)
			}
		})
	}
}

// TestPriorityGivesNoMoreThanTheShare has a host with many urgent requests, which get no room at the expense of the few
// that others have.
func TestPriorityGivesNoMoreThanTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 64, Kind: Priority})}
		hold := make(chan struct{})
		g.run(&request{peer: "first", host: 3, hold: hold})
		for host := byte(10); host < 30; host++ {
			g.run(&request{peer: "good", host: host, hold: hold})
		}
		for i := range 200 {
			g.run(&request{peer: "bad", host: 1, n: i, hold: hold, priority: 7})
		}
		synctest.Wait()
		if refused := g.log.take(); strings.Contains(refused, "good") {
			t.Errorf("refused %s", refused)
		}
		close(hold)
	})
}
