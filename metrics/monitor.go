package metrics

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"cinnabar/codes"
	"cinnabar/stats"
)

// Names of the metrics that come from events.
const (
	nameDuration      = "cinnabar_rpc_duration_seconds"
	nameErrors        = "cinnabar_rpc_errors_total"
	nameInFlight      = "cinnabar_rpc_in_flight"
	nameResponseBytes = "cinnabar_rpc_response_bytes_total"
	nameTransfer      = "cinnabar_transfer_duration_seconds"
	nameTransferError = "cinnabar_transfer_errors_total"
	nameRegistration  = "cinnabar_memory_registration_duration_seconds"
)

var (
	descErrors        = prometheus.NewDesc(nameErrors, "Calls that ended with an error (side client), and requests with a handler that returned one (side server).", []string{"rpc", "side", "code"}, nil)
	descInFlight      = prometheus.NewDesc(nameInFlight, "Calls (side client) and requests (side server) that have begun and not ended.", []string{"rpc", "side"}, nil)
	descResponseBytes = prometheus.NewDesc(nameResponseBytes, "Bytes of encoded results that were sent.", []string{"rpc"}, nil)
	descTransferError = prometheus.NewDesc(nameTransferError, "Bulk transfers of this process that failed.", []string{"direction", "code"}, nil)
)

// failures counts errors by their code: index 0 has those with a code of which the package codes has no name, the last one codes.Draining.
type failures [int(codes.OtherError) + 2]atomic.Uint64

func (f *failures) add(err error) {
	code := codes.Of(err)
	switch {
	case code == codes.Draining:
		f[len(f)-1].Add(1)
	case code > codes.OtherError:
		f[0].Add(1)
	case code == 0: // an error is never a success
		f[codes.OtherError].Add(1)
	default:
		f[code].Add(1)
	}
}

// all calls yield with the name and the number of each code that has occurred.
func (f *failures) all(yield func(string, uint64) bool) {
	for i := range f {
		n := f[i].Load()
		if n == 0 {
			continue
		}
		name := other
		switch {
		case i == len(f)-1:
			name = codes.Draining.Error()
		case i > 0:
			name = codes.Code(i).Error() // at most 26
		}
		if !yield(name, n) {
			return
		}
	}
}

// series are the figures of one RPC on one side. Its fields are atomic, because a lock would serialize the calls of all goroutines.
type series struct {
	label    string
	duration prometheus.Observer
	failed   failures
	inFlight atomic.Int64
	bytes    atomic.Uint64 // of results
}

// side has the series of the RPCs of one side. Observers read byName without a lock; a new name replaces the map. A name has the same series
// for ever, so that the end of a call is counted where its start was.
type side struct {
	name   string
	max    int
	make   func(label, side string) *series
	byName atomic.Pointer[map[string]*series]

	adding sync.Mutex
	// +checklocks:adding
	byLabel map[string]*series // of those in byName; two names may have one label
	rest    *series            // of the other names
}

// of returns the series of an RPC.
func (s *side) of(name string) *series {
	known := *s.byName.Load()
	if x := known[name]; x != nil {
		return x
	}
	if len(known) >= s.max || len(name) > maxLabel {
		return s.rest
	}
	return s.add(name)
}

func (s *side) add(name string) *series {
	s.adding.Lock()
	defer s.adding.Unlock()
	known := *s.byName.Load()
	if x := known[name]; x != nil {
		return x
	}
	if len(known) >= s.max {
		return s.rest
	}
	text := label(name)
	x := s.byLabel[text]
	if x == nil {
		x = s.make(text, s.name)
		s.byLabel[text] = x
	}
	next := maps.Clone(known)
	next[name] = x
	s.byName.Store(&next)
	return x
}

// all returns the series that exist.
func (s *side) all() (list []*series) {
	s.adding.Lock()
	defer s.adding.Unlock()
	for _, x := range s.byLabel {
		list = append(list, x)
	}
	return list
}

// monitor is the Monitor of a collector.
type monitor struct {
	durations    *prometheus.HistogramVec // by rpc and side
	transfers    *prometheus.HistogramVec // by direction
	registration prometheus.Histogram

	client, server side
	pull, push     transfers
}

// transfers are the figures of the transfers in one direction.
type transfers struct {
	name     string
	duration prometheus.Observer
	failed   failures
}

func (m *monitor) init(maxNames int, buckets []float64) {
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	m.durations = prometheus.NewHistogramVec(histogram(nameDuration,
		"Time of an RPC: at the client from the call to its result, at the server from the arrival of the request to the end of its handling."), []string{"rpc", "side"})
	m.transfers = prometheus.NewHistogramVec(histogram(nameTransfer, "Time of a bulk transfer that this process has started."), []string{"direction"})
	m.registration = prometheus.NewHistogram(histogram(nameRegistration, "Time of the registration of exposed memory."))
	for _, t := range []*transfers{&m.pull, &m.push} {
		t.name = "pull"
		if t == &m.push {
			t.name = "push"
		}
		t.duration = m.transfers.WithLabelValues(t.name)
	}
	m.client.init("client", maxNames, m.newSeries)
	m.server.init("server", maxNames, m.newSeries)
}

// newSeries makes the series of an RPC. The histogram of a name exists from the first event on.
func (m *monitor) newSeries(label, side string) *series {
	return &series{label: label, duration: m.durations.WithLabelValues(label, side)}
}

func (s *side) init(name string, maxNames int, newSeries func(label, side string) *series) {
	s.name, s.max, s.make = name, maxNames, newSeries
	s.rest = newSeries(other, name)
	s.adding.Lock()
	defer s.adding.Unlock()
	s.byLabel = map[string]*series{other: s.rest} // an RPC with this name is one of them
	s.byName.Store(&map[string]*series{})
}

// Event implements [stats.Monitor]. It takes no lock but at the first event of an RPC.
func (m *monitor) Event(_ context.Context, ev stats.Event) {
	switch ev.Kind {
	case stats.EventCall:
		m.client.of(ev.Info.RPC).step(&ev)
	case stats.EventRequest:
		m.server.of(ev.Info.RPC).step(&ev)
	case stats.EventHandle:
		if ev.End && ev.Err != nil {
			m.server.of(ev.Info.RPC).failed.add(ev.Err)
		}
	case stats.EventRespond:
		if ev.End && ev.Bytes > 0 {
			m.server.of(ev.Info.RPC).bytes.Add(uint64(ev.Bytes))
		}
	case stats.EventTransfer:
		m.transfer(&ev)
	case stats.EventExpose:
		if ev.End && ev.Err == nil {
			m.registration.Observe(ev.Times.Ended.Sub(ev.Times.Began).Seconds())
		}
	}
}

// step counts the start or the end of a call or request. A call that failed before the network accepted it has no time.
func (x *series) step(ev *stats.Event) {
	if !ev.End {
		x.inFlight.Add(1)
		return
	}
	x.inFlight.Add(-1)
	if ev.Err != nil {
		x.failed.add(ev.Err)
	}
	if !ev.Times.Ended.IsZero() {
		x.duration.Observe(max(0, ev.Times.Ended.Sub(ev.Times.Began).Seconds()))
	}
}

func (m *monitor) transfer(ev *stats.Event) {
	if !ev.End {
		return
	}
	t := &m.pull
	if ev.Info.RPC == m.push.name {
		t = &m.push
	}
	if ev.Err != nil {
		t.failed.add(ev.Err)
		return
	}
	t.duration.Observe(max(0, ev.Times.Ended.Sub(ev.Times.Began).Seconds()))
}

func (m *monitor) describe(ch chan<- *prometheus.Desc) {
	m.durations.Describe(ch)
	m.transfers.Describe(ch)
	m.registration.Describe(ch)
	for _, d := range []*prometheus.Desc{descErrors, descInFlight, descResponseBytes, descTransferError} {
		ch <- d
	}
}

func (m *monitor) collect(ch chan<- prometheus.Metric) {
	m.durations.Collect(ch)
	m.transfers.Collect(ch)
	m.registration.Collect(ch)
	for _, s := range []*side{&m.client, &m.server} {
		for _, x := range s.all() {
			for code, n := range x.failed.all {
				send(ch, descErrors, prometheus.CounterValue, float64(n), x.label, s.name, code)
			}
			send(ch, descInFlight, prometheus.GaugeValue, float64(x.inFlight.Load()), x.label, s.name)
			if s == &m.server {
				send(ch, descResponseBytes, prometheus.CounterValue, float64(x.bytes.Load()), x.label)
			}
		}
	}
	for _, t := range []*transfers{&m.pull, &m.push} {
		for code, n := range t.failed.all {
			send(ch, descTransferError, prometheus.CounterValue, float64(n), t.name, code)
		}
	}
}
