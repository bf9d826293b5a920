package cinnabar

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// params are the settings that SetParam knows.
var params = map[string]func(e *Engine, msecs int64){
	"progress_timeout_ub_msecs": func(*Engine, int64) {},
	"handler_warning_msecs": func(e *Engine, msecs int64) {
		e.handlers.pools.warn(time.Duration(msecs) * time.Millisecond)
	},
}

// maxMsecs is the longest time that is taken for a parameter: a year.
const maxMsecs = 365 * 24 * 3600 * 1000

// SetParam changes a setting of the running engine (margo_set_param):
//
//	progress_timeout_ub_msecs  how long Margo's progress loop sleeps at most, in milliseconds. It is checked and has no
//	                           effect: who waits here is woken by the network and has nothing to look after in between.
//	handler_warning_msecs      Config.HandlerWarning in milliseconds, of the engines that share the pools; 0: never.
//
// The error, of codes.InvalidArg, says what is wrong with value, or which names there are. Other settings are fixed when
// the engine is made.
func (e *Engine) SetParam(name, value string) error {
	set := params[name]
	if set == nil {
		known := slices.Sorted(maps.Keys(params))
		return argumentError("set parameter", "", "", "%q cannot be changed while an engine runs; %s can", name, strings.Join(known, " and "))
	}
	msecs, err := strconv.ParseInt(value, 10, 64)
	if err == nil && (msecs < 0 || msecs > maxMsecs) {
		err = fmt.Errorf("it goes from 0 to %d", int64(maxMsecs))
	}
	if err != nil {
		return argumentError("set parameter", "", "", "%s is %q, and should be a number of milliseconds: %w", name, value, err)
	}
	if err := e.begin(); err != nil {
		return errorFrom("set parameter", "", "", err)
	}
	defer e.end()
	set(e, msecs)
	return nil
}
