package cinnabar

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"cinnabar/internal/margoconf"
)

// MercuryLog says what is logged by the layers below Margo's: Mercury's core, "rpc" in "hg", and the network, "na".
type MercuryLog struct {
	// Level is none, fatal, error, warning, min_debug, info or debug. Empty stands for HG_LOG_LEVEL of the environment,
	// and if that is not set for warning, or what Config.Logger lets through if it is not one of NewLogger's.
	Level string
	// Subsystems are the names of those that are heard, separated by commas. A subsystem that is not named is heard if
	// the one that it belongs to is; one that is named behind a ~ is not: "hg,na,~rpc". Empty stands for HG_LOG_SUBSYS
	// of the environment, and if that is not set for "hg,na".
	Subsystems string
}

// SetMercuryLog changes what is logged by the layers below Margo's (HG_Set_log_level, HG_Set_log_subsys). The error
// says what is wrong with m.
func (e *Engine) SetMercuryLog(m MercuryLog) error {
	rule, err := m.rule(os.Getenv)
	if err != nil {
		return argumentError("set log", "", "", "%w", err)
	}
	e.cfg.logs.mercury.Store(rule)
	return nil
}

// environmentLevel is what Level is if nothing is said.
func (m MercuryLog) environmentLevel(getenv func(string) string) string {
	if m.Level != "" {
		return m.Level
	}
	return getenv(envHGLevel)
}

// subsystems returns the names of Subsystems, or what they are if nothing is said.
func (m MercuryLog) subsystems(getenv func(string) string) []string {
	list := m.Subsystems
	if list == "" {
		list = getenv(envHGSubsys)
	}
	if list == "" {
		list = "hg,na"
	}
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// mercuryRule is a [MercuryLog] that has been read.
type mercuryRule struct {
	given  bool // somebody has said a level
	level  slog.Level
	subsys []string
}

// rule reads m, with what the environment says where m says nothing.
func (m MercuryLog) rule(getenv func(string) string) (*mercuryRule, error) {
	r := &mercuryRule{level: defaultLevel, subsys: m.subsystems(getenv)}
	if name := m.environmentLevel(getenv); name != "" {
		level, ok := margoconf.LogLevel(name)
		if !ok {
			return nil, fmt.Errorf("log level of Mercury's layers: want %s, got %q", margoconf.LogLevelNames, name)
		}
		r.given, r.level = true, level
	}
	return r, nil
}

// allows tells whether a line of a subsystem is logged. own says that the logger has no other level.
func (r *mercuryRule) allows(subsys string, level slog.Level, own bool) bool {
	return r.hears(subsys) && (level >= r.level || !r.given && !own)
}

// parents are the subsystems that others belong to (HG_LOG_SUBSYS_REGISTER).
var parents = map[string]string{"rpc": "hg", "hg": "hg_all", "na": "hg_all"}

// hears tells whether a subsystem is named, or belongs to one that is (hg_log_outlet_update_level).
func (r *mercuryRule) hears(subsys string) bool {
	for ; subsys != ""; subsys = parents[subsys] {
		off, on := slices.Index(r.subsys, "~"+subsys), slices.Index(r.subsys, subsys)
		if off >= 0 || on >= 0 {
			return off < 0 || on >= 0 && on < off // what is said first counts
		}
	}
	return false
}
