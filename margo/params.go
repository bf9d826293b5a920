package margo

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cinnabar"
)

// params are the settings that SetParam accepts.
var params = map[string]func(e *cinnabar.Engine, value time.Duration) error{
	"progress_timeout_ub_msecs": func(e *cinnabar.Engine, _ time.Duration) error {
		_, err := e.Lookup(e.Addr()) // fails if the engine is closed
		return err
	},
	"handler_warning_msecs": (*cinnabar.Engine).SetHandlerWarning,
}

// maxMsecs is the longest time that SetParam accepts, in milliseconds: a year.
const maxMsecs = 365 * 24 * 3600 * 1000

// SetParam changes a setting of the running engine (margo_set_param):
//
//	progress_timeout_ub_msecs  the longest sleep of Margo's progress loop, in milliseconds. It is checked and has no
//	                           effect, because the network wakes each waiter of an engine.
//	handler_warning_msecs      Config.HandlerWarning in milliseconds, of the engines that share the pools; 0: never.
//
// An error of codes.InvalidArg names the limits of the value, or the settings that exist. Other settings are fixed when the engine is
// opened.
func SetParam(e *cinnabar.Engine, name, value string) error {
	const op = "set parameter"
	set := params[name]
	if set == nil {
		known := slices.Sorted(maps.Keys(params))
		return argumentError(op, "%q cannot be changed while an engine runs; %s can", name, strings.Join(known, " and "))
	}
	msecs, err := strconv.ParseInt(value, 10, 64)
	if err == nil && (msecs < 0 || msecs > maxMsecs) {
		err = fmt.Errorf("it goes from 0 to %d", int64(maxMsecs))
	}
	if err != nil {
		return argumentError(op, "%s is %q, and should be a number of milliseconds: %w", name, value, err)
	}
	return set(e, time.Duration(msecs)*time.Millisecond)
}
