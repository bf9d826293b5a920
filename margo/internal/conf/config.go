package conf

import (
	"encoding/json"
	"slices"
	"time"
)

// The releases that the configuration is of.
const (
	MargoVersion   = "0.24.0"
	MercuryVersion = "2.4.1"
)

// Primary is the name of the pool, and of the execution stream, that every Margo instance has.
const Primary = "__primary__"

// Defaults of Margo.
const (
	DefaultSpindown = 10 // ms

	defaultStacks    = 8
	defaultStackSize = 2 << 20
	defaultTimeout   = 100 // ms
	defaultCache     = 256
	defaultPosted    = 256
)

// Limits of a configuration.
const (
	maxPools    = 1024
	maxXstreams = 4096
	maxCount    = 1<<31 - 1
)

// Config is a configuration with nothing left open.
type Config struct {
	Pools        []Pool
	Xstreams     []Xstream
	ProgressPool int // index in Pools
	RPCPool      int // index in Pools

	Stacks       int64  // abt_mem_max_num_stacks
	StackSize    int64  // abt_thread_stacksize, bytes
	ProfilingDir string // profiling_dir
	LazyStacks   bool   // lazy_stack_alloc

	Mercury    Mercury
	Monitoring *Monitoring // nil: not given
	Plumber    *Plumber    // nil: not given

	ProgressTimeout int64 // progress_timeout_ub_msec
	Spindown        int64 // progress_spindown_msec
	HandleCache     int64 // handle_cache_size
	Profiling       bool  // enable_abt_profiling

	Own Own

	notes []string
}

// Pool is one of argobots.pools.
type Pool struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Access string `json:"access,omitempty"`
}

// Xstream is one of argobots.xstreams: an execution stream, a thread that serves pools.
type Xstream struct {
	Name      string
	Scheduler string // its type
	Pools     []int  // indexes
	CPU       *int64 // cpubind
	Affinity  []int64
}

// Mercury is the object "mercury".
type Mercury struct {
	Version          string `json:"version"`
	Address          string `json:"address,omitempty"`
	Listening        *bool  `json:"listening,omitempty"`
	InputEager       *int64 `json:"input_eager_size,omitempty"`
	OutputEager      *int64 `json:"output_eager_size,omitempty"`
	RequestPostInit  int64  `json:"request_post_init"`
	RequestPostIncr  int64  `json:"request_post_incr"`
	AutoSM           bool   `json:"auto_sm"`
	NoBulkEager      bool   `json:"no_bulk_eager"`
	NoLoopback       bool   `json:"no_loopback"`
	Stats            bool   `json:"stats"`
	NoBlock          bool   `json:"na_no_block"`
	NoRetry          bool   `json:"na_no_retry"`
	MaxContexts      int64  `json:"max_contexts"`
	Subnet           string `json:"ip_subnet,omitempty"`
	AuthKey          string `json:"auth_key,omitempty"`
	LogLevel         string `json:"log_level"`
	LogSubsys        string `json:"log_subsys"`
	MaxUnexpected    int64  `json:"na_max_unexpected_size"`
	MaxExpected      int64  `json:"na_max_expected_size"`
	SMInfo           string `json:"sm_info_string,omitempty"`
	RequestMemDevice bool   `json:"na_request_mem_device"`
	ChecksumLevel    string `json:"checksum_level"`
	AddrFormat       string `json:"na_addr_format"`
}

// Monitoring is the object "monitoring".
type Monitoring struct {
	Name   string          `json:"name,omitempty"`
	Config json.RawMessage `json:"config,omitempty"`
}

// Plumber is the object "plumber".
type Plumber struct {
	BucketPolicy string `json:"bucket_policy"`
	NICPolicy    string `json:"nic_policy"`
}

// Own is the object "cinnabar": settings that Margo does not have. Zeros are not written; queues are, by the name of
// their pool.
type Own struct {
	MaxHandlers         int64            `json:"max_handlers,omitempty"`
	MaxQueued           int64            `json:"max_queued,omitempty"`
	Queues              map[string]int64 `json:"queues,omitempty"`
	HandlerWarning      Duration         `json:"handler_warning,omitempty"`
	MaxHandlerTime      Duration         `json:"max_handler_time,omitempty"`
	ProgressMode        string           `json:"progress_mode,omitempty"`
	AllowRemoteShutdown bool             `json:"allow_remote_shutdown,omitempty"`
	AllowQuery          bool             `json:"allow_query,omitempty"`
	Checksums           string           `json:"checksums,omitempty"`
	MaxMemory           int64            `json:"max_memory,omitempty"`
	MaxConnections      int64            `json:"max_connections,omitempty"`
	MaxOverflow         int64            `json:"max_overflow,omitempty"`
	OverflowBudget      int64            `json:"overflow_budget,omitempty"`
	NoOverflow          bool             `json:"no_overflow,omitempty"`
	Interface           string           `json:"interface,omitempty"`
	Advertise           string           `json:"advertise,omitempty"`
	Firewalled          bool             `json:"firewalled,omitempty"`
	DialTimeout         Duration         `json:"dial_timeout,omitempty"`
	DialRetry           Duration         `json:"dial_retry,omitempty"`
	KeepAlive           Duration         `json:"keep_alive,omitempty"`
	SendTimeout         Duration         `json:"send_timeout,omitempty"`
	LateAccess          Duration         `json:"late_access,omitempty"`
	TransferStall       Duration         `json:"transfer_stall,omitempty"`
}

// Duration is written as in "1m30s".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Default returns the configuration of an empty document.
func Default() *Config {
	c := unresolved()
	c.addPrimary()
	return c
}

// unresolved is a Default that has no pools yet.
func unresolved() *Config {
	return &Config{
		Stacks: defaultStacks, StackSize: defaultStackSize, ProfilingDir: ".",
		Mercury: Mercury{
			Version: MercuryVersion, RequestPostInit: defaultPosted, RequestPostIncr: defaultPosted,
			LogLevel: "warning", LogSubsys: "hg,na", ChecksumLevel: "none", AddrFormat: "unspec",
		},
		ProgressTimeout: defaultTimeout, Spindown: DefaultSpindown, HandleCache: defaultCache,
	}
}

// Notes returns a line for each accepted setting that has no effect in Go, or another one than in C. The slice is the Config's.
func (c *Config) Notes() []string { return c.notes }

// Pool returns the index of the pool of that name, -1 if there is none.
func (c *Config) Pool(name string) int {
	return slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Name == name })
}

// Xstream returns the index of the execution stream of that name, -1 if there is none.
func (c *Config) Xstream(name string) int {
	return slices.IndexFunc(c.Xstreams, func(x Xstream) bool { return x.Name == name })
}

// Servers counts the execution streams that serve a pool.
func (c *Config) Servers(pool int) (n int) {
	for _, x := range c.Xstreams {
		if slices.Contains(x.Pools, pool) {
			n++
		}
	}
	return n
}

// Clone returns a copy that shares nothing that is changed in place.
func (c *Config) Clone() *Config {
	d := *c
	d.Pools, d.Xstreams = slices.Clone(c.Pools), slices.Clone(c.Xstreams)
	return &d
}
