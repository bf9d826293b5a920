package margo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/margo/internal/conf"
	"cinnabar/stats"
)

// Variables of the environment that Margo's default monitor reads. In C they count as set with any value, also an empty one.
const (
	envMonitoring    = "MARGO_ENABLE_MONITORING"
	envPrefix        = "MARGO_MONITORING_FILENAME_PREFIX"
	envNoStatistics  = "MARGO_MONITORING_DISABLE_STATISTICS"
	envNoSeries      = "MARGO_MONITORING_DISABLE_TIME_SERIES"
	defaultPrefix    = "margo"
	defaultInterval  = time.Second
	shortestInterval = 10 * time.Millisecond
	longestInterval  = time.Hour
)

// monitoring is Margo's default monitor of an engine that writes its files when the engine ends.
type monitoring struct {
	prefix       string      // of the names of the files; empty: none are written
	statistics   *Statistics // nil: disabled
	series       *timeSeries // nil: disabled
	pretty       bool        // the statistics have line breaks
	prettySeries bool
}

// enableMonitoring sets Monitor and the files for which the environment asks. The keys of monitoring.config in the document precede the variables, and values
// of other types than Margo's are passed over, as in C.
func (cfg *Config) enableMonitoring(lookup func(string) (string, bool)) {
	if _, set := lookup(envMonitoring); !set {
		return
	}
	m := &monitoring{prefix: defaultPrefix}
	if prefix, set := lookup(envPrefix); set {
		m.prefix = prefix
	}
	_, noStatistics := lookup(envNoStatistics)
	_, noSeries := lookup(envNoSeries)
	interval := defaultInterval.Seconds()

	config := members(cfg.Monitoring())
	override(config, "filename_prefix", &m.prefix)
	statistics, series := members(config["statistics"]), members(config["time_series"])
	override(statistics, "disable", &noStatistics)
	override(statistics, "pretty_json", &m.pretty)
	override(series, "disable", &noSeries)
	override(series, "pretty_json", &m.prettySeries)
	override(series, "time_interval_sec", &interval)
	cfg.Monitor = nil
	if !noStatistics {
		m.statistics = new(Statistics)
		cfg.Monitor = m.statistics
	}
	if !noSeries {
		seconds := min(max(interval, shortestInterval.Seconds()), longestInterval.Seconds())
		m.series = newTimeSeries(time.Duration(seconds * float64(time.Second)))
	}
	cfg.monitoring = m
}

// members returns the members of a JSON object, none if it is no object.
func members(object json.RawMessage) (m map[string]json.RawMessage) {
	_ = json.Unmarshal(object, &m) // the document has been parsed, and a value of another type is passed over
	return m
}

// override sets *v to a member, unless it is of another type.
func override[T any](object map[string]json.RawMessage, name string, v *T) {
	if value, given := object[name]; given {
		var t *T // null leaves it nil
		if json.Unmarshal(value, &t) == nil && t != nil {
			*v = *t
		}
	}
}

// install makes an engine that is opened with cfg write the files when it ends. It does nothing if the program has set a Monitor of its own, as in C.
func (m *monitoring) install(cfg *cinnabar.Config) {
	if m == nil {
		return
	}
	switch own := cfg.Monitor.(type) {
	case nil:
		if m.statistics != nil {
			return
		}
	case *Statistics:
		if own != m.statistics {
			return
		}
	default:
		return
	}
	if m.series != nil {
		cfg.Monitor = &seriesMonitor{m.series, cfg.Monitor}
	}
	next := cfg.Setup
	cfg.Setup = func(e *cinnabar.Engine) error {
		stop := make(chan struct{})
		var sampler sync.WaitGroup
		if m.series != nil {
			sampler.Go(func() { m.series.run(e.Stats, stop) })
		}
		e.OnClose(func() {
			close(stop)
			sampler.Wait()
			if err := m.write(e); err != nil {
				e.Config().Logger.Error("the files of Margo's monitor are not written", "error", err)
			}
		})
		if next == nil {
			return nil
		}
		return next(e)
	}
}

// write writes the files of an engine that has ended, PREFIX.HOST.PID.stats.json and PREFIX.HOST.PID.series.json.
func (m *monitoring) write(e *cinnabar.Engine) error {
	if m.prefix == "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	base := fmt.Sprintf("%s.%s.%d", m.prefix, strings.ReplaceAll(host, string(filepath.Separator), "_"), os.Getpid())
	if m.statistics != nil {
		var b bytes.Buffer
		if err = m.statistics.Dump(e, &b, false); err == nil {
			err = writeFile(base+".stats.json", b.Bytes(), m.pretty)
		}
	}
	if m.series == nil {
		return err
	}
	data, failed := json.Marshal(m.series.report(e.Addr()))
	if failed == nil {
		failed = writeFile(base+".series.json", data, m.prettySeries)
	}
	return errors.Join(err, failed)
}

// writeFile writes a file as a whole, or leaves an older one as it is. The name can be guessed, so a link that another user has put there is
// replaced and not followed.
func writeFile(name string, data []byte, pretty bool) error {
	if pretty {
		var b bytes.Buffer
		if err := json.Indent(&b, data, "", "  "); err != nil {
			return err
		}
		data = b.Bytes()
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Limits of the memory of a timeSeries, some 6 MB.
const (
	maxSamples   = 2048 // of a series; then the samples are joined in pairs
	maxRPCSeries = 128
	maxPoolLists = 64
)

// Names of series without an RPC.
const (
	unknownRPC = "<unknown>"
	otherRPCs  = others + ":65535" // those beyond maxRPCSeries
)

// timeSeries records requests and bulk bytes of each RPC, and requests in each pool, at intervals, as Margo's default monitor does. A long series keeps its length, because
// it joins its samples in pairs when it is full: older ones stand for longer intervals.
type timeSeries struct {
	interval time.Duration

	mu sync.Mutex
	// +checklocks:mu
	names map[uint64]string // names of series, by the ids of their RPCs; at most maxRPCSeries
	// +checklocks:mu
	rpcs map[string]*rpcSamples
	// +checklocks:mu
	pools map[string]*poolSamples
}

// seconds is a time since 1970 with Margo's precision.
type seconds float64

// MarshalJSON implements [json.Marshaler].
func (s seconds) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%.9f", float64(s)), nil }

// rpcSamples are the samples of an RPC: numbers since the sample before.
type rpcSamples struct {
	Times []seconds `json:"timestamps"`
	Count []uint64  `json:"count"`
	Bytes []uint64  `json:"bulk_size"`

	count, bytes uint64 // since the last sample
}

// poolSamples are the samples of a pool: requests that wait for a worker, and these with the handlers that wait for the network.
type poolSamples struct {
	Times []seconds `json:"timestamps"`
	Size  []uint64  `json:"size"`
	Total []uint64  `json:"total_size"`
}

func newTimeSeries(interval time.Duration) *timeSeries {
	s := &timeSeries{interval: interval}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names, s.rpcs, s.pools = map[uint64]string{}, map[string]*rpcSamples{}, map[string]*poolSamples{}
	return s
}

// seriesMonitor passes events to a timeSeries and to another monitor.
type seriesMonitor struct {
	series *timeSeries
	next   stats.Monitor // nil: none
}

// Event implements [stats.Monitor].
func (m *seriesMonitor) Event(ctx context.Context, ev stats.Event) {
	if !ev.End {
		switch ev.Kind {
		case stats.EventRequest:
			m.series.request(&ev.Info)
		case stats.EventTransfer:
			m.series.moved(ev.Info.Parent, ev.Bytes)
		case stats.EventCall, stats.EventHandle, stats.EventRespond, stats.EventExpose: // not in the file
		}
	}
	if m.next != nil {
		m.next.Event(ctx, ev)
	}
}

// request counts a request.
func (s *timeSeries) request(c *stats.CallInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.names[c.ID]
	if name == "" {
		if name = otherRPCs; len(s.names) < maxRPCSeries {
			name = fmt.Sprintf("%s:%d", c.RPC, c.Provider)
			s.names[c.ID] = name
		}
	}
	entry(&s.rpcs, name).count++
}

// moved counts the bytes of a transfer that the handler of the RPC id has started. Transfers outside handlers have the name that Margo gives to them.
func (s *timeSeries) moved(id uint64, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.names[id]
	switch {
	case name != "":
	case id == noParent:
		name = unknownRPC
	default:
		name = otherRPCs
	}
	entry(&s.rpcs, name).bytes += uint64(max(bytes, 0))
}

// run takes samples until stop is closed, and a last one then.
func (s *timeSeries) run(snapshot func() stats.Snapshot, stop <-chan struct{}) {
	ticker := time.NewTicker(s.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.sample(time.Now(), snapshot())
		case <-stop:
			s.sample(time.Now(), snapshot())
			return
		}
	}
}

// sample adds a sample to each series.
func (s *timeSeries) sample(now time.Time, state stats.Snapshot) {
	at := seconds(float64(now.UnixNano()) / float64(time.Second))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rpcs {
		if len(r.Times) == maxSamples {
			r.Times, r.Count, r.Bytes = halved(r.Times, last), halved(r.Count, sum), halved(r.Bytes, sum)
		}
		r.Times, r.Count, r.Bytes = append(r.Times, at), append(r.Count, r.count), append(r.Bytes, r.bytes)
		r.count, r.bytes = 0, 0
	}
	s.samplePoolLocked(at, conf.Primary, &state.Handlers)
	for name, p := range state.Pools {
		s.samplePoolLocked(at, name, &p)
	}
}

// samplePoolLocked adds a sample to the series of a pool. The pools beyond maxPoolLists have none.
//
// +checklocks:s.mu
func (s *timeSeries) samplePoolLocked(at seconds, name string, p *stats.Pool) {
	if s.pools[name] == nil && len(s.pools) == maxPoolLists {
		return
	}
	x := entry(&s.pools, name)
	if len(x.Times) == maxSamples {
		x.Times, x.Size, x.Total = halved(x.Times, last), halved(x.Size, last), halved(x.Total, last)
	}
	x.Times, x.Size, x.Total = append(x.Times, at), append(x.Size, uint64(p.Queued)), append(x.Total, uint64(p.Queued+p.Waiting))
}

// halved joins the elements of an even number in pairs, in place.
func halved[T any](list []T, join func(a, b T) T) []T {
	for i := range len(list) / 2 {
		list[i] = join(list[2*i], list[2*i+1])
	}
	return list[:len(list)/2]
}

func last[T any](_, b T) T { return b }

func sum(a, b uint64) uint64 { return a + b }

// seriesJSON is the file of the series.
type seriesJSON struct {
	Address string                 `json:"address"`
	RPCs    map[string]rpcSamples  `json:"rpcs"`
	Pools   map[string]poolSamples `json:"pools"`
}

// report copies the series. The lists are shared, so the caller stops the samples before.
func (s *timeSeries) report(address string) *seriesJSON {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &seriesJSON{Address: address, RPCs: map[string]rpcSamples{}, Pools: map[string]poolSamples{}}
	for name, r := range s.rpcs {
		f.RPCs[name] = *r
	}
	for name, p := range s.pools {
		f.Pools[name] = *p
	}
	return f
}
