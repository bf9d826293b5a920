package cinnabar

import (
	"context"
	"sync"
	"time"

	"cinnabar/internal/hg/wire"
)

// Statistics measures what calls and transfers cost, for each pair of procedure and peer and for the procedure that they
// were made within: what Margo's default monitor does. An engine has it from Config.Statistics on; the zero value is
// ready, and belongs to one engine. [Statistics.Dump] writes it as Margo does, so that programs that read Margo's files
// read these. It is safe for concurrent use.
//
// Figures are kept for 4,096 pairs of each kind. Those of what comes then are added up for each RPC, as of the peer
// "<others>" and without a parent, since what a peer says may name any number of parents.
//
// The steps of a call are those of C. A step that Go does not have takes 0 s: C's callbacks at the end of a call, response or
// transfer do not exist, but the time at which they would run is measured. Each operation of a Start method takes a goroutine
// that waits for it, as with a Monitor. Exposed memory is counted for the engine, not for a procedure.
type Statistics struct {
	mu sync.Mutex
	// +checklocks:mu
	address string
	// +checklocks:mu
	names map[uint64]string // of RPCs, by id
	// +checklocks:mu
	origins map[callPath]*originStats
	// +checklocks:mu
	targets map[callPath]*targetStats
	// +checklocks:mu
	exposed createStats
	// +checklocks:mu
	transfers map[transferPath]*transferStats
}

// callPath is what figures are kept for: an RPC, the one that it was called for, and the peer.
type callPath struct {
	id, parent uint64
	peer       string
}

// maxPaths is for how many paths there are figures of each kind: some 3 MB.
const maxPaths = 4096

// others stands for the peers of paths beyond maxPaths.
const others = "<others>"

// merged is the path for what has none of its own. There are as many as the program has RPCs.
func (p callPath) merged() callPath { return callPath{p.id, wire.NoParent, others} }

// noPath is that of what no request asked for.
var noPath = callPath{id: wire.NoParent, parent: wire.NoParent, peer: "<unknown>"}

// transferPath is the request that a transfer was made for, and what it was.
type transferPath struct {
	callPath
	direction *direction
	remote    string
}

func (p transferPath) merged() transferPath {
	return transferPath{p.callPath.merged(), p.direction, others}
}

// step is one of the things that an operation consists of.
type step struct{ took, after time.Duration }

// stepStats are the figures of a step: how long it took, and how long after another one it began.
type stepStats struct{ took, after figures }

func (s *stepStats) add(x step) {
	s.took.add(x.took.Seconds())
	s.after.add(x.after.Seconds())
}

// figures are what there is to say of a series of numbers. var is what Margo calls so: the sum of squares of the
// differences from the average.
type figures struct {
	num                      uint64
	min, max, avg, sum, vari float64
}

func (f *figures) add(x float64) {
	f.num++
	if f.num == 1 || x < f.min {
		f.min = x
	}
	f.max = max(f.max, x)
	f.sum += x
	old := f.avg
	f.avg = f.sum / float64(f.num)
	f.vari += (x - old) * (x - f.avg)
}

type (
	originStats struct{ forward, callback, wait, input, output stepStats }
	targetStats struct {
		handler                                     figures
		run, respond, callback, wait, output, input stepStats
	}
	createStats   struct{ took, size figures }
	transferStats struct {
		took, size     figures
		callback, wait stepStats
	}
)

// clock times the steps of one operation.
type clock struct{ start, last time.Time }

func newClock() clock {
	now := time.Now()
	return clock{now, now}
}

// step ends a step that began when the last one ended, or the clock was made.
func (c *clock) step() step {
	now := time.Now()
	s := step{took: now.Sub(c.last), after: c.last.Sub(c.start)}
	c.last = now
	return s
}

// of says whose statistics these are.
func (s *Statistics) of(e *Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = e.Addr()
}

// originCall is a call that is measured.
type originCall struct {
	clock
	forward, wait, input, output step
	sent, answered               bool
}

// encoded and the following end the steps of a call. They do nothing if c is nil.
func (c *originCall) encoded() {
	if c != nil {
		c.input = c.step()
	}
}

func (c *originCall) forwarded() {
	if c != nil {
		c.forward = c.step()
	}
}

func (c *originCall) waited() {
	if c != nil {
		c.wait, c.sent = c.step(), true
	}
}

func (c *originCall) decoded() {
	if c != nil {
		c.output, c.answered = c.step(), true
	}
}

// exchange is route.exchange, measured.
func (s *Statistics) exchange(ctx context.Context, rt *route, in, out any) error {
	c := originCall{clock: newClock()}
	err := rt.exchange(ctx, in, out, &c)
	if c.sent {
		s.call(rt, &c)
	}
	return err
}

// call adds a call that has got as far as waiting for its response.
func (s *Statistics) call(rt *route, c *originCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := callPath{rt.id, rt.parent(), rt.ep.String()}
	o := counted(&s.origins, path, callPath.merged)
	s.nameLocked(rt.id, rt.proc.name)
	o.input.add(c.input)
	o.forward.add(step{took: c.forward.after + c.forward.took})
	o.wait.add(step{took: c.wait.took})
	o.callback.add(step{after: c.wait.after + c.wait.took})
	if c.answered {
		o.output.add(step{took: c.output.took})
	}
}

// counted is entry for a map that grows no larger than maxPaths: then merged tells what stands for k.
func counted[K comparable, V any](m *map[K]*V, k K, merged func(K) K) *V {
	if (*m)[k] == nil && len(*m) >= maxPaths {
		k = merged(k)
	}
	return entry(m, k)
}

// entry returns what m has under k, and makes it if there is nothing.
func entry[K comparable, V any](m *map[K]*V, k K) *V {
	if *m == nil {
		*m = map[K]*V{}
	}
	v := (*m)[k]
	if v == nil {
		v = new(V)
		(*m)[k] = v
	}
	return v
}

// +checklocks:s.mu
func (s *Statistics) nameLocked(id uint64, name string) {
	if s.names == nil {
		s.names = map[uint64]string{}
	}
	s.names[id] = name
}

// targetCall is a request that is measured.
type targetCall struct {
	arrived time.Time
	handler time.Duration
	ran     time.Time
	input   step

	mu sync.Mutex // since a program may answer from any goroutine
	// +checklocks:mu
	answering clock
	// +checklocks:mu
	answered bool
	// +checklocks:mu
	respond step
	// +checklocks:mu
	output step
}

// begins, encoded and responded are the steps of an answer.
func (t *targetCall) begins() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answering = newClock()
}

func (t *targetCall) encoded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.output = t.answering.step()
}

func (t *targetCall) responded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered = true
	t.respond = step{took: time.Since(t.answering.start), after: t.answering.start.Sub(t.ran)}
}

func (s *serving) path() callPath { return callPath{s.id, s.parent, s.from.String()} }

// request adds a request whose handler has returned.
func (s *Statistics) request(r *serving) {
	t := r.timed
	took := time.Since(t.ran)
	t.mu.Lock()
	answered, respond, output := t.answered, t.respond, t.output
	t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	x := counted(&s.targets, r.path(), callPath.merged)
	s.nameLocked(r.id, r.svc.proc.name)
	x.handler.add(t.handler.Seconds())
	x.run.add(step{took: took, after: t.ran.Sub(t.arrived)})
	x.input.add(t.input)
	if answered {
		x.output.add(output)
		x.respond.add(respond)
		x.callback.add(step{after: respond.took})
		x.wait.add(step{})
	}
}

// expose adds an exposure of memory.
func (s *Statistics) expose(took time.Duration, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exposed.took.add(took.Seconds())
	s.exposed.size.add(float64(size))
}

// transfer adds a transfer that is over.
func (s *Statistics) transfer(ctx context.Context, m *move, started, waited step, n int64) {
	path := noPath
	if r := servingFrom(ctx); r != nil && r.from != nil {
		path = r.path()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := counted(&s.transfers, transferPath{path, m.d, m.r.ep.String()}, transferPath.merged)
	x.took.add(started.took.Seconds())
	x.size.add(float64(n))
	x.callback.add(step{after: waited.after + waited.took})
	x.wait.add(step{took: waited.took})
}
