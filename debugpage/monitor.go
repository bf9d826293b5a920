package debugpage

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/stats"
)

// Bounds of the memory of a page's histograms: it never has more than (maxNames + 1) histograms for each side, of a kilobyte each.
const (
	maxNames = 128
	maxName  = 256 // bytes of a name
	others   = "(other RPCs)"
)

// Buckets of a histogram: one below leastTime, subBuckets for each doubling from there on, and one beyond.
const (
	leastBits  = 10 // leastTime is 1<<leastBits nanoseconds
	doublings  = 27 // up to about 137 seconds
	subBits    = 2
	subBuckets = 1 << subBits
	numBuckets = 1 + doublings*subBuckets + 1
)

// bucketOf returns the index of the bucket of a time.
func bucketOf(d time.Duration) int {
	if d < 1<<leastBits {
		return 0
	}
	e := bits.Len64(uint64(d)) - 1
	if e >= leastBits+doublings {
		return numBuckets - 1
	}
	sub := int(uint64(d)>>(e-subBits)) & (subBuckets - 1)
	return 1 + (e-leastBits)*subBuckets + sub
}

// bucketStart returns the least time of a bucket.
func bucketStart(i int) time.Duration {
	if i == 0 {
		return 0
	}
	e, sub := leastBits+(i-1)/subBuckets, (i-1)%subBuckets
	return time.Duration(subBuckets+sub) << (e - subBits)
}

// histogram counts the durations of the calls of one RPC, and the failures. All fields are atomic, because a lock would serialize the calls of
// all goroutines.
type histogram struct {
	buckets [numBuckets]atomic.Uint64
	failed  atomic.Uint64
	sum     atomic.Int64 // nanoseconds
	most    atomic.Int64 // nanoseconds
}

func (h *histogram) observe(d time.Duration) {
	d = max(d, 0)
	h.buckets[bucketOf(d)].Add(1)
	h.sum.Add(int64(d))
	for {
		most := h.most.Load()
		if int64(d) <= most || h.most.CompareAndSwap(most, int64(d)) {
			return
		}
	}
}

// side has the histograms of the RPCs of one side, by name. Observers read the map without a lock; a new name replaces it.
type side struct {
	byName atomic.Pointer[map[string]*histogram]
	rest   histogram // of names beyond maxNames
	adding sync.Mutex
}

// of returns the histogram of an RPC.
func (s *side) of(name string) *histogram {
	known := s.byName.Load()
	if known != nil {
		if h := (*known)[name]; h != nil {
			return h
		}
		if len(*known) >= maxNames {
			return &s.rest
		}
	}
	if len(name) > maxName {
		return &s.rest
	}
	return s.add(name)
}

func (s *side) add(name string) *histogram {
	s.adding.Lock()
	defer s.adding.Unlock()
	next := map[string]*histogram{}
	if known := s.byName.Load(); known != nil {
		if h := (*known)[name]; h != nil {
			return h
		}
		if len(*known) >= maxNames {
			return &s.rest
		}
		for k, v := range *known {
			next[k] = v
		}
	}
	h := new(histogram)
	next[name] = h
	s.byName.Store(&next)
	return h
}

// monitor is the Monitor of a page.
type monitor struct {
	client, server side
}

// chain passes each event to the page's monitor and to another one.
type chain struct {
	*monitor
	next stats.Monitor
}

// Event implements [stats.Monitor].
func (c *chain) Event(ctx context.Context, ev stats.Event) {
	c.monitor.Event(ctx, ev)
	c.next.Event(ctx, ev)
}

// Event implements [stats.Monitor]. It takes no lock but at the first event of an RPC.
func (m *monitor) Event(_ context.Context, ev stats.Event) {
	if !ev.End {
		return
	}
	switch ev.Kind {
	case stats.EventCall:
		h := m.client.of(ev.Info.RPC)
		if ev.Err != nil {
			h.failed.Add(1)
		}
		if !ev.Times.Ended.IsZero() {
			h.observe(ev.Times.Ended.Sub(ev.Times.Began))
		}
	case stats.EventRequest:
		if h := m.server.of(ev.Info.RPC); !ev.Times.Ended.IsZero() {
			h.observe(ev.Times.Ended.Sub(ev.Times.Began))
		}
	case stats.EventHandle:
		if ev.Err != nil {
			m.server.of(ev.Info.RPC).failed.Add(1)
		}
	case stats.EventRespond, stats.EventTransfer, stats.EventExpose:
	}
}

// Latency is the distribution of the times of one RPC on one side. The buckets of its histogram are a quarter of a doubling wide, so a
// quantile is exact to about a fifth of its value.
type Latency struct {
	RPC    string        `json:"rpc"`
	Side   string        `json:"side"`   // "client": from the call to the result; "server": from the arrival of the request to the end of its handling
	Count  uint64        `json:"count"`  // of the calls that have ended and of which the time is known
	Failed uint64        `json:"failed"` // calls that ended with an error, and requests with a handler that returned one
	Mean   time.Duration `json:"mean_ns"`
	P50    time.Duration `json:"p50_ns"`
	P90    time.Duration `json:"p90_ns"`
	P99    time.Duration `json:"p99_ns"`
	Max    time.Duration `json:"max_ns"`

	counts [numBuckets]uint64
}

// latency copies a histogram.
func (h *histogram) latency(rpc, side string) *Latency {
	l := &Latency{RPC: rpc, Side: side, Failed: h.failed.Load(), Max: time.Duration(h.most.Load())}
	for i := range h.buckets {
		l.counts[i] = h.buckets[i].Load()
		l.Count += l.counts[i]
	}
	if l.Count > 0 {
		l.Mean = time.Duration(uint64(h.sum.Load()) / l.Count)
	}
	l.P50, l.P90, l.P99 = l.quantile(0.5), l.quantile(0.9), l.quantile(0.99)
	return l
}

// quantile returns the time below which the part q of the times lies.
func (l *Latency) quantile(q float64) time.Duration {
	if l.Count == 0 {
		return 0
	}
	want := q * float64(l.Count)
	below := 0.0
	for i, n := range l.counts {
		if n > 0 && below+float64(n) >= want {
			from, to := bucketStart(i), l.Max
			if i+1 < numBuckets {
				to = min(bucketStart(i+1), l.Max)
			}
			return max(from, from+time.Duration((want-below)/float64(n)*float64(to-from)))
		}
		below += float64(n)
	}
	return l.Max
}

// latencies returns the Latency of each RPC that was observed, the RPCs with most calls first.
func (m *monitor) latencies() (list []*Latency) {
	for _, s := range []struct {
		name string
		*side
	}{{"server", &m.server}, {"client", &m.client}} {
		if known := s.byName.Load(); known != nil {
			for name, h := range *known {
				list = append(list, h.latency(name, s.name))
			}
		}
		if l := s.rest.latency(others, s.name); l.Count+l.Failed > 0 {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *Latency) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.RPC, b.RPC), cmp.Compare(a.Side, b.Side))
	})
	return list
}
