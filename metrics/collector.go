// Package metrics exports the figures of an engine of [cinnabar] to Prometheus: latency of each RPC as a histogram, errors by code, calls under
// way, bytes, exposed memory, handler pools, connections and evictions. It is a module of its own, so that programs without Prometheus do not
// depend on its library.
//
//	collector := metrics.New(nil)
//	cfg := &cinnabar.Config{}
//	collector.Install(cfg)
//	engine, err := cinnabar.Listen(ctx, "ofi+tcp://", cfg)
//	...
//	prometheus.MustRegister(collector)
//	http.Handle("/metrics", promhttp.Handler())
//
// dashboard.json in the directory of the package is a dashboard for Grafana, and docs/metrics.md in the repository lists the metrics.
//
// # Cost
//
// The engine has its counters without this package, and the collector reads them when Prometheus scrapes. The figures of single RPCs come from a
// Monitor, which [Collector.Install] adds to the configuration: an event costs some tens of nanoseconds and allocates nothing. A program that
// calls [Collector.Watch] instead of Install has no Monitor, and so neither these costs nor these figures.
//
// # Limits
//
// Programs may make any number of RPCs and of pools, with names that are long or no valid text, so the collector bounds the number of series. On each
// side, 128 RPCs have series of their own ([Config.MaxNames]); the others share those with the label "other", and so do RPCs with names of more
// than 128 bytes. A label has only printable characters of valid UTF-8; others are replaced by U+FFFD. No label has the address of a peer or an error's text.
//
// All functions are safe for concurrent use.
package metrics

import (
	"context"
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"cinnabar"
	"cinnabar/stats"
)

// Limits of label values.
const (
	DefaultMaxNames = 128
	MostMaxNames    = 1024
	maxSeries       = 64  // series of one metric that the collector makes from a snapshot, beside those with the label "other"
	maxLabel        = 128 // bytes
)

// Config has the settings of a [Collector]. The zero value is good for most programs.
type Config struct {
	// MaxNames is the number of RPCs of each side with series of their own; 0: DefaultMaxNames; at most MostMaxNames.
	MaxNames int
	// Buckets are the upper bounds of the buckets of all histograms, in seconds and ascending; nil: 19 from 10 µs to 10 s.
	Buckets []float64
}

// defaultBuckets has the bounds 1, 2.5 and 5 of each power of ten, because RPCs take from some ten microseconds to seconds.
var defaultBuckets = []float64{
	1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
}

// Collector is a [prometheus.Collector] of the figures of one engine. A program with several engines makes a Collector for each of them, and
// registers each with [prometheus.WrapRegistererWith] and a label of its own.
type Collector struct {
	mon monitor

	scrape sync.Mutex // held while Collect takes a snapshot, because one at a time is enough

	mu sync.Mutex
	// +checklocks:mu
	engine *cinnabar.Engine
}

// New returns a Collector without an engine. A nil cfg is the zero Config. New panics if the buckets do not ascend, as functions of package
// prometheus do.
func New(cfg *Config) *Collector {
	if cfg == nil {
		cfg = &Config{}
	}
	names, buckets := cfg.MaxNames, cfg.Buckets
	if names <= 0 {
		names = DefaultMaxNames
	}
	if buckets == nil {
		buckets = defaultBuckets
	}
	c := &Collector{}
	c.mon.init(min(names, MostMaxNames), buckets)
	return c
}

// errSecond is the error of Listen and Open with a configuration that was given to [Collector.Install], if the collector has an engine already.
var errSecond = errors.New("metrics: the Collector has an engine already; make a Collector for each engine")

// Install makes the engine that is opened with cfg the engine of the collector, and reports the events of its RPCs to the collector. It changes
// Monitor and Setup of cfg, and keeps those that cfg has. If the collector has an engine that is not closed, Listen and Open return an error.
func (c *Collector) Install(cfg *cinnabar.Config) {
	if next := cfg.Monitor; next != nil {
		cfg.Monitor = &chain{&c.mon, next}
	} else {
		cfg.Monitor = &c.mon
	}
	next := cfg.Setup
	cfg.Setup = func(e *cinnabar.Engine) error {
		if next != nil {
			if err := next(e); err != nil {
				return err
			}
		}
		return c.Watch(e)
	}
}

// Watch makes e the engine of the collector. The series of single RPCs have values only if [Collector.Install] has changed the
// configuration of e. It is an error if the collector has another engine that is not closed.
func (c *Collector) Watch(e *cinnabar.Engine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engine != nil && c.engine != e {
		select {
		case <-c.engine.Done():
		default:
			return errSecond
		}
	}
	c.engine = e
	return nil
}

func (c *Collector) watched() *cinnabar.Engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.engine
}

// chain passes each event to the collector's monitor, and then to another one.
type chain struct {
	*monitor
	next stats.Monitor
}

// Event implements [stats.Monitor].
func (c *chain) Event(ctx context.Context, ev stats.Event) {
	c.monitor.Event(ctx, ev)
	c.next.Event(ctx, ev)
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	c.mon.describe(ch)
	for i := range families {
		ch <- families[i].desc
	}
}

// Collect implements [prometheus.Collector]. It takes a snapshot of the engine.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mon.collect(ch)
	e := c.watched()
	if e == nil {
		return
	}
	c.scrape.Lock()
	v := view{e.Stats(), e.State(stats.MostRows)}
	c.scrape.Unlock()
	for i := range families {
		families[i].collect(&v, ch)
	}
}
