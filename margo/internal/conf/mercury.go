package conf

import (
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"strings"
)

// mercury reads the object "mercury" (margo-hg-config.c).
func (p *parser) mercury(r *reader) {
	m := &p.Mercury
	r.string("version", new(string))
	r.string("address", &m.Address)
	optional(r, "listening", &m.Listening, r.boolean)
	size := func(key string, to *int64) { r.integer(key, to, 0, maxCount) }
	optional(r, "input_eager_size", &m.InputEager, size)
	optional(r, "output_eager_size", &m.OutputEager, size)
	size("request_post_init", &m.RequestPostInit)
	size("request_post_incr", &m.RequestPostIncr)
	r.boolean("auto_sm", &m.AutoSM)
	r.boolean("no_bulk_eager", &m.NoBulkEager)
	r.boolean("no_loopback", &m.NoLoopback)
	r.boolean("stats", &m.Stats)
	r.boolean("na_no_block", &m.NoBlock)
	r.boolean("na_no_retry", &m.NoRetry)
	r.integer("max_contexts", &m.MaxContexts, 0, 255) // a byte in C
	r.string("ip_subnet", &m.Subnet)
	r.string("auth_key", &m.AuthKey)
	r.string("log_level", &m.LogLevel)
	r.string("log_subsys", &m.LogSubsys)
	size("na_max_unexpected_size", &m.MaxUnexpected)
	size("na_max_expected_size", &m.MaxExpected)
	r.string("sm_info_string", &m.SMInfo)
	r.boolean("na_request_mem_device", &m.RequestMemDevice)
	r.enum("checksum_level", &m.ChecksumLevel, "none", "rpc_headers", "rpc_payload")
	r.enum("na_addr_format", &m.AddrFormat, "unspec", "ipv4", "ipv6", "native")
	p.checkMercury(r)
	r.end()
}

// optional reads a value that has no default.
func optional[T any](r *reader, key string, to **T, read func(string, *T)) {
	if _, ok := r.any(key); ok {
		*to = new(T)
		read(key, *to)
	}
}

// checkMercury refuses values of the right type that cannot be meant, or that Go has no counterpart for.
func (p *parser) checkMercury(r *reader) {
	m := &p.Mercury
	subnet, err := m.Network()
	if err != nil {
		r.failf("ip_subnet", "want an address with the length of a prefix such as \"192.168.0.0/16\": %v", err)
	}
	switch m.AddrFormat {
	case "native":
		r.failf("na_addr_format", "\"native\" is for networks without IP addresses, of which there is none; use unspec, ipv4 or ipv6")
	case "ipv4", "ipv6":
		if m.Subnet != "" && subnet.Addr().Is4() != (m.AddrFormat == "ipv4") {
			r.failf("na_addr_format", "is %s, but ip_subnet is %s; no address can be both", m.AddrFormat, m.Subnet)
		}
	}
	if _, ok := LogLevel(m.LogLevel); !ok {
		r.failf("log_level", "want %s, got %q", LogLevelNames, cut(m.LogLevel))
	}
}

// LogLevelNames lists the values of mercury.log_level and HG_LOG_LEVEL.
const LogLevelNames = "none, fatal, error, warning, min_debug, info or debug"

// LogLevel returns the level that a name of Mercury's stands for, by HG_LOG_LEVELS of mercury_log.h.
func LogLevel(name string) (level slog.Level, ok bool) {
	switch strings.ToLower(name) {
	case "none":
		return math.MaxInt, true
	case "fatal", "ftl":
		return slog.LevelError + 4, true
	case "error", "err":
		return slog.LevelError, true
	case "warning", "warn":
		return slog.LevelWarn, true
	case "min_debug", "trace":
		return slog.LevelInfo + 2, true // Mercury has it between warnings and infos
	case "info", "inf":
		return slog.LevelInfo, true
	case "debug", "dbg":
		return slog.LevelDebug, true
	}
	return 0, false
}

// Network returns the network that addresses are chosen from: ip_subnet, or all addresses of the family that
// na_addr_format names; the zero Prefix if neither says anything.
func (m *Mercury) Network() (netip.Prefix, error) {
	if m.Subnet != "" {
		p, err := netip.ParsePrefix(m.Subnet)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%q is none", cut(m.Subnet))
		}
		return p, nil
	}
	switch m.AddrFormat {
	case "ipv4":
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), nil
	case "ipv6":
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0), nil
	}
	return netip.Prefix{}, nil
}

// SetNetwork is the inverse of Network. A format that agrees with the network is left as it is.
func (m *Mercury) SetNetwork(p netip.Prefix) {
	if n, err := m.Network(); err == nil && n == p {
		return
	}
	m.Subnet, m.AddrFormat = "", "unspec"
	switch {
	case !p.IsValid():
	case p.Bits() > 0:
		m.Subnet = p.String()
	case p.Addr().Is4():
		m.AddrFormat = "ipv4"
	default:
		m.AddrFormat = "ipv6"
	}
}
