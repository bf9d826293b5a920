package sched

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatch checks that handlers are reported when they have taken long, and at each doubling, and others never.
// parity: D32
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 2, Queue: 10})}
		var log []string
		start := time.Now()
		g.pool.Watch(time.Second, func(s JobInfo) {
			log = append(log, fmt.Sprintf("%v %s %v %v", time.Since(start), s.About.(*request).name(), s.State, s.Run))
		})
		hold := make(chan struct{})
		g.run(&request{peer: "a", n: 0, hold: hold})
		elapse(300 * time.Millisecond)
		g.run(&request{peer: "a", n: 1, hold: hold}).Pause()
		for i := range 40 {
			brief := g.run(&request{peer: "b", n: i, hold: make(chan struct{})})
			elapse(100 * time.Millisecond)
			close(brief.hold)
			synctest.Wait()
		}
		close(hold)
		elapse(time.Hour)
		want := []string{"1s a0 running 1s", "1.3s a1 waiting 1s", "2s a0 running 2s", "2.3s a1 waiting 2s", "4s a0 running 4s", "4.3s a1 waiting 4s"}
		if got := strings.Join(log, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("reported:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
		}
	})
}

// TestWatchChanges checks that watching may begin and end while handlers run.
// parity: D32
func TestWatchChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Queue: 10})}
		n := 0
		report := func(JobInfo) { n++ }
		hold := make(chan struct{})
		g.run(&request{peer: "a", hold: hold})
		elapse(time.Minute)
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{0, 0}, {time.Second, 1}, {time.Second, 1}, {0, 1}, {time.Hour, 1}} {
			g.pool.Watch(step.after, report)
			elapse(30 * time.Second)
			if n != step.want {
				t.Errorf("%d reports after Watch(%v), want %d", n, step.after, step.want)
			}
		}
		close(hold)
	})
}

// parity: G90
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{pool: NewPool(PoolConfig{Workers: 1, Alive: 2, Queue: 10})}
		hold := make(chan struct{})
		g.run(&request{peer: "a", n: 0, hold: hold}).Pause()
		elapse(time.Second)
		g.run(&request{peer: "b", n: 1, hold: hold})
		elapse(time.Second)
		g.run(&request{peer: "c", n: 2, hold: hold})
		elapse(time.Second)
		var got []string
		list, handlers, queued := g.pool.First(100, 100)
		for _, s := range list {
			got = append(got, fmt.Sprint(s.About.(*request).name(), " ", s.State, " ", s.Age, " ", s.Run))
		}
		if want := "a0 waiting 3s 3s, b1 running 2s 2s, c2 queued 1s 0s"; strings.Join(got, ", ") != want || handlers != 2 || queued != 1 {
			t.Errorf("jobs %q of %d and %d, want %q", got, handlers, queued, want)
		}
		if few, handlers, queued := g.pool.First(1, 100); len(few) != 2 || few[0].About.(*request).name() != "a0" || few[1].State != Queued || handlers != 2 || queued != 1 {
			t.Errorf("the first ones: %v of %d and %d", few, handlers, queued)
		}
		if few, _, _ := g.pool.First(100, 1); len(few) != 2 || few[0].About.(*request).name() != "b1" {
			t.Errorf("after one look: %v", few)
		}
		if none, _, _ := g.pool.First(0, 100); len(none) != 0 {
			t.Errorf("without a row: %v", none)
		}
		close(hold)
		synctest.Wait()
		if left, _, _ := g.pool.First(100, 100); len(left) != 0 {
			t.Errorf("left over: %v", left)
		}
	})
}

// elapse lets that much of the test's time go by.
func elapse(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}
