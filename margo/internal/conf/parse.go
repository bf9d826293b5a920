package conf

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Parse reads a document. getenv returns a variable of the environment; two variables override the keys abt_mem_max_num_stacks and
// abt_thread_stacksize as it does in C. The error is an [*Error].
func Parse(document []byte, getenv func(string) string) (*Config, error) {
	root, err := parseTree(document)
	if err != nil {
		return nil, err
	}
	if root.kind != object {
		return nil, &Error{Reason: "want an object, got " + root.describe()}
	}
	p := &parser{Config: unresolved()}
	p.root(&reader{node: root, fault: &p.fault})
	if p.fault != nil {
		return nil, p.fault
	}
	p.environment(getenv)
	p.note()
	return p.Config, nil
}

// parser is a Config that is being read.
type parser struct {
	*Config
	fault *Error
}

// root reads the whole document.
func (p *parser) root(r *reader) {
	r.string("version", new(string)) // the release of the program that wrote the document; Append writes its own
	if sub, ok := r.object("mercury"); ok {
		p.mercury(sub)
	}
	if sub, ok := r.object("argobots"); ok {
		p.argobots(sub)
	}
	r.integer("progress_timeout_ub_msec", &p.ProgressTimeout, 0, maxCount)
	r.integer("progress_spindown_msec", &p.Spindown, 0, maxCount)
	r.integer("handle_cache_size", &p.HandleCache, 0, maxCount)
	r.boolean("enable_abt_profiling", &p.Profiling)
	p.monitoring(r)
	p.plumber(r)
	given := len(p.Pools)
	if p.fault == nil {
		p.primary(r)
	}
	if p.fault == nil {
		p.progressPool(r, given)
		p.rpcPool(r, given)
		p.bounded(r)
	}
	if sub, ok := r.object("cinnabar"); ok {
		p.own(sub)
	}
	r.end()
}

// bounded refuses a document that, with the pools and streams that Margo adds, is over the limits, because
// Parse would refuse the document that Append makes of it.
func (p *parser) bounded(r *reader) {
	if n := len(p.Pools); n > maxPools {
		r.failf("argobots.pools", "there are %d with those that other keys add; at most %d", n, maxPools)
	}
	if n := len(p.Xstreams); n > maxXstreams {
		r.failf("argobots.xstreams", "there are %d with those that other keys add; at most %d", n, maxXstreams)
	}
}

func (p *parser) monitoring(r *reader) {
	sub, ok := r.object("monitoring")
	if !ok {
		return
	}
	p.Monitoring = &Monitoring{}
	sub.string("name", &p.Monitoring.Name)
	sub.raw("config", &p.Monitoring.Config)
	sub.end()
}

// plumber reads the policies by which Margo chooses one of many network cards (mochi-plumber.c).
func (p *parser) plumber(r *reader) {
	sub, ok := r.object("plumber")
	if !ok {
		return
	}
	p.Plumber = &Plumber{BucketPolicy: "package", NICPolicy: "roundrobin"}
	sub.enum("bucket_policy", &p.Plumber.BucketPolicy, "all", "numa", "package", "passthrough")
	sub.enum("nic_policy", &p.Plumber.NICPolicy, "roundrobin", "random", "bycore", "byset", "passthrough")
	sub.end()
}

// environment applies the variables that override keys.
func (p *parser) environment(getenv func(string) string) {
	for name, to := range map[string]*int64{"ABT_MEM_MAX_NUM_STACKS": &p.Stacks, "ABT_THREAD_STACKSIZE": &p.StackSize} {
		if n, err := strconv.ParseInt(getenv(name), 10, 64); err == nil && n >= 0 && n <= maxCount {
			*to = n
		}
	}
}

// own reads the settings that Margo does not have.
func (p *parser) own(r *reader) {
	o := &p.Own
	r.integer("max_handlers", &o.MaxHandlers, 0, maxCount)
	r.integer("max_queued", &o.MaxQueued, -1, maxCount)
	p.queues(r)
	r.span("handler_warning", (*time.Duration)(&o.HandlerWarning))
	r.span("max_handler_time", (*time.Duration)(&o.MaxHandlerTime))
	r.enum("progress_mode", &o.ProgressMode, "latency")
	r.boolean("allow_remote_shutdown", &o.AllowRemoteShutdown)
	r.boolean("allow_query", &o.AllowQuery)
	r.enum("checksums", &o.Checksums, "never")
	r.integer("max_memory", &o.MaxMemory, 0, 1<<62)
	r.integer("max_connections", &o.MaxConnections, 0, maxCount)
	r.integer("max_overflow", &o.MaxOverflow, 0, 1<<62)
	r.integer("overflow_budget", &o.OverflowBudget, 0, 1<<62)
	r.boolean("no_overflow", &o.NoOverflow)
	r.string("interface", &o.Interface)
	r.string("advertise", &o.Advertise)
	r.boolean("firewalled", &o.Firewalled)
	r.span("dial_timeout", (*time.Duration)(&o.DialTimeout))
	r.span("dial_retry", (*time.Duration)(&o.DialRetry))
	r.duration("keep_alive", (*time.Duration)(&o.KeepAlive))
	r.duration("send_timeout", (*time.Duration)(&o.SendTimeout))
	r.duration("late_access", (*time.Duration)(&o.LateAccess))
	r.duration("transfer_stall", (*time.Duration)(&o.TransferStall))
	p.agree(r)
	r.end()
}

// queues reads how many requests may wait, by pool.
func (p *parser) queues(r *reader) {
	sub, ok := r.object("queues")
	if !ok {
		return
	}
	p.Own.Queues = map[string]int64{}
	for _, f := range sub.node.fields {
		if p.Pool(f.name) < 0 || f.name == Primary {
			sub.failf(f.name, "no such pool in argobots.pools; max_queued is for %s", Primary)
			return
		}
		var n int64
		sub.integer(f.name, &n, -1, maxCount)
		p.Own.Queues[f.name] = n
	}
}

// agree refuses settings that contradict those of Margo's keys that they refine.
func (p *parser) agree(r *reader) {
	if p.Own.ProgressMode == "latency" && p.Spindown == 0 {
		r.failf("progress_mode", "is %s, but progress_spindown_msec is 0, which polls for no time; give one of them", p.Own.ProgressMode)
	}
	if p.Own.Checksums == "never" && p.Mercury.ChecksumLevel != "none" {
		r.failf("checksums", "is %s, but mercury.checksum_level is %s; give one of them", p.Own.Checksums, p.Mercury.ChecksumLevel)
	}
}

// notef adds a note on a setting that is accepted and has no effect.
func (p *parser) notef(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// note adds the notes on settings that are accepted and have no effect, or another one than in C.
func (p *parser) note() {
	for _, x := range p.Xstreams {
		if x.CPU != nil && *x.CPU >= 0 || len(x.Affinity) > 0 {
			p.notef("argobots.xstreams: %s is not bound to processors: goroutines move freely; use taskset or GOMAXPROCS for the whole process", x.Name)
		}
	}
	for i, pool := range p.Pools {
		if pool.Name != Primary && p.Servers(i) == 0 {
			p.notef("argobots.pools: no xstream serves %s, in which C would run nothing; it has one worker", pool.Name)
		}
	}
	if p.Profiling {
		p.notef("enable_abt_profiling: there is no Argobots to profile; use runtime/pprof")
	}
	if p.Spindown != 0 && p.Spindown != DefaultSpindown {
		p.notef("progress_spindown_msec: the engine measures how long polling pays, so %d has the meaning of %d; 0 polls for no time", p.Spindown, int64(DefaultSpindown))
	}
	if p.Plumber != nil {
		p.notef("plumber: no network card is chosen by it; name an interface in the address, or use mercury.ip_subnet")
	}
	p.noteMercury()
}

func (p *parser) noteMercury() {
	m := &p.Mercury
	for _, n := range []struct {
		given     bool
		key, text string
	}{
		{m.NoBlock, "na_no_block", "Config.Progress.Mode, or cinnabar.progress_mode, chooses between polling and sleeping"},
		{m.MaxContexts > 1, "max_contexts", "an engine needs no contexts to use several processors"},
		{m.AuthKey != "", "auth_key", "ofi+tcp and na+sm have no keys"},
		{m.SMInfo != "", "sm_info_string", "with auto_sm the endpoint in shared memory has the numbers of the process and of the engine; a listener over na+sm gets its name from the argument of Listen"},
		{m.RequestMemDevice, "na_request_mem_device", "bulk memory is host memory"},
	} {
		if n.given {
			p.notef("mercury.%s has no effect: %s", n.key, n.text)
		}
	}
}

// quoted lists names in an error's words.
func quoted(names []string) string {
	for i, n := range names {
		names[i] = strconv.Quote(cut(n))
	}
	return strings.Join(names, ", ")
}
