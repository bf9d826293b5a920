package margo

import (
	"context"
	"sync"
	"time"

	"cinnabar"
)

// Statistics measures the steps of calls and transfers, for each pair of procedure and peer and for the procedure in whose handler
// they were made, as Margo's default monitor does. It is the [cinnabar.Monitor] of one engine, from Config.Monitor on; the zero
// value is ready. [Statistics.Dump] writes Margo's file, so that programs that read Margo's files read these. It is safe for
// concurrent use.
//
// Statistics keeps figures for 4,096 pairs of each kind. The figures of later pairs are added up for each RPC, as of the peer
// "<others>" and without a parent, because a peer may name any number of parents.
//
// The steps of a call are those of C. A step that Go does not have takes 0 s: the callbacks that C calls at the end of a call,
// response or transfer do not exist, but the time at which they would run is measured. Exposed memory is counted for the engine,
// not for a procedure.
type Statistics struct {
	mu sync.Mutex
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
func (p callPath) merged() callPath { return callPath{p.id, noParent, others} }

// noPath is that of what no request asked for.
var noPath = callPath{id: noParent, parent: noParent, peer: "<unknown>"}

// transferPath is the request that a transfer was made for, and what it was.
type transferPath struct {
	callPath
	direction string // "pull" or "push"
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

// ids of RPCs have the provider's id in their lowest 16 bits.
const (
	noProvider = 0xffff // MARGO_DEFAULT_PROVIDER_ID
	noParent   = 0xffff // the parent of what is called outside handlers
)

// Event implements [cinnabar.Monitor].
func (s *Statistics) Event(ctx context.Context, ev cinnabar.Event) {
	if !ev.End {
		return
	}
	switch ev.Kind {
	case cinnabar.EventCall:
		s.call(&ev)
	case cinnabar.EventRequest:
		s.request(&ev)
	case cinnabar.EventRespond:
		s.respond(&ev)
	case cinnabar.EventTransfer:
		s.transfer(ctx, &ev)
	case cinnabar.EventExpose:
		s.expose(&ev)
	case cinnabar.EventHandle: // within an EventRequest, which is what Margo measures
	}
}

// pathOf returns the path of a call or request.
func pathOf(c *cinnabar.CallInfo) callPath { return callPath{c.ID, c.Parent, c.Peer.String()} }

// call adds a call, if it was waited for.
func (s *Statistics) call(ev *cinnabar.Event) {
	t := &ev.Times
	if t.Ended.IsZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := counted(&s.origins, pathOf(&ev.Info), callPath.merged)
	s.nameLocked(&ev.Info)
	o.input.add(step{took: t.Encoded.Sub(t.Began)})
	o.forward.add(step{took: t.Sent.Sub(t.Began)})
	o.wait.add(step{took: t.Ended.Sub(t.Sent)})
	o.callback.add(step{after: t.Ended.Sub(t.Began)})
	if !t.Decoded.IsZero() {
		o.output.add(step{took: t.Decoded.Sub(t.Ended)})
	}
}

// counted is entry for a map that grows no larger than maxPaths: beyond that, the figures of k are added to those of merged(k).
func counted[K comparable, V any](m *map[K]*V, k K, merged func(K) K) *V {
	if (*m)[k] == nil && len(*m) >= maxPaths {
		k = merged(k)
	}
	return entry(m, k)
}

// entry returns the value that m has for k, and makes it if there is none.
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
func (s *Statistics) nameLocked(c *cinnabar.CallInfo) {
	if s.names == nil {
		s.names = map[uint64]string{}
	}
	s.names[c.ID] = c.RPC
}

// request adds a request whose handler has returned. A request whose arguments cannot be decoded counts too, as in Margo.
func (s *Statistics) request(ev *cinnabar.Event) {
	t := &ev.Times
	s.mu.Lock()
	defer s.mu.Unlock()
	x := counted(&s.targets, pathOf(&ev.Info), callPath.merged)
	s.nameLocked(&ev.Info)
	x.handler.add(t.Admitted.Sub(t.Began).Seconds())
	x.run.add(step{took: t.Ended.Sub(t.Running), after: t.Running.Sub(t.Began)})
	input := step{}
	if !t.Decoded.IsZero() {
		input.took = t.Decoded.Sub(t.Running)
	}
	x.input.add(input)
}

// respond adds a response.
func (s *Statistics) respond(ev *cinnabar.Event) {
	t := &ev.Times
	s.mu.Lock()
	defer s.mu.Unlock()
	x := counted(&s.targets, pathOf(&ev.Info), callPath.merged)
	s.nameLocked(&ev.Info)
	took := t.Ended.Sub(t.Began)
	x.output.add(step{took: t.Encoded.Sub(t.Began)})
	x.respond.add(step{took: took, after: t.Began.Sub(t.Running)})
	x.callback.add(step{after: took})
	x.wait.add(step{})
}

// expose adds an exposure of memory.
func (s *Statistics) expose(ev *cinnabar.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exposed.took.add(ev.Times.Ended.Sub(ev.Times.Began).Seconds())
	s.exposed.size.add(float64(ev.Bytes))
}

// transfer adds a transfer that is over. ctx is of the handler that has started it, if one has.
func (s *Statistics) transfer(ctx context.Context, ev *cinnabar.Event) {
	path := noPath
	if request, ok := cinnabar.InfoFrom(ctx); ok {
		path = pathOf(&request)
	}
	t := &ev.Times
	s.mu.Lock()
	defer s.mu.Unlock()
	x := counted(&s.transfers, transferPath{path, ev.Info.RPC, ev.Info.Peer.String()}, transferPath.merged)
	x.took.add(t.Sent.Sub(t.Began).Seconds())
	x.size.add(float64(ev.Bytes))
	x.callback.add(step{after: t.Ended.Sub(t.Began)})
	x.wait.add(step{took: t.Ended.Sub(t.Sent)})
}
