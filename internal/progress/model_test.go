package progress

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// modelConn is a connection that uses Tasks, Claim and Watcher as the package documentation says. Its messages are requests, which
// bring a task, and responses, which end a call.
type modelConn struct {
	watcher Watcher
	watch   Watch
	claim   Claim
	tasks   Tasks[*modelTask]
	held    atomic.Bool
	bg      atomic.Uint32
	resume  chan struct{} // capacity 1
	last    uint64        // tasks.Begun at the last look of the watcher

	rx      []*modelTask // used by the reader
	readers atomic.Int32 // number of goroutines that read

	readable chan struct{} // capacity 1: messages have come, or the background goroutine must look at the claim
	ended    chan struct{}
	dead     atomic.Bool

	mu     sync.Mutex
	inbox  []modelMessage
	calls  map[*modelCall]bool
	faults []string

	backgrounds sync.WaitGroup // background goroutines, also those that were replaced
	runners     sync.WaitGroup // goroutines that run one task each, and goroutines that push one response each
}

// States of the background goroutine of a modelConn.
const (
	modelActive uint32 = iota
	modelInTask
	modelParked
	modelResting
)

// modelMessage is a request if task is set, and else the response to call.
type modelMessage struct {
	task *modelTask
	call *modelCall
}

// modelTask is the task of a request. It makes calls of its own, takes some time, and may end its goroutine.
type modelTask struct {
	calls    []modelWait
	duration time.Duration
	goexit   bool

	read bool // the reader has received the request
	runs atomic.Int32
	done chan struct{} // closed at the end of the task
}

// modelWait is the wait of a driver.
type modelWait struct {
	response time.Duration // time until the response comes
	spins    bool          // the driver may spin
	lone     bool          // the driver takes the role over from an active background goroutine
	looks    int           // looks without a message after which its spin ends
}

type modelCall struct {
	set  atomic.Bool
	done chan struct{}
}

func newModelConn() *modelConn {
	c := &modelConn{resume: make(chan struct{}, 1), readable: make(chan struct{}, 1), ended: make(chan struct{}), calls: map[*modelCall]bool{}}
	c.watch.Init(c)
	c.backgrounds.Add(1)
	go c.background(0)
	return c
}

func (c *modelConn) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// signal adds a token to a channel of capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// push delivers a message from the peer.
func (c *modelConn) push(m modelMessage) {
	c.mu.Lock()
	c.inbox = append(c.inbox, m)
	c.mu.Unlock()
	signal(c.readable)
}

// receive reads all messages. The caller has the role.
func (c *modelConn) receive() (got bool) {
	if c.readers.Add(1) != 1 {
		c.fault("two goroutines read at the same time")
	}
	defer c.readers.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.inbox {
		if m.task != nil {
			m.task.read = true
			c.rx = append(c.rx, m.task)
		} else if c.calls[m.call] {
			c.endLocked(m.call)
		}
	}
	got = len(c.inbox) > 0
	c.inbox = nil
	return got
}

func (c *modelConn) endLocked(call *modelCall) {
	delete(c.calls, call)
	call.set.Store(true)
	close(call.done)
}

// background is the background goroutine of generation gen.
func (c *modelConn) background(gen uint32) {
	killed := true
	defer func() {
		if killed {
			if next, ok := c.tasks.Ended(gen); ok {
				c.bg.Store(modelActive)
				go c.background(next)
				return
			}
		}
		c.backgrounds.Done()
	}()
	c.progress(gen)
	killed = false
}

func (c *modelConn) progress(gen uint32) {
	for !c.dead.Load() {
		if !c.serve(gen) {
			return
		}
		c.bg.Store(modelParked)
		c.park()
		c.bg.Store(modelActive)
		if c.tasks.Waiting() == 0 {
			c.rest()
		}
	}
	c.serve(gen)
}

// serve reads and runs tasks. It returns false if the goroutine was replaced.
func (c *modelConn) serve(gen uint32) bool {
	for vain := 0; vain < 3; {
		ran, mine := c.runTasks(gen)
		if !mine {
			return false
		}
		if c.dead.Load() || c.claim.Taken() || !c.held.CompareAndSwap(false, true) {
			return true
		}
		got := c.receive()
		c.tasks.Offer(c.rx)
		c.rx = nil
		c.release()
		if !got && !ran {
			vain++
			c.watcher.relieve(Now())
			runtime.Gosched()
		}
	}
	return true
}

func (c *modelConn) runTasks(gen uint32) (ran, mine bool) {
	if c.tasks.Waiting() == 0 {
		return false, true
	}
	c.bg.Store(modelInTask)
	c.depend()
	for {
		t, more, mine := c.tasks.Next(gen)
		if !mine {
			return true, false
		}
		if !more {
			c.bg.Store(modelActive)
			return true, true
		}
		c.run(t)
	}
}

// run runs a task.
func (c *modelConn) run(t *modelTask) {
	if t.runs.Add(1) != 1 {
		c.fault("a task has run twice")
		return
	}
	defer close(t.done)
	for _, w := range t.calls {
		c.call(w)
	}
	if t.duration > 0 {
		time.Sleep(t.duration) //nolint:forbidigo // simulated time
	}
	if t.goexit {
		runtime.Goexit()
	}
}

// start starts a goroutine that runs a task.
func (c *modelConn) start(t *modelTask) { c.runners.Go(func() { c.run(t) }) }

// park waits for messages, or until a driver has claimed the connection.
func (c *modelConn) park() {
	for !c.dead.Load() && !c.claim.Taken() && !c.held.Load() {
		c.mu.Lock()
		empty := len(c.inbox) == 0
		c.mu.Unlock()
		if !empty {
			return
		}
		<-c.readable
	}
}

// rest waits while drivers read.
func (c *modelConn) rest() {
	c.bg.Store(modelResting)
	for (c.claim.Taken() || c.held.Load()) && !c.dead.Load() {
		select {
		case <-c.resume:
		case <-c.ended:
		}
	}
	c.bg.Store(modelActive)
}

// release gives the role back.
func (c *modelConn) release() {
	c.held.Store(false)
	if c.bg.Load() == modelResting && !c.claim.Taken() {
		signal(c.resume)
	}
}

// handBack ends the claim of drivers.
func (c *modelConn) handBack() {
	if c.claim.End() {
		signal(c.resume)
	}
}

// depend adds c to the list of the watcher.
func (c *modelConn) depend() {
	if !c.watcher.Add(&c.watch) {
		c.handBack()
	}
}

// call waits for a response or the end of the connection.
func (c *modelConn) call(w modelWait) {
	call := &modelCall{done: make(chan struct{})}
	c.mu.Lock()
	if c.dead.Load() {
		c.mu.Unlock()
		return
	}
	c.calls[call] = true
	c.mu.Unlock()
	c.runners.Go(func() {
		if w.response > 0 {
			time.Sleep(w.response) //nolint:forbidigo // simulated time
		}
		c.push(modelMessage{call: call})
	})
	c.drive(call, w)
	<-call.done
}

// drive reads on behalf of a goroutine that waits for call.
func (c *modelConn) drive(call *modelCall, w modelWait) {
	c.claim.Drive()
	bg := c.bg.Load()
	if bg == modelInTask {
		c.tasks.Detach(c.start)
	}
	if w.spins && (bg != modelActive || w.lone) {
		c.driveSpinning(call, w, bg)
	} else if !c.held.Load() {
		c.handBack()
	}
	if !call.set.Load() {
		c.takeOver(c.tasks.Begun())
	}
}

func (c *modelConn) driveSpinning(call *modelCall, w modelWait, bg uint32) {
	if !c.held.CompareAndSwap(false, true) {
		return
	}
	if bg != modelInTask && c.claim.Take() {
		c.depend()
		signal(c.readable) // so that a parked background goroutine rests
	}
	for vain := 0; vain <= w.looks && !call.set.Load() && !c.dead.Load(); {
		if c.receive() {
			for _, t := range c.rx {
				c.start(t)
			}
			c.rx = nil
		} else {
			vain++
			c.watcher.relieve(Now())
			runtime.Gosched()
		}
	}
	c.release()
	c.mu.Lock()
	others := len(c.calls) > 0
	c.mu.Unlock()
	if others {
		c.handBack()
	}
}

// takeOver replaces the background goroutine if it is still in the task that began as number begun.
func (c *modelConn) takeOver(begun uint64) {
	if c.bg.Load() != modelInTask {
		return
	}
	c.backgrounds.Add(1)
	next, ok := c.tasks.Replace(begun)
	if !ok {
		c.backgrounds.Done()
		return
	}
	c.bg.Store(modelActive)
	go c.background(next)
}

// Look implements [Watched].
func (c *modelConn) Look() bool {
	quiet, begun := c.claim.Quiet(false, c.claim.Taken() && c.held.Load()), c.tasks.Begun()
	again := !quiet || begun != c.last
	if quiet {
		c.handBack()
	}
	if begun == c.last {
		c.takeOver(begun)
	}
	c.last = begun
	return again
}

// Depends implements [Watched].
func (c *modelConn) Depends() bool { return c.claim.Taken() || c.tasks.Pending() }

// die ends the connection and all calls. Messages that were not read are lost.
func (c *modelConn) die() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead.Swap(true) {
		return
	}
	for call := range c.calls {
		c.endLocked(call)
	}
	close(c.ended)
	signal(c.readable)
}

// settle checks that the watcher has no goroutine, no driver keeps the connection and the background goroutine is parked, and that the
// connection still serves a request.
func (c *modelConn) settle() {
	time.Sleep(10 * WatchInterval) //nolint:forbidigo // simulated time
	synctest.Wait()
	switch {
	case c.dead.Load():
		return
	case !c.watcher.Idle():
		c.fault("the watcher has a goroutine although the connection is idle")
	case c.claim.Taken(), c.held.Load():
		c.fault("drivers that are gone keep the connection: claim %t, role %t", c.claim.Taken(), c.held.Load())
	case c.bg.Load() != modelParked:
		c.fault("the background goroutine is in state %d, want parked", c.bg.Load())
	case c.tasks.Pending():
		c.fault("a task is left")
	}
	last := &modelTask{done: make(chan struct{})}
	c.push(modelMessage{task: last})
	synctest.Wait()
	if last.runs.Load() != 1 {
		c.fault("a request to the idle connection was not served")
	}
}

// finish ends the connection, waits for all goroutines, and returns the faults.
func (c *modelConn) finish(tasks []*modelTask) []string {
	c.die()
	c.backgrounds.Wait()
	c.runners.Wait()
	for i, t := range tasks {
		if n := t.runs.Load(); t.read && n != 1 || n > 1 {
			c.fault("task %d has run %d times", i, n)
		}
	}
	time.Sleep(10 * WatchInterval) //nolint:forbidigo // simulated time
	if !c.watcher.Idle() {
		c.fault("the watcher has a goroutine after the end of the connection")
	}
	c.watcher.Close()
	return c.faults
}

// A modelStep is one step of one goroutine of a random schedule.
type modelStep struct {
	pause time.Duration // time before the step
	task  *modelTask    // the peer sends a request with this task
	await bool          // the goroutine waits for the end of task
	call  *modelWait    // the goroutine makes a call
	die   bool
}

func drawWait(t *rapid.T) modelWait {
	return modelWait{
		response: rapid.SampledFrom([]time.Duration{0, 0, 0, WatchInterval / 3, 2 * WatchInterval, 20 * WatchInterval}).Draw(t, "response"),
		spins:    rapid.Bool().Draw(t, "spins"), lone: rapid.Bool().Draw(t, "lone"), looks: rapid.IntRange(0, 50).Draw(t, "looks"),
	}
}

func drawTask(t *rapid.T) *modelTask {
	task := &modelTask{}
	switch rapid.IntRange(0, 7).Draw(t, "task") {
	case 0:
		task.duration = time.Duration(rapid.IntRange(1, 50).Draw(t, "time")) * WatchInterval / 10
	case 1:
		task.goexit = true
	case 2:
		task.duration, task.goexit = 5*WatchInterval, true
	case 3, 4:
		for range rapid.IntRange(1, 3).Draw(t, "calls") {
			task.calls = append(task.calls, drawWait(t))
		}
		task.goexit = rapid.Bool().Draw(t, "goexit")
	}
	return task
}

func drawStep(t *rapid.T) (s modelStep) {
	s.pause = rapid.SampledFrom([]time.Duration{0, 0, 0, 0, WatchInterval / 10, WatchInterval, 3 * WatchInterval}).Draw(t, "pause")
	switch n := rapid.IntRange(0, 99).Draw(t, "step"); {
	case n < 1:
		s.die = true
	case n < 55:
		s.task, s.await = drawTask(t), rapid.IntRange(0, 3).Draw(t, "await") == 0
	default:
		w := drawWait(t)
		s.call = &w
	}
	return s
}

// play runs the steps of one goroutine.
func (c *modelConn) play(steps []modelStep) {
	for _, s := range steps {
		if s.pause > 0 {
			time.Sleep(s.pause) //nolint:forbidigo // simulated time
		}
		switch {
		case s.die:
			c.die()
		case s.call != nil:
			c.call(*s.call)
		default:
			c.push(modelMessage{task: s.task})
			if s.await {
				select {
				case <-s.task.done:
				case <-c.ended:
				}
			}
		}
	}
}

// TestModel plays random schedules of requests, calls, tasks that take long, make calls or end their goroutine, and deaths of the
// connection. At most one goroutine reads at any moment, each task that was read runs once, every call ends, and in the end the
// background goroutine is parked and would serve the next request.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var plans [][]modelStep
		var tasks []*modelTask
		for range rapid.IntRange(1, 5).Draw(rt, "goroutines") {
			var plan []modelStep
			for range rapid.IntRange(1, 25).Draw(rt, "steps") {
				s := drawStep(rt)
				plan = append(plan, s)
				if s.task != nil {
					tasks = append(tasks, s.task)
				}
			}
			plans = append(plans, plan)
		}
		var faults []string
		synctest.Test(t, func(*testing.T) {
			for _, task := range tasks {
				task.done = make(chan struct{}) // here, because the channel must belong to the bubble
			}
			c := newModelConn()
			var players sync.WaitGroup
			for _, plan := range plans {
				players.Go(func() { c.play(plan) })
			}
			over := make(chan struct{})
			go func() {
				players.Wait()
				close(over)
			}()
			limit := time.NewTimer(time.Minute) // far more than all tasks and responses take together
			select {
			case <-over:
				time.Sleep(time.Second) //nolint:forbidigo // simulated time, for the tasks that nothing waits for
				c.settle()
			case <-limit.C:
				c.fault("a call or a task has not ended: the background goroutine is in state %d, claim %t, role %t, %d tasks wait",
					c.bg.Load(), c.claim.Taken(), c.held.Load(), c.tasks.Waiting())
			}
			faults = slices.Clone(c.finish(tasks))
			<-over
		})
		if len(faults) > 0 {
			rt.Fatalf("%q", faults)
		}
	})
}

// TestTakeOver: a goroutine that a task keeps is replaced after one to two intervals of the watcher, which has seen it in the same task
// twice then.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newModelConn()
		var tasks []*modelTask
		send := func(d time.Duration) *modelTask {
			task := &modelTask{duration: d, done: make(chan struct{})}
			tasks = append(tasks, task)
			c.push(modelMessage{task: task})
			return task
		}
		for range 3 {
			start := time.Now()
			slow, quick := send(100*WatchInterval), send(0)
			<-quick.done
			if d := time.Since(start); d < WatchInterval || d > 2*WatchInterval {
				t.Errorf("the task behind a slow one has run after %v, want %v to %v", d, WatchInterval, 2*WatchInterval)
			}
			<-slow.done
		}
		for range 20 { // tasks of less than an interval each keep their goroutine
			<-send(WatchInterval / 2).done
		}
		if gen, ok := c.tasks.Ended(3); !ok {
			t.Errorf("there is another generation than 3 after three slow tasks: %d", gen)
		}
		if faults := c.finish(tasks); len(faults) > 0 {
			t.Error(faults)
		}
	})
}
