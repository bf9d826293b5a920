package metrics

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"cinnabar/stats"
)

// other is the label value of the names beyond a limit.
const other = "other"

// view is a snapshot from which the collector makes metrics.
type view struct {
	stats.Snapshot
	state stats.State
}

// family is a metric that is made from a snapshot.
type family struct {
	name   string
	kind   prometheus.ValueType
	help   string
	labels []string
	read   func(*view, *table)
	desc   *prometheus.Desc
}

// table has the values of a family, by its labels.
type table struct{ rows []row }

type row struct {
	labels []string
	value  float64
}

// add adds a value to the row of the labels. Beyond maxSeries rows it adds to the row in which all labels are "other". Two names may have the
// same label, and a registry refuses two series with the same labels.
func (t *table) add(value float64, labels ...string) {
	for i := range labels {
		labels[i] = label(labels[i])
	}
	r := t.row(labels)
	if r == nil && len(t.rows) >= maxSeries {
		for i := range labels {
			labels[i] = other
		}
		r = t.row(labels)
	}
	if r == nil {
		t.rows = append(t.rows, row{labels: labels})
		r = &t.rows[len(t.rows)-1]
	}
	r.value += value
}

func (t *table) row(labels []string) *row {
	for i := range t.rows {
		if slices.Equal(t.rows[i].labels, labels) {
			return &t.rows[i]
		}
	}
	return nil
}

// label returns s as the value of a label: printable valid UTF-8 of maxLabel bytes at most.
func label(s string) string {
	if len(s) > maxLabel {
		return other
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
	if len(s) > maxLabel { // a replacement is longer than the byte that it replaces
		return other
	}
	return s
}

// collect sends the metrics of the family.
func (f *family) collect(v *view, ch chan<- prometheus.Metric) {
	var t table
	f.read(v, &t)
	for _, r := range t.rows {
		send(ch, f.desc, f.kind, r.value, r.labels...)
	}
}

// send sends a metric, or the reason for which a registry would refuse it.
func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(d, kind, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	ch <- m
}

// count makes a counter without labels.
func count(name, help string, n func(*view) uint64) family {
	return family{name: name, kind: prometheus.CounterValue, help: help, read: func(v *view, t *table) { t.add(float64(n(v))) }}
}

// gauge makes a gauge without labels.
func gauge(name, help string, n func(*view) float64) family {
	return family{name: name, kind: prometheus.GaugeValue, help: help, read: func(v *view, t *table) { t.add(n(v)) }}
}

// ofPools makes a metric of handler pools.
func ofPools(name string, kind prometheus.ValueType, help string, n func(*stats.NamedPool) float64) family {
	return family{name: name, kind: kind, help: help, labels: []string{"pool"}, read: func(v *view, t *table) {
		for i := range v.state.Pools {
			p := &v.state.Pools[i]
			t.add(n(p), poolLabel(p.Name))
		}
	}}
}

// poolLabel returns the label of a pool. The handlers outside named pools have one too, because Prometheus takes an empty label for none.
func poolLabel(name string) string {
	if name == "" {
		return "(none)"
	}
	return name
}

// ofQuotas makes a metric of the resources that hosts have shares of.
func ofQuotas(name string, kind prometheus.ValueType, help string, n func(*stats.Quota) float64) family {
	return family{name: name, kind: kind, help: help, labels: []string{"resource"}, read: func(v *view, t *table) {
		for i := range v.Security.Quotas {
			q := &v.Security.Quotas[i]
			t.add(n(q), q.Resource)
		}
	}}
}

// byDirection makes a counter of transfers that read from peers and of those that write to them.
func byDirection(name, help string, read, write func(*view) uint64) family {
	return family{name: name, kind: prometheus.CounterValue, help: help, labels: []string{"direction"}, read: func(v *view, t *table) {
		t.add(float64(read(v)), "read")
		t.add(float64(write(v)), "write")
	}}
}

// evicted is the event of a connection or handshake that was closed to make room.
const evicted = "connection evicted"

// families are the metrics that are made from a snapshot.
var families = described([]family{
	count("cinnabar_requests_sent_total", "Requests that left this process.", func(v *view) uint64 { return v.RequestsSent }),
	count("cinnabar_requests_sent_shared_memory_total", "Requests of cinnabar_requests_sent_total that travelled over shared memory.", func(v *view) uint64 { return v.RequestsShared }),
	count("cinnabar_requests_received_total", "Requests from the network.", func(v *view) uint64 { return v.RequestsRecvd }),
	count("cinnabar_responses_sent_total", "Responses to received requests.", func(v *view) uint64 { return v.ResponsesSent }),
	count("cinnabar_responses_received_total", "Responses to sent requests.", func(v *view) uint64 { return v.ResponsesRecvd }),
	count("cinnabar_requests_overflow_total", "Requests, sent or received, with arguments too long for one message.", func(v *view) uint64 { return v.RequestsExtra }),
	count("cinnabar_responses_overflow_total", "Responses, sent or received, with results too long for one message.", func(v *view) uint64 { return v.ResponsesExtra }),
	count("cinnabar_self_calls_total", "Calls to the own address, which the other counters of requests leave out.", func(v *view) uint64 { return v.SelfCalls }),
	count("cinnabar_requests_dropped_total", "Received requests that were malformed, had wrong checksums, or had arguments that could not be fetched.", func(v *view) uint64 { return v.RequestsDropped }),
	count("cinnabar_requests_refused_total", "Requests answered HG_AGAIN because no memory was left for their arguments.", func(v *view) uint64 { return v.RequestsRefused }),
	count("cinnabar_requests_unheard_total", "Requests that were freed without an answer although their callers wait for one.", func(v *view) uint64 { return v.RequestsUnheard }),
	count("cinnabar_responses_failed_total", "Responses that the network did not accept or the caller did not fetch.", func(v *view) uint64 { return v.ResponsesFailed }),
	count("cinnabar_acks_missing_total", "Long arguments and results of which a peer did not acknowledge the receipt in time.", func(v *view) uint64 { return v.AcksMissing }),
	gauge("cinnabar_calls_in_flight", "Calls that were started and have not ended.", func(v *view) float64 { return float64(v.CallsActive) }),
	gauge("cinnabar_requests_in_flight", "Requests that were received and are not freed.", func(v *view) float64 { return float64(v.RequestsActive) }),
	gauge("cinnabar_transfers_in_flight", "Bulk transfers that were started and have not ended.", func(v *view) float64 { return float64(v.TransfersActive) }),
	gauge("cinnabar_responses_unsent", "Responses that the network has not yet accepted.", func(v *view) float64 { return float64(v.ResponsesUnsent) }),
	gauge("cinnabar_overflow_bytes", "Memory that holds arguments and results too long for a message.", func(v *view) float64 { return float64(v.OverflowBytes) }),

	byDirection("cinnabar_bulk_transfers_total", "Bulk transfers with peers.", func(v *view) uint64 { return v.Reads }, func(v *view) uint64 { return v.Writes }),
	byDirection("cinnabar_bulk_bytes_total", "Bytes that bulk transfers moved.", func(v *view) uint64 { return v.BytesRead }, func(v *view) uint64 { return v.BytesWritten }),
	count("cinnabar_bulk_rdma_bytes_total", "Bytes of cinnabar_bulk_bytes_total that an RDMA device moved between the memories of two processes.", func(v *view) uint64 { return v.BytesRDMA }),
	count("cinnabar_bulk_bounced_bytes_total", "Bytes of cinnabar_bulk_rdma_bytes_total that were copied through a buffer.", func(v *view) uint64 { return v.BytesBounced }),
	count("cinnabar_bulk_eager_copies_total", "Pulls that copied the data in the handle.", func(v *view) uint64 { return v.EagerCopies }),
	count("cinnabar_bulk_local_copies_total", "Transfers to and from memory of this process.", func(v *view) uint64 { return v.LocalCopies }),

	count("cinnabar_memory_exposures_total", "Memories that were exposed to peers.", func(v *view) uint64 { return v.Bulks }),
	gauge("cinnabar_exposed_memory_regions", "Memories that are exposed to peers.", func(v *view) float64 { return float64(v.state.MemoryCount) }),
	gauge("cinnabar_exposed_memory_bytes", "Bytes that are exposed to peers.", func(v *view) float64 { return float64(v.state.MemoryBytes) }),
	gauge("cinnabar_registered_rpcs", "RPCs that the engine serves.", func(v *view) float64 { return float64(len(v.state.RPCs) + v.state.More.RPCs) }),
	gauge("cinnabar_registered_providers", "Providers of the engine.", func(v *view) float64 { return float64(len(v.state.Providers) + v.state.More.Providers) }),
	gauge("cinnabar_engine_start_time_seconds", "Time at which the engine was opened, in seconds since 1970.", func(v *view) float64 {
		return float64(v.state.Taken.Add(-v.state.Age).UnixMilli()) / float64(time.Second/time.Millisecond)
	}),

	ofPools("cinnabar_pool_handlers_running", prometheus.GaugeValue, "Handlers of the pool that run.", func(p *stats.NamedPool) float64 { return float64(p.Running) }),
	ofPools("cinnabar_pool_handlers_waiting", prometheus.GaugeValue, "Handlers of the pool that wait for a call or transfer of theirs.", func(p *stats.NamedPool) float64 { return float64(p.Waiting) }),
	ofPools("cinnabar_pool_requests_queued", prometheus.GaugeValue, "Requests that wait for a worker of the pool.", func(p *stats.NamedPool) float64 { return float64(p.Queued) }),
	ofPools("cinnabar_pool_handlers_peak", prometheus.GaugeValue, "Largest number of handlers of the pool at once so far.", func(p *stats.NamedPool) float64 { return float64(p.Most) }),
	ofPools("cinnabar_pool_handlers_started_total", prometheus.CounterValue, "Handlers that the pool has begun.", func(p *stats.NamedPool) float64 { return float64(p.Served) }),
	ofPools("cinnabar_pool_requests_refused_total", prometheus.CounterValue, "Requests answered HG_AGAIN because the queue of the pool was full.", func(p *stats.NamedPool) float64 { return float64(p.Refused) }),

	{name: "cinnabar_connections", kind: prometheus.GaugeValue, labels: []string{"direction", "state"}, help: "Connections with peers, and attempts to connect. Those beyond 1,024 have the labels other.", read: connections},
	{name: "cinnabar_connections_evicted_total", kind: prometheus.CounterValue, help: "Connections and unfinished handshakes that were closed to make room for another host.", read: evictions},
	{name: "cinnabar_security_events_total", kind: prometheus.CounterValue, labels: []string{"event", "cause"}, help: "Events that matter for security, by their cause.", read: events},
	ofQuotas("cinnabar_quota_used", prometheus.GaugeValue, "Amount of a limited resource that hosts hold.", func(q *stats.Quota) float64 { return float64(q.Used) }),
	ofQuotas("cinnabar_quota_limit", prometheus.GaugeValue, "Limit of cinnabar_quota_used.", func(q *stats.Quota) float64 { return float64(q.Limit) }),
	ofQuotas("cinnabar_quota_refused_total", prometheus.CounterValue, "How many times a host got no more of the resource.", func(q *stats.Quota) float64 { return float64(q.Refused) }),

	count("cinnabar_progress_spins_total", "Waits for the network that looked for messages before they parked, or instead.", func(v *view) uint64 { return v.Spins }),
	count("cinnabar_progress_parks_total", "Waits for the network that parked and were woken.", func(v *view) uint64 { return v.Parks }),
	count("cinnabar_progress_yields_total", "Times that a waiter gave its processor to threads of other processes.", func(v *view) uint64 { return v.Yields }),
	count("cinnabar_progress_hand_overs_total", "Times that a reader gave its processor to a goroutine that it had given work to.", func(v *view) uint64 { return v.HandOvers }),
})

// described returns the families with their descriptors.
func described(list []family) []family {
	for i := range list {
		f := &list[i]
		f.desc = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	return list
}

func connections(v *view, t *table) {
	for i := range v.state.Connections {
		c := &v.state.Connections[i]
		direction := "outbound"
		if c.Inbound {
			direction = "inbound"
		}
		t.add(1, direction, c.State)
	}
	if more := v.state.More.Connections; more > 0 {
		t.add(float64(more), other, other)
	}
}

func evictions(v *view, t *table) {
	t.add(0) // so that the series is there before the first eviction
	for i := range v.Security.Events {
		if e := &v.Security.Events[i]; e.Event == evicted {
			t.add(float64(e.Count))
		}
	}
}

func events(v *view, t *table) {
	for i := range v.Security.Events {
		e := &v.Security.Events[i]
		t.add(float64(e.Count), e.Event, e.Cause)
	}
}
