package sched

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"pgregory.net/rapid"
)

// order is where the requests of a test say what becomes of them.
type order struct {
	mu   sync.Mutex
	text []string
}

func (o *order) add(s string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, s)
}

func (o *order) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	slices.Sort(o.text)
	s := strings.Join(o.text, " ")
	o.text = nil
	return s
}

// request is a Work that a test lets go on.
type request struct {
	Job
	Ref
	peer     string
	host     byte // of the peer, 127.0.0.host
	n        int
	priority int16
	log      *order
	hold     chan struct{} // Serve returns when it is closed; nil: at once
	exit     bool          // the handler ends its goroutine
	body     func()
	ended    func()
}

func (r *request) name() string { return fmt.Sprintf("%s%d", r.peer, r.n) }
func (r *request) Peer() string { return r.peer }
func (r *request) Host() hostquota.Host {
	if r.peer == Own {
		return hostquota.Host{}
	}
	return hostNumber(r.host)
}
func (r *request) Yield()     { runtime.Gosched() }
func (r *request) About() any { return r }
func (r *request) Ended() {
	if r.ended != nil {
		r.ended()
	}
}
func (r *request) Overloaded() { r.log.add(r.name() + "!") }
func (r *request) Serve() {
	r.log.add(r.name())
	if r.body != nil {
		r.body()
	}
	if r.hold != nil {
		<-r.hold
	}
	if r.exit {
		runtime.Goexit()
	}
}

// hostNumber returns one of 256 hosts.
func hostNumber(n byte) hostquota.Host {
	return hostquota.HostOf(netip.AddrFrom4([4]byte{127, 0, 0, n}))
}

// rig is a pool and what it has been given.
type rig struct {
	pool *Pool
	log  order
	pace LatencyEstimator
}

func (g *rig) admit(r *request) na.Task {
	r.log = &g.log
	r.Init(r, g.pool, &g.pace, &r.Ref)
	r.Prefer(r.priority)
	return r.Admit()
}

// run admits a request and runs the task that it may give.
func (g *rig) run(r *request) *request {
	if task := g.admit(r); task != nil {
		task.Run()
	}
	return r
}

// hold runs the requests 0 to n-1 of a peer, which last until c is closed.
func (g *rig) hold(peer string, n int, c chan struct{}) {
	for i := range n {
		g.run(&request{peer: peer, n: i, hold: c})
	}
}

func expect(t *testing.T, g *rig, want string) {
	t.Helper()
	synctest.Wait()
	if got := g.log.take(); got != want {
		t.Errorf("happened %q, want %q", got, want)
	}
}

func TestPoolBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, hold := &rig{pool: NewPool(PoolConfig{Workers: 2, Queue: 1})}, make(chan struct{})
		g.hold("a", 5, hold)
		expect(t, g, "a0 a1 a3! a4!")
		if s := g.pool.Stats(); s.Running != 2 || s.Queued != 1 || s.Refused != 2 {
			t.Errorf("stats %+v", s)
		}
		close(hold)
		expect(t, g, "a2")
		if s := g.pool.Stats(); s.Running != 0 || s.Queued != 0 || s.Served != 3 || s.Most != 2 {
			t.Errorf("stats in the end %+v", s)
		}
	})
}

func TestPoolNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: -1})}
		hold := make(chan struct{})
		g.run(&request{peer: "a", n: 0, hold: hold})
		g.run(&request{peer: "b", n: 1, hold: hold})
		expect(t, g, "a0 b1!")
		close(hold)
	})
}

// TestPoolNoQueueLeave checks that a request which comes after the answer of the only handler, and before that has returned, waits for it.
func TestPoolNoQueueLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: -1})}
		answer, returning, hold := make(chan struct{}), make(chan struct{}), make(chan struct{})
		first := &request{peer: "a", n: 0, hold: returning}
		first.body = func() {
			<-answer
			first.Leave()
		}
		g.run(first)
		g.run(&request{peer: "a", n: 1})
		expect(t, g, "a0 a1!") // not answered yet
		close(answer)
		synctest.Wait()
		g.run(&request{peer: "a", n: 2, hold: hold})
		g.run(&request{peer: "b", host: 1, n: 3})
		expect(t, g, "b3!") // one handler is free soon, for one request
		close(returning)
		expect(t, g, "a2")
		g.run(&request{peer: "a", n: 4})
		expect(t, g, "a4!")
		close(hold)
	})
}

// TestPoolLeaveOfAnotherHost checks that a request is refused, and does not wait, if its host has its share of the handlers and will still have
// it when a handler of another host, which has called Leave, has returned.
func TestPoolLeaveOfAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: hostquota.Undivided, Queue: -1})}
		returning, hold := make(chan struct{}), make(chan struct{})
		leaving := &request{peer: "b", host: 1, n: 0, hold: returning}
		leaving.body = leaving.Leave
		g.run(leaving)
		g.run(&request{peer: "b", host: 1, n: 1, hold: hold})
		for n := range 3 { // the share of a host beside one handler of another, and beside two
			g.run(&request{peer: "a", n: n, hold: hold})
		}
		expect(t, g, "a0 a1 a2 b0 b1")
		g.run(&request{peer: "a", n: 3})
		expect(t, g, "a3!")
		close(returning)
		synctest.Wait()
		close(hold)
	})
}

// TestPoolTurns checks that a peer with one request does not wait for all of a greedy one's.
func TestPoolTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 100})}
		var holds []chan struct{}
		add := func(peer string, n int) {
			hold := make(chan struct{})
			holds = append(holds, hold)
			g.run(&request{peer: peer, n: n, hold: hold})
		}
		for i := range 4 {
			add("a", i)
		}
		add("b", 0)
		add("c", 0)
		var turns []string
		for _, i := range []int{0, 1, 4, 5, 2, 3} {
			synctest.Wait()
			turns = append(turns, g.log.take())
			close(holds[i])
		}
		if got, want := strings.Join(turns, " "), "a0 a1 b0 c0 a2 a3"; got != want {
			t.Errorf("turns %q, want %q", got, want)
		}
	})
}

// TestPoolEvicts checks that a full queue makes room at the expense of who has most in it.
func TestPoolEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, hold := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 4})}, make(chan struct{})
		g.hold("a", 6, hold)
		expect(t, g, "a0 a5!")
		g.hold("b", 3, hold)
		expect(t, g, "a3! a4! b2!")
		close(hold)
		expect(t, g, "a1 a2 b0 b1")
	})
}

// TestPoolWaiting checks that a waiting handler's worker serves others, up to the bound of handlers alive.
func TestPoolWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Alive: 3, Queue: 10})}
		var rs []*request
		for i := range 5 {
			r := &request{peer: "a", n: i, hold: make(chan struct{})}
			r.body = func() { r.Pause(); r.Pause() } // two goroutines of the handler wait
			rs = append(rs, r)
			g.run(r)
		}
		expect(t, g, "a0 a1 a2")
		if s := g.pool.Stats(); s.Running != 0 || s.Waiting != 3 || s.Queued != 2 {
			t.Errorf("stats %+v", s)
		}
		for _, r := range rs[:3] {
			r.Resume()
			r.Resume()
			close(r.hold)
		}
		expect(t, g, "a3 a4")
		for _, r := range rs[3:] { // their handlers return while something of theirs waits
			close(r.hold)
		}
		synctest.Wait()
		for _, r := range rs[3:] {
			r.Resume()
			r.Resume()
		}
		if s := g.pool.Stats(); s.Running != 0 || s.Waiting != 0 {
			t.Errorf("stats in the end %+v", s)
		}
	})
}

// TestPoolTask checks that a quick RPC is served by a task, and that what waits does not run in it.
func TestPoolTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 10})}
		runs(&g.pace, trusted, 0)
		first := g.admit(&request{peer: "a", n: 0})
		if first == nil {
			t.Fatal("no task")
		}
		hold := make(chan struct{})
		if g.admit(&request{peer: "a", n: 1, hold: hold}) != nil {
			t.Error("a task for a request that waits")
		}
		first.Run()
		expect(t, g, "a0 a1")
		close(hold)
	})
}

// TestPoolMover checks that Admit returns a task for a handler that waits for nothing but transfers with its caller, while at most one other
// handler is under way.
func TestPoolMover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 8, Queue: 10})}
		mover := func(n int, pause func(*Ref), resume func(*Ref)) *request {
			r := &request{peer: "a", n: n}
			r.body = func() {
				pause(&r.Ref)
				resume(&r.Ref)
				if g.pace.Measure() {
					r.Ran(0)
				}
			}
			return r
		}
		pause, resume := (*Ref).PauseMoving, (*Ref).ResumeMoving
		for i := range trusted {
			if task := g.admit(mover(i, pause, resume)); task != nil {
				t.Fatalf("run %d is a task", i)
			}
			synctest.Wait()
		}
		task := g.admit(mover(trusted, pause, resume))
		if task == nil {
			t.Fatal("no task")
		}
		task.Run()
		hold := make(chan struct{})
		var wait [aloneRunning]*request
		for i := range wait {
			wait[i] = mover(100+i, pause, func(j *Ref) { <-hold; j.ResumeMoving() })
			if task := g.admit(wait[i]); task != nil {
				go task.Run()
			}
			synctest.Wait()
		}
		if g.admit(mover(200, pause, resume)) != nil {
			t.Error("a task beside handlers that wait")
		}
		close(hold)
		synctest.Wait()
		task = g.admit(mover(300, (*Ref).Pause, (*Ref).Resume))
		if task == nil {
			t.Fatal("no task")
		}
		task.Run()
		if g.admit(mover(301, pause, resume)) != nil {
			t.Error("a task after a handler that waited for something else")
		}
		synctest.Wait()
	})
}

// TestMovesAtOnceCountOnce runs handlers that make several transfers at the same time, and work beside them. Whether the RPC counts as quick
// depends on the time of the work alone, also if a transfer goes on after the return of the handler.
func TestMovesAtOnceCountOnce(t *testing.T) {
	for _, tc := range []struct {
		name  string
		work  time.Duration
		quick bool
	}{{"short work", briskRun / 2, true}, {"long work", 2 * sluggishRun, false}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &rig{pool: NewPool(PoolConfig{Workers: 8, Queue: 10})}
				var left sync.WaitGroup
				for i := range trusted {
					r := &request{peer: "a", n: i}
					r.body = func() {
						measure, start := g.pace.Measure(), time.Now()
						r.BeginMoving()
						var moves sync.WaitGroup
						for range 4 {
							moves.Go(func() {
								r.PauseMoving()
								defer r.ResumeMoving()
								time.Sleep(time.Second) //nolint:forbidigo // simulated time
							})
						}
						moves.Wait()
						r.EndMoving()
						time.Sleep(tc.work) //nolint:forbidigo // simulated time
						r.BeginMoving()
						left.Go(func() {
							defer r.EndMoving()
							time.Sleep(time.Second) //nolint:forbidigo // simulated time
						})
						time.Sleep(time.Second / 2) //nolint:forbidigo // simulated time
						if measure {
							r.Ran(time.Since(start))
						}
					}
					g.admit(r)
					time.Sleep(10 * time.Second) //nolint:forbidigo // simulated time
				}
				left.Wait()
				if got := g.pace.Quick(Alone); got != tc.quick {
					t.Errorf("quick: %t, want %t", got, tc.quick)
				}
			})
		})
	}
}

// TestPoolGoexit checks that a handler that ends its goroutine does not take its worker along.
func TestPoolGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 10})}
		for i := range 3 {
			g.run(&request{peer: "a", n: i, exit: true})
		}
		expect(t, g, "a0 a1 a2")
		runs(&g.pace, trusted, 0)
		task := g.admit(&request{peer: "a", n: 3, exit: true})
		g.run(&request{peer: "a", n: 4})
		go task.Run()
		expect(t, g, "a3 a4")
		if s := g.pool.Stats(); s.Running != 0 || s.Queued != 0 {
			t.Errorf("stats in the end %+v", s)
		}
	})
}

// source is a peer of a host.
type source struct {
	host byte
	peer string
}

// TestLanesHistory compares lanes with a plain model: each request that goes in comes out once, each peer's in order, and
// no host, and no peer of a host, has two turns while another that waits has none. Hosts that may have no handler keep
// their turn.
// parity: Y12
func TestLanesHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ls, model, byHost := newLanes(false), map[source][]*Job{}, map[byte]int{}
		var ring []byte
		rings := map[byte][]string{}
		tenants := map[byte]*tenant{}
		for h := range byte(3) {
			tenants[h] = &tenant{host: hostNumber(h)}
		}
		hosts, peers := rapid.ByteRange(0, 2), rapid.SampledFrom([]string{"a", "b", "c"})
		arrivals := uint64(0)
		took := func(s source, list []*Job) {
			model[s] = list
			byHost[s.host]--
			if len(list) == 0 {
				rings[s.host] = slices.DeleteFunc(rings[s.host], func(p string) bool { return p == s.peer })
			}
			if byHost[s.host] == 0 {
				ring = slices.DeleteFunc(ring, func(h byte) bool { return h == s.host })
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				s, j := source{hosts.Draw(t, "host"), peers.Draw(t, "peer")}, new(Job)
				if byHost[s.host] == 0 {
					ring = append(ring, s.host)
				}
				if len(model[s]) == 0 {
					rings[s.host] = append(rings[s.host], s.peer)
				}
				model[s] = append(model[s], j)
				byHost[s.host]++
				arrivals++
				ls.push(tenants[s.host], s.peer, j, arrivals)
			},
			"pop": func(t *rapid.T) {
				blocked := tenants[hosts.Draw(t, "blocked")]
				if rapid.Bool().Draw(t, "none is blocked") {
					blocked = nil
				}
				j := ls.pop(func(x *tenant, _ *Job) bool { return x != blocked })
				i := slices.IndexFunc(ring, func(h byte) bool { return tenants[h] != blocked })
				if i < 0 {
					if j != nil {
						t.Fatal("pop gives something where no host may")
					}
					return
				}
				h := ring[i]
				s := source{h, rings[h][0]}
				if j != model[s][0] {
					t.Fatalf("pop is not the oldest of %v", s)
				}
				ring = append(slices.Delete(ring, i, i+1), h)
				rings[h] = append(rings[h][1:], s.peer)
				took(s, model[s][1:])
			},
			"evict": func(t *rapid.T) {
				s := source{hosts.Draw(t, "host"), rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "for")}
				j := ls.evict(tenants[s.host], s.peer)
				if j == nil {
					return
				}
				for v, list := range model {
					if n := len(list); n > 0 && list[n-1] == j {
						if v.host == s.host && n <= len(model[s])+1 || v.host != s.host && byHost[v.host] <= byHost[s.host]+1 {
							t.Fatalf("evicted is one of %v, which has too little, for %v", v, s)
						}
						took(v, list[:n-1])
						return
					}
				}
				t.Fatal("evicted is not the newest of a peer")
			},
			"": func(t *rapid.T) {
				n := 0
				for h, list := range byHost {
					n += list
					if tenants[h].queued != list {
						t.Fatalf("host %d has %d queued, want %d", h, tenants[h].queued, list)
					}
				}
				if ls.queued != n {
					t.Fatalf("%d queued, want %d", ls.queued, n)
				}
			},
		})
	})
}

// TestRefusedRef checks that the Ref of a refused request does not keep it, whether it was waiting or has just come.
func TestRefusedRef(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, hold := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 1, Kind: Priority})}, make(chan struct{})
		g.hold("a", 1, hold)
		first, second, third := &request{peer: "b", n: 1}, &request{peer: "b", n: 2}, &request{peer: "b", n: 3, priority: 1}
		g.run(first)
		g.run(second)
		g.run(third)
		expect(t, g, "a0 b1! b2!")
		g.pool.mu.Lock()
		if first.Ref.job != nil || second.Ref.job != nil || third.Ref.job == nil {
			t.Errorf("the Refs have the jobs %p, %p and %p, want only the last", first.Ref.job, second.Ref.job, third.Ref.job)
		}
		g.pool.mu.Unlock()
		first.Pause()
		first.Resume()
		close(hold)
		expect(t, g, "b3")
		if s := g.pool.Stats(); s.Running != 0 || s.Waiting != 0 {
			t.Errorf("stats in the end %+v", s)
		}
	})
}
