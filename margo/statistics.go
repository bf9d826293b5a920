package margo

import (
	"context"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/stats"
)

// Statistics measures the steps of calls and transfers as Margo's default monitor does: separately for each combination of an RPC, the
// peer, and the RPC that the calling handler serves (the parent). A program stores a Statistics in Config.Monitor of one
// engine; the zero value is ready. [Statistics.Dump] writes the file that Margo writes. All methods are safe for concurrent use.
//
// Statistics keeps figures for 4,096 combinations of each kind. Beyond that, it adds up the figures of each RPC under the peer
// "<others>" and without a parent, because a peer may name any number of parents.
//
// The steps have Margo's names. A step that Go does not have takes 0 s. Go has no callbacks at the end of a call, response or
// transfer, but Statistics records the time at which C would call them. Exposed memory is counted for the engine, not for an RPC.
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

// callPath is a key of the figures: an RPC, its parent, and the peer.
type callPath struct {
	id, parent uint64
	peer       string
}

// maxPaths is the number of paths of each kind with figures, some 3 MB of memory.
const maxPaths = 4096

// others is the peer of merged paths.
const others = "<others>"

// merged returns the path to which counted adds the figures of p beyond maxPaths. The program has one merged path for each RPC.
func (p callPath) merged() callPath { return callPath{p.id, noParent, others} }

// noPath is the path of transfers that were started outside handlers.
var noPath = callPath{id: noParent, parent: noParent, peer: "<unknown>"}

// transferPath is the path of the request that the handler of a transfer serves, with the transfer's direction and peer.
type transferPath struct {
	callPath
	direction string // "pull" or "push"
	remote    string
}

func (p transferPath) merged() transferPath {
	return transferPath{p.callPath.merged(), p.direction, others}
}

// step is the duration of a step of an operation, and the time from another step, or the start of the operation, to its begin.
type step struct{ took, after time.Duration }

// stepStats are the figures of the two times of a step, in seconds.
type stepStats struct{ took, after figures }

func (s *stepStats) add(x step) {
	s.took.add(x.took.Seconds())
	s.after.add(x.after.Seconds())
}

// figures summarize a series of numbers. vari is the value that Margo calls var: the sum of the squared differences from the
// average.
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

// The lowest 16 bits of the id of an RPC are the provider's id.
const (
	noProvider = 0xffff // MARGO_DEFAULT_PROVIDER_ID
	noParent   = 0xffff // the parent of calls and transfers that are made outside handlers
)

// Event implements [stats.Monitor].
func (s *Statistics) Event(ctx context.Context, ev stats.Event) {
	if !ev.End {
		return
	}
	switch ev.Kind {
	case stats.EventCall:
		s.call(&ev)
	case stats.EventRequest:
		s.request(&ev)
	case stats.EventRespond:
		s.respond(&ev)
	case stats.EventTransfer:
		s.transfer(ctx, &ev)
	case stats.EventExpose:
		s.expose(&ev)
	case stats.EventHandle: // within an EventRequest, which is the step that Margo measures
	}
}

// pathOf returns the path of a call or request.
func pathOf(c *stats.CallInfo) callPath { return callPath{c.ID, c.Parent, c.Peer.String()} }

// call adds a call, unless it failed before it was sent: then Times.Ended is zero.
func (s *Statistics) call(ev *stats.Event) {
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

// counted returns the value of m for k, or that for merged(k) if m has maxPaths entries and none for k. It makes missing entries.
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
func (s *Statistics) nameLocked(c *stats.CallInfo) {
	if s.names == nil {
		s.names = map[uint64]string{}
	}
	s.names[c.ID] = c.RPC
}

// request adds a request after its handler has returned. A request with arguments that cannot be decoded counts too, as in Margo.
func (s *Statistics) request(ev *stats.Event) {
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
func (s *Statistics) respond(ev *stats.Event) {
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
func (s *Statistics) expose(ev *stats.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exposed.took.add(ev.Times.Ended.Sub(ev.Times.Began).Seconds())
	s.exposed.size.add(float64(ev.Bytes))
}

// transfer adds a transfer that is over. ctx is the context that was passed to the transfer: that of a handler has the handler's request.
func (s *Statistics) transfer(ctx context.Context, ev *stats.Event) {
	path := noPath
	if request := cinnabar.InfoFrom(ctx); request.Peer != nil {
		path = callPath{request.ID, request.Parent, request.Peer.String()}
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
