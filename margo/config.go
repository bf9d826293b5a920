package margo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo/internal/conf"
	"cinnabar/stats"
)

// Config is a configuration of an engine with the settings of Margo's JSON that belong to no engine of package cinnabar. The zero
// value is Margo's default. Use one Config for one engine, because a Monitor that ParseConfig makes belongs to one engine.
type Config struct {
	cinnabar.Config // [Listen] and [Open] use it; those of package cinnabar take a pointer to it

	// Log has the levels of mercury.log_level and mercury.log_subsys, and those of the environment. They have an effect if Logger is
	// made with them: see [NewLogger].
	Log LogLevels
	// AllowQuery makes [Listen] serve [Query] and [QueryState]: any peer that asks gets a [Description] of the engine, and its state.
	AllowQuery bool

	document   *conf.Config // the parsed document; nil: Margo's defaults
	monitoring *monitoring  // that the environment has enabled; nil: none
}

// ParseConfig reads a configuration of Margo's, the JSON that margo_init_ext takes and margo_get_config returns. It accepts each key
// of Margo 0.24, if the value makes sense; docs/from-margo.md lists the fields that the keys set. The address is not read from the
// document, as in C: it is the argument of [Listen] or [Open]. A document that asks for Margo's default monitor by its key monitoring
// sets Monitor to new [Statistics].
//
// The error, of codes.InvalidArg, names the key that is refused. [Config.Notes] lists the settings that are accepted and have no effect.
func ParseConfig(margoJSON []byte) (*Config, error) { return parseConfig(margoJSON, noEnvironment) }

// noEnvironment is an environment without variables.
func noEnvironment(string) string { return "" }

func parseConfig(margoJSON []byte, getenv func(string) string) (*Config, error) {
	m, err := conf.Parse(margoJSON, getenv)
	if err != nil {
		return nil, argumentError("parse configuration", "%w", err)
	}
	return configFrom(m), nil
}

// Variables of the environment that [ConfigFromEnv] reads besides those of Argobots.
const (
	envLogLevel  = "MARGO_LOG_LEVEL"
	envHGLevel   = "HG_LOG_LEVEL"
	envHGSubsys  = "HG_LOG_SUBSYS"
	envInterface = "FI_TCP_IFACE"
)

// ConfigFromEnv is [ParseConfig], with the variables of the environment that Margo, Mercury, Argobots and libfabric read in C. It is
// the only function of this module that reads them. An empty margoJSON stands for "{}".
//
//	MARGO_LOG_LEVEL                       Log.Margo
//	HG_LOG_LEVEL                          Log.Mercury, if mercury.log_level of the document is absent or Margo's default, "warning"
//	HG_LOG_SUBSYS                         Log.Subsystems, if mercury.log_subsys of the document is absent or Margo's default, "hg,na"
//	FI_TCP_IFACE                          Interface, if the document has none
//	ABT_MEM_MAX_NUM_STACKS                the key abt_mem_max_num_stacks, which has no effect
//	ABT_THREAD_STACKSIZE                  the key abt_thread_stacksize, which has no effect
//	MARGO_ENABLE_MONITORING               Monitor is a Statistics, and the engine writes files when it ends
//	MARGO_MONITORING_FILENAME_PREFIX      the beginning of their names, "margo"; empty: no files
//	MARGO_MONITORING_DISABLE_STATISTICS   no Statistics, and no file of them
//	MARGO_MONITORING_DISABLE_TIME_SERIES  no file of time series
//
// The last four count with any value, as in C, and the keys of monitoring.config in the document precede them. An engine that [Listen]
// or [Open] opens with this configuration, and with the Monitor that it has, writes PREFIX.HOST.PID.stats.json, as [Statistics.Dump]
// does, and PREFIX.HOST.PID.series.json, with the requests, the bulk bytes and the lengths of pools in each second. Shutdown and Close
// write them before they return. Several engines of one process write the same files, so the last one to end leaves its own, as in C.
//
// If MARGO_LOG_LEVEL or HG_LOG_LEVEL is set, Logger writes lines in Margo's format to standard error. An error names the variable that
// has no level as its value.
func ConfigFromEnv(margoJSON []byte) (*Config, error) {
	c, err := configFromEnv(margoJSON, os.Getenv)
	if err == nil {
		c.enableMonitoring(os.LookupEnv)
	}
	return c, err
}

func configFromEnv(margoJSON []byte, getenv func(string) string) (*Config, error) {
	if len(margoJSON) == 0 {
		margoJSON = []byte("{}")
	}
	c, err := parseConfig(margoJSON, getenv)
	if err != nil {
		return nil, err
	}
	if name := getenv(envLogLevel); name != "" {
		if _, err := ParseLogLevel(name); err != nil {
			return nil, argumentError("read environment", "%s: %w", envLogLevel, err)
		}
	}
	if name := getenv(envHGLevel); name != "" {
		if _, ok := conf.LogLevel(name); !ok {
			return nil, argumentError("read environment", "%s: want %s, got %q", envHGLevel, conf.LogLevelNames, name)
		}
	}
	c.Log.Margo = getenv(envLogLevel)
	c.Log.Mercury = orDefault(c.Log.Mercury, getenv(envHGLevel))
	c.Log.Subsystems = orDefault(c.Log.Subsystems, getenv(envHGSubsys))
	c.Interface = orDefault(c.Interface, getenv(envInterface))
	if getenv(envLogLevel) != "" || getenv(envHGLevel) != "" {
		if c.Logger, err = NewLogger(os.Stderr, c.Log); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Listen is [cinnabar.Listen] for an engine with this configuration. It logs the [Config.Notes], and serves [Query] if c allows it. A
// nil c is the zero Config.
func Listen(ctx context.Context, addr string, c *Config) (*cinnabar.Engine, error) {
	if c == nil {
		c = new(Config)
	}
	cfg := c.Config
	if c.AllowQuery {
		cfg.Setup = func(e *cinnabar.Engine) error {
			if err := ServeQuery(e, c); err != nil || c.Setup == nil {
				return err
			}
			return c.Setup(e)
		}
	}
	c.monitoring.install(&cfg)
	e, err := cinnabar.Listen(ctx, addr, &cfg)
	if err != nil {
		return nil, err
	}
	c.logNotes(e)
	return e, nil
}

// Open is [cinnabar.Open] for an engine with this configuration. It logs the [Config.Notes]. A nil c is the zero Config.
func Open(ctx context.Context, protocol string, c *Config) (*cinnabar.Engine, error) {
	if c == nil {
		c = new(Config)
	}
	cfg := c.Config
	c.monitoring.install(&cfg)
	e, err := cinnabar.Open(ctx, protocol, &cfg)
	if err != nil {
		return nil, err
	}
	c.logNotes(e)
	return e, nil
}

func (cfg *Config) logNotes(e *cinnabar.Engine) {
	for _, note := range cfg.Notes() {
		e.Config().Logger.Warn("configuration: " + note)
	}
}

// Notes lists the settings of the document that was parsed that have no effect in Go, or another one than in C.
func (cfg *Config) Notes() []string {
	if cfg.document == nil {
		return nil
	}
	notes := slices.Clone(cfg.document.Notes())
	if cfg.document.Monitoring != nil && cfg.Monitor == nil && cfg.monitoring == nil {
		notes = append(notes, "monitoring has no effect: it is disabled, or of a monitor that Config.Monitor should be")
	}
	return notes
}

// ConfigFormat is the form in which a configuration is written (margo_get_config_opt). There is no counterpart to Margo's
// MARGO_CONFIG_HIDE_EXTERNAL, because no pool is another library's.
type ConfigFormat struct {
	Pretty   bool // with line breaks and indents
	UseNames bool // refer to pools by name, not by index
}

// FormatConfig returns the configuration in Margo's layout with a value for each key (margo_get_config). [ParseConfig] of it returns the
// same again, and margo_init_ext takes it. Fields for which Margo has no keys are in the object "cinnabar"; those that are functions
// or other objects are left out. A nil c is the zero Config.
//
// It is an error if c has a setting that Margo would not read: a pool with a name that is not an identifier of C, or thousands of workers,
// each of which is a thread there.
func FormatConfig(c *Config, f ConfigFormat) ([]byte, error) {
	m, err := c.format()
	if err != nil {
		return nil, err
	}
	b, err := m.Append(nil, conf.Options(f))
	if err == nil {
		_, err = conf.Parse(b, noEnvironment)
	}
	if err != nil {
		return nil, formatError(err)
	}
	return b, nil
}

func formatError(err error) error {
	return argumentError("write configuration", "Margo's layout cannot hold it: %w", err)
}

// argumentError returns the error of an operation with wrong arguments.
func argumentError(op, format string, args ...any) error {
	return &cinnabar.Error{Op: op, Code: codes.InvalidArg, Err: fmt.Errorf(format, args...)}
}

// InForce returns the configuration of an engine that was opened with c: with defaults in the place of zeros, its pools, its address
// and the sizes of its messages (margo_get_config). A nil cfg is the zero Config.
func (cfg *Config) InForce(e *cinnabar.Engine) *Config {
	f := &Config{Config: *e.Config()}
	m := conf.Default()
	if cfg != nil {
		f.Log, f.AllowQuery, f.Setup = cfg.Log, cfg.AllowQuery, cfg.Setup // not that of Listen, which registers a second time
		if cfg.document != nil {
			m = cfg.document.Clone()
		}
	}
	class := ClassOf(e)
	in, out := int64(class.InputEager), int64(class.OutputEager)
	m.Mercury.Address, m.Mercury.Listening, m.Mercury.InputEager, m.Mercury.OutputEager = e.Addr(), &class.Listening, &in, &out
	f.document = m
	return f
}

// Monitoring returns the value of monitoring.config in the document that was parsed, nil if it has none. In C it initializes the
// monitor that the program passes in; here it is for a Monitor of the program's own.
func (cfg *Config) Monitoring() json.RawMessage {
	if cfg.document == nil || cfg.document.Monitoring == nil {
		return nil
	}
	return bytes.Clone(cfg.document.Monitoring.Config)
}

// monitorOf returns the monitor for which a document asks. Margo's default monitor goes by the same key, statistics.disable.
func monitorOf(m *conf.Config) stats.Monitor {
	if m.Monitoring == nil {
		return nil
	}
	var config struct {
		Statistics struct {
			Disable bool `json:"disable"`
		} `json:"statistics"`
	}
	_ = json.Unmarshal(m.Monitoring.Config, &config) // a configuration of another form, which is another monitor's, disables nothing
	if name := m.Monitoring.Name; config.Statistics.Disable || name != "" && name != defaultMonitor {
		return nil
	}
	return new(Statistics)
}

// defaultMonitor is the name of Margo's own monitor.
const defaultMonitor = "default"

// configFrom translates m, which is kept.
func configFrom(m *conf.Config) *Config {
	o := &m.Own
	cfg := &Config{document: m, AllowQuery: o.AllowQuery}
	cfg.Config = cinnabar.Config{
		Monitor:     monitorOf(m),
		MaxHandlers: int(o.MaxHandlers), MaxQueued: int(o.MaxQueued), HandlerWarning: time.Duration(o.HandlerWarning), MaxHandlerTime: time.Duration(o.MaxHandlerTime),
		Progress:            cinnabar.Progress{Mode: progressModeOf(m)},
		AllowRemoteShutdown: o.AllowRemoteShutdown,
		MaxMemory:           o.MaxMemory, MaxConnections: int(o.MaxConnections), TransferStall: time.Duration(o.TransferStall),
		Checksums: checksumsOf(m), MaxOverflow: o.MaxOverflow, OverflowBudget: o.OverflowBudget,
		NoEager: m.Mercury.NoBulkEager, NoOverflow: o.NoOverflow, NoLoopback: m.Mercury.NoLoopback, AutoSM: m.Mercury.AutoSM, Interface: o.Interface, Advertise: o.Advertise, Firewalled: o.Firewalled,
		MaxRequest: int(m.Mercury.MaxUnexpected), MaxResponse: int(m.Mercury.MaxExpected),
		DialTimeout: time.Duration(o.DialTimeout), DialRetry: time.Duration(o.DialRetry),
		KeepAlive: time.Duration(o.KeepAlive), SendTimeout: time.Duration(o.SendTimeout), LateAccess: time.Duration(o.LateAccess),
	}
	cfg.Subnet, _ = m.Mercury.Network() // it has been parsed
	if m.Mercury.LogLevel != defaultMercuryLevel {
		cfg.Log.Mercury = m.Mercury.LogLevel
	}
	if m.Mercury.LogSubsys != defaultMercurySubsys {
		cfg.Log.Subsystems = m.Mercury.LogSubsys
	}
	for i, p := range m.Pools {
		if p.Name != conf.Primary {
			cfg.Pools = append(cfg.Pools, poolConfigOf(m, i))
		}
	}
	if name := m.Pools[m.RPCPool].Name; name != conf.Primary {
		cfg.RPCPool = name
	}
	return cfg
}

// poolConfigOf translates a pool. A pool that nothing serves in C has a worker here.
func poolConfigOf(m *conf.Config, i int) cinnabar.PoolConfig {
	p := m.Pools[i]
	return cinnabar.PoolConfig{Name: p.Name, Kind: poolKindOf(p.Kind), Workers: max(m.Servers(i), 1), Queue: int(m.Own.Queues[p.Name])}
}

func poolKindOf(kind string) cinnabar.PoolKind {
	switch kind {
	case "prio_wait":
		return cinnabar.PoolPriority
	case "earliest_first":
		return cinnabar.PoolEarliestFirst
	}
	return cinnabar.PoolFIFO
}

// Values of cinnabar.Progress.Mode. latencyMode is a value of cinnabar.progress_mode, too.
const (
	balancedMode = "balanced"
	latencyMode  = "latency"
	economyMode  = "economy"
)

// progressModeOf returns the mode for a document. Margo's time of polling has only two meanings, none and some, because the engine
// measures how long polling pays.
func progressModeOf(m *conf.Config) string {
	switch {
	case m.Own.ProgressMode == latencyMode:
		return latencyMode
	case m.Spindown == 0:
		return economyMode
	}
	return "" // the default, which is balancedMode
}

func checksumsOf(m *conf.Config) cinnabar.Checksums {
	switch {
	case m.Mercury.ChecksumLevel != "none":
		return cinnabar.WithChecksums
	case m.Own.Checksums == neverChecksums:
		return cinnabar.NoChecksums
	}
	return cinnabar.ChecksumsAuto
}

// format translates cfg back into the document that it was parsed from, with the values that have changed since.
func (cfg *Config) format() (*conf.Config, error) {
	if cfg == nil {
		cfg = new(Config)
	}
	c := &Config{Config: *cfg.WithDefaults(), Log: cfg.Log, AllowQuery: cfg.AllowQuery}
	m := conf.Default()
	if cfg.document != nil {
		m = cfg.document.Clone()
	}
	if err := c.putPools(m); err != nil {
		return nil, formatError(err)
	}
	c.putMercury(m)
	c.putOwn(m)
	return m, nil
}

func (cfg *Config) putMercury(m *conf.Config) {
	h := &m.Mercury
	h.NoBulkEager, h.NoLoopback, h.AutoSM = cfg.NoEager, cfg.NoLoopback, cfg.AutoSM
	h.MaxUnexpected, h.MaxExpected = int64(cfg.MaxRequest), int64(cfg.MaxResponse)
	h.SetNetwork(cfg.Subnet)
	h.LogLevel, h.LogSubsys = defaultMercuryLevel, defaultMercurySubsys
	if l := cfg.Log.Mercury; l != "" {
		h.LogLevel = l
	}
	if s := cfg.Log.Subsystems; s != "" {
		h.LogSubsys = s
	}
	if with := cfg.Checksums == cinnabar.WithChecksums; with != (h.ChecksumLevel != "none") {
		h.ChecksumLevel = map[bool]string{false: "none", true: "rpc_payload"}[with]
	}
}

// unless returns value, or 0 if value is the default that a 0 stands for.
func unless[T comparable](value, standard T) (v T) {
	if value != standard {
		v = value
	}
	return v
}

func (cfg *Config) putOwn(m *conf.Config) {
	machine := cfg.limitsByDefault()
	m.Own = conf.Own{
		MaxHandlers: int64(cfg.MaxHandlers), MaxQueued: int64(max(cfg.MaxQueued, -1)), Queues: map[string]int64{},
		HandlerWarning:      conf.Duration(cfg.HandlerWarning),
		MaxHandlerTime:      conf.Duration(cfg.MaxHandlerTime),
		AllowRemoteShutdown: cfg.AllowRemoteShutdown, AllowQuery: cfg.AllowQuery,
		MaxMemory: unless(cfg.MaxMemory, machine.MaxMemory), MaxConnections: int64(unless(cfg.MaxConnections, machine.MaxConnections)),
		MaxOverflow: unless(cfg.MaxOverflow, machine.MaxOverflow), OverflowBudget: unless(cfg.OverflowBudget, machine.OverflowBudget),
		TransferStall: conf.Duration(unless(cfg.TransferStall, machine.TransferStall)),
		NoOverflow:    cfg.NoOverflow, Interface: cfg.Interface, Advertise: cfg.Advertise, Firewalled: cfg.Firewalled,
		DialTimeout: conf.Duration(cfg.DialTimeout), DialRetry: conf.Duration(cfg.DialRetry),
		KeepAlive: conf.Duration(cfg.KeepAlive), SendTimeout: conf.Duration(cfg.SendTimeout), LateAccess: conf.Duration(cfg.LateAccess),
	}
	if cfg.Checksums == cinnabar.NoChecksums {
		m.Own.Checksums = neverChecksums
	}
	for _, p := range cfg.Pools {
		m.Own.Queues[p.Name] = int64(max(p.Queue, -1))
	}
	if cfg.Progress.Mode == latencyMode {
		m.Own.ProgressMode = latencyMode
		m.Spindown = cmp.Or(m.Spindown, conf.DefaultSpindown) // because 0, which polls for no time, contradicts the mode
	}
	if cmp.Or(progressModeOf(m), balancedMode) != cmp.Or(cfg.Progress.Mode, balancedMode) {
		m.Spindown = map[bool]int64{true: 0, false: conf.DefaultSpindown}[cfg.Progress.Mode == economyMode]
	}
}

// limitsByDefault returns the limits for which zeros would stand beside the other limits of cfg.
func (cfg *Config) limitsByDefault() *cinnabar.Config {
	limits := cinnabar.Config{
		MaxHandlers: cfg.MaxHandlers, MaxQueued: cfg.MaxQueued, Pools: cfg.Pools, Parent: cfg.Parent,
		MaxRequest: cfg.MaxRequest, MaxResponse: cfg.MaxResponse,
	}
	machine := new(cinnabar.Config).WithDefaults().MaxMemory
	if cfg.MaxMemory != machine {
		limits.MaxMemory = cfg.MaxMemory
	}
	c := limits.WithDefaults()
	if c.MaxMemory != machine {
		c.MaxMemory = 0 // so that it is written
	}
	return c
}

// putPools describes the pools. Execution streams are kept if they serve them as cfg says.
func (cfg *Config) putPools(m *conf.Config) error {
	pools := cfg.poolsInForce()
	if !describes(m, pools) {
		list, streams := make([]conf.Pool, len(pools)), make([]int, len(pools))
		for i, p := range pools {
			list[i], streams[i] = conf.Pool{Kind: string(cmp.Or(p.Kind, cinnabar.PoolFIFO)), Name: p.Name, Access: "mpmc"}, p.Workers
		}
		if err := m.SetPools(list, streams); err != nil {
			return err
		}
	}
	m.RPCPool = max(m.Pool(conf.Primary), 0)
	if i := m.Pool(cfg.RPCPool); i >= 0 {
		m.RPCPool = i
	}
	return nil
}

// poolsInForce returns the pools that are used: cfg's own, or the parent's.
func (cfg *Config) poolsInForce() []cinnabar.PoolConfig {
	if cfg.Parent == nil {
		return cfg.Pools
	}
	return ownConfig(cfg.Parent).Pools
}

// describes reports whether m has these pools, besides the primary one, in this order.
func describes(m *conf.Config, pools []cinnabar.PoolConfig) bool {
	if len(m.Pools) != len(pools)+1 {
		return false
	}
	for i, p := range m.Pools {
		if p.Name == conf.Primary {
			continue
		}
		is := poolConfigOf(m, i)
		if len(pools) == 0 || is.Name != pools[0].Name || is.Kind != cmp.Or(pools[0].Kind, cinnabar.PoolFIFO) || is.Workers != pools[0].Workers {
			return false
		}
		pools = pools[1:]
	}
	return true
}

// neverChecksums is the value of cinnabar.checksums for cinnabar.NoChecksums.
const neverChecksums = "never"
