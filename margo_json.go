package cinnabar

import (
	"bytes"
	"encoding/json"
	"os"
	"time"

	"cinnabar/internal/margoconf"
)

// ParseConfig reads a configuration of Margo's, the JSON that margo_init_ext takes and margo_get_config gives. Each key
// of Margo 0.24 is accepted, if its value can be meant; docs/from-margo.md has the meaning of each key. The address is not taken
// from the document, as in C: it is the argument of [Listen] or [Open].
//
// The error names the key that is refused. What is accepted and has no effect in Go is told to Config.Logger when an
// engine is opened.
func ParseConfig(margoJSON []byte) (*Config, error) {
	m, err := margoconf.Parse(margoJSON, os.Getenv)
	if err != nil {
		return nil, argumentError("parse configuration", "", "", "%w", err)
	}
	return configFrom(m), nil
}

// UnmarshalJSON is [ParseConfig]. All of cfg is replaced.
func (cfg *Config) UnmarshalJSON(margoJSON []byte) error {
	c, err := ParseConfig(margoJSON)
	if err != nil {
		return err
	}
	*cfg = *c
	return nil
}

// ConfigFormat says how a configuration is written (margo_get_config_opt). There is nothing to hide as Margo's
// MARGO_CONFIG_HIDE_EXTERNAL does: no pool is another library's.
type ConfigFormat struct {
	Pretty   bool // with line breaks and indents
	UseNames bool // refer to pools by name, not by index
}

// MarshalJSON returns the configuration in Margo's layout with nothing left open (margo_get_config). [ParseConfig] of it
// gives the same again, and margo_init_ext takes it. Fields that Margo has no keys for are in the object "cinnabar";
// those that are functions or other objects are left out. A nil Config is the zero one.
func (cfg *Config) MarshalJSON() ([]byte, error) { return cfg.MargoJSON(ConfigFormat{}) }

// MargoJSON is MarshalJSON in another format. What Margo's layout cannot say, and Margo would not read, is an error: a pool
// whose name is not an identifier of C, or thousands of workers, each of which is a thread there.
func (cfg *Config) MargoJSON(f ConfigFormat) ([]byte, error) {
	m, err := cfg.document()
	if err != nil {
		return nil, err
	}
	b, err := m.Append(nil, margoconf.Options(f))
	if err == nil {
		_, err = margoconf.Parse(b, os.Getenv)
	}
	if err != nil {
		return nil, unsayable(err)
	}
	return b, nil
}

func unsayable(err error) error {
	return argumentError("write configuration", "", "", "Margo's JSON cannot express it: %w", err)
}

// Monitoring returns the value of monitoring.config in the parsed document, nil if the document has none. In C, Margo passes it to the
// initialization of the program's monitor. Here the program passes it to its Monitor.
func (cfg *Config) Monitoring() json.RawMessage {
	if cfg.margo == nil || cfg.margo.Monitoring == nil {
		return nil
	}
	return bytes.Clone(cfg.margo.Monitoring.Config)
}

// configFrom translates m, which is kept.
func configFrom(m *margoconf.Config) *Config {
	o := &m.Own
	cfg := &Config{
		margo:       m,
		MaxHandlers: int(o.MaxHandlers), MaxQueued: int(o.MaxQueued), HandlerWarning: time.Duration(o.HandlerWarning),
		Progress:            Progress{Spin: spinOf(m)},
		AllowRemoteShutdown: o.AllowRemoteShutdown, AllowQuery: o.AllowQuery,
		MaxMemory: o.MaxMemory, MaxConnections: int(o.MaxConnections), TransferStall: time.Duration(o.TransferStall),
		Checksums: checksumsOf(m), MaxOverflow: o.MaxOverflow, OverflowBudget: o.OverflowBudget,
		NoEager: m.Mercury.NoBulkEager, NoOverflow: o.NoOverflow, NoLoopback: m.Mercury.NoLoopback, Advertise: o.Advertise, Firewalled: o.Firewalled,
		MaxRequest: int(m.Mercury.MaxUnexpected), MaxResponse: int(m.Mercury.MaxExpected),
		DialTimeout: time.Duration(o.DialTimeout), DialRetry: time.Duration(o.DialRetry),
		KeepAlive: time.Duration(o.KeepAlive), SendTimeout: time.Duration(o.SendTimeout), LateAccess: time.Duration(o.LateAccess),
	}
	cfg.Subnet, _ = m.Mercury.Network() // it has been parsed
	if m.Mercury.LogLevel != defaultMercuryLevel {
		cfg.MercuryLog.Level = m.Mercury.LogLevel
	}
	if m.Mercury.LogSubsys != defaultMercurySubsys {
		cfg.MercuryLog.Subsystems = m.Mercury.LogSubsys
	}
	for i, p := range m.Pools {
		if p.Name != margoconf.Primary {
			cfg.Pools = append(cfg.Pools, poolConfigOf(m, i))
		}
	}
	if name := m.Pools[m.RPCPool].Name; name != margoconf.Primary {
		cfg.RPCPool = name
	}
	return cfg
}

// poolConfigOf translates a pool. A pool that nothing serves in C has a worker here.
func poolConfigOf(m *margoconf.Config, i int) PoolConfig {
	p := m.Pools[i]
	return PoolConfig{Name: p.Name, Kind: poolKindOf(p.Kind), Workers: max(m.Servers(i), 1), Queue: int(m.Own.Queues[p.Name])}
}

func poolKindOf(kind string) PoolKind {
	switch kind {
	case "prio_wait":
		return PoolPriority
	case "earliest_first":
		return PoolEarliestFirst
	}
	return PoolFIFO
}

// spinOf is for how long is polled. Margo's default stands for the default here, which is shorter: what is polled is one
// connection by the goroutine that waits for it, not everything by a thread that others need.
func spinOf(m *margoconf.Config) time.Duration {
	switch {
	case m.Own.Spin != 0:
		return time.Duration(m.Own.Spin)
	case m.Spindown == margoconf.DefaultSpindown:
		return 0
	case m.Spindown == 0:
		return -1
	}
	return time.Duration(m.Spindown) * time.Millisecond
}

func checksumsOf(m *margoconf.Config) Checksums {
	switch {
	case m.Mercury.ChecksumLevel != "none":
		return WithChecksums
	case m.Own.Checksums == neverChecksums:
		return NoChecksums
	}
	return ChecksumsAuto
}

// document translates cfg back: what it was parsed from, as far as that says the same still.
func (cfg *Config) document() (*margoconf.Config, error) {
	c := cfg.filled()
	if err := c.check(); err != nil {
		return nil, err
	}
	m := margoconf.Default()
	if c.margo != nil {
		m = c.margo.Clone()
	}
	if err := c.putPools(m); err != nil {
		return nil, unsayable(err)
	}
	c.putMercury(m)
	c.putOwn(m)
	return m, nil
}

func (cfg *Config) putMercury(m *margoconf.Config) {
	h := &m.Mercury
	h.NoBulkEager, h.NoLoopback = cfg.NoEager, cfg.NoLoopback
	h.MaxUnexpected, h.MaxExpected = int64(cfg.MaxRequest), int64(cfg.MaxResponse)
	h.SetNetwork(cfg.Subnet)
	h.LogLevel, h.LogSubsys = defaultMercuryLevel, defaultMercurySubsys
	if l := cfg.MercuryLog.Level; l != "" {
		h.LogLevel = l
	}
	if s := cfg.MercuryLog.Subsystems; s != "" {
		h.LogSubsys = s
	}
	if with := cfg.Checksums == WithChecksums; with != (h.ChecksumLevel != "none") {
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

func (cfg *Config) putOwn(m *margoconf.Config) {
	machine := cfg.limitsByDefault()
	m.Own = margoconf.Own{
		MaxHandlers: int64(cfg.MaxHandlers), MaxQueued: int64(max(cfg.MaxQueued, -1)), Queues: map[string]int64{},
		HandlerWarning:      margoconf.Duration(cfg.HandlerWarning),
		AllowRemoteShutdown: cfg.AllowRemoteShutdown, AllowQuery: cfg.AllowQuery,
		MaxMemory: unless(cfg.MaxMemory, machine.MaxMemory), MaxConnections: int64(unless(cfg.MaxConnections, machine.MaxConnections)),
		MaxOverflow: unless(cfg.MaxOverflow, machine.MaxOverflow), OverflowBudget: unless(cfg.OverflowBudget, machine.OverflowBudget),
		TransferStall: margoconf.Duration(unless(cfg.TransferStall, machine.TransferStall)),
		NoOverflow:    cfg.NoOverflow, Advertise: cfg.Advertise, Firewalled: cfg.Firewalled,
		DialTimeout: margoconf.Duration(cfg.DialTimeout), DialRetry: margoconf.Duration(cfg.DialRetry),
		KeepAlive: margoconf.Duration(cfg.KeepAlive), SendTimeout: margoconf.Duration(cfg.SendTimeout), LateAccess: margoconf.Duration(cfg.LateAccess),
	}
	if cfg.Checksums == NoChecksums {
		m.Own.Checksums = neverChecksums
	}
	for _, p := range cfg.Pools {
		m.Own.Queues[p.Name] = int64(max(p.Queue, -1))
	}
	m.Own.Spin = 0
	if spin := cfg.Progress.Spin; spinOf(m) != spin && (spinOf(m) != 0 || spin != defaultSpin) {
		cfg.putSpin(m)
	}
}

// putSpin says for how long is polled, in Margo's key if that can say it.
func (cfg *Config) putSpin(m *margoconf.Config) {
	spin := cfg.Progress.Spin
	m.Spindown = margoconf.SpindownOf(spin)
	switch {
	case spin == defaultSpin:
		m.Spindown = margoconf.DefaultSpindown
	case spin > 0 && spinOf(m) != spin:
		m.Own.Spin = margoconf.Duration(spin)
	}
}

// putPools describes the pools. Execution streams are kept if they serve them as cfg says.
func (cfg *Config) putPools(m *margoconf.Config) error {
	pools := cfg.poolsInForce()
	if !describes(m, pools) {
		list, streams := make([]margoconf.Pool, len(pools)), make([]int, len(pools))
		for i, p := range pools {
			list[i], streams[i] = margoconf.Pool{Kind: p.Kind.String(), Name: p.Name, Access: "mpmc"}, p.Workers
		}
		if err := m.SetPools(list, streams); err != nil {
			return err
		}
	}
	m.RPCPool = max(m.Pool(margoconf.Primary), 0)
	if i := m.Pool(cfg.RPCPool); i >= 0 {
		m.RPCPool = i
	}
	return nil
}

// poolsInForce returns the pools that are used: cfg's own, or the parent's.
func (cfg *Config) poolsInForce() []PoolConfig {
	if cfg.Parent == nil {
		return cfg.Pools
	}
	var list []PoolConfig
	for _, p := range cfg.Parent.Pools() {
		list = append(list, p.Config())
	}
	return list
}

// describes tells whether m has these pools, besides the primary one, in this order.
func describes(m *margoconf.Config, pools []PoolConfig) bool {
	if len(m.Pools) != len(pools)+1 {
		return false
	}
	for i, p := range m.Pools {
		if p.Name == margoconf.Primary {
			continue
		}
		is := poolConfigOf(m, i)
		if len(pools) == 0 || is.Name != pools[0].Name || is.Kind != pools[0].Kind || is.Workers != pools[0].Workers {
			return false
		}
		pools = pools[1:]
	}
	return true
}

// Names and defaults of the JSON.
const (
	defaultMercuryLevel  = "warning"
	defaultMercurySubsys = "hg,na"
	neverChecksums       = "never"
)

// describe adds what only an engine knows to a copy of its configuration.
func (e *Engine) describe(cfg *Config) {
	if cfg.Parent == nil {
		cfg.Pools = nil
		for _, p := range e.Pools() {
			cfg.Pools = append(cfg.Pools, p.Config())
		}
	}
	m := margoconf.Default()
	if cfg.margo != nil {
		m = cfg.margo.Clone()
	}
	class := e.Class()
	in, out := int64(class.InputEager), int64(class.OutputEager)
	m.Mercury.Address, m.Mercury.Listening, m.Mercury.InputEager, m.Mercury.OutputEager = e.Addr(), &class.Listening, &in, &out
	cfg.margo = m
}

// noteConfig tells what of the configuration has no effect.
func (e *Engine) noteConfig() {
	if e.cfg.margo == nil {
		return
	}
	for _, note := range e.cfg.margo.Notes() {
		e.log.Warn("configuration: " + note)
	}
	if e.cfg.margo.Monitoring != nil && e.cfg.Monitor == nil {
		e.log.Warn("configuration: monitoring has no effect: Config.Monitor is nil")
	}
}
