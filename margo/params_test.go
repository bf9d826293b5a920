package margo

import (
	"errors"
	"testing"
	"time"

	"cinnabar/codes"
)

// TestSetParam sets parameters of an engine, and refuses values and names that do not exist.
// parity: G72 G74
func TestSetParam(t *testing.T) {
	e := calling(t, nil)
	must(t, SetParam(e, "progress_timeout_ub_msecs", "100"))
	must(t, SetParam(e, "handler_warning_msecs", "1000"))
	if got := e.Config().HandlerWarning; got != time.Second {
		t.Errorf("the configuration in force warns after %v, want a second", got)
	}
	wantInvalid(t, SetParam(e, "no_such", "1"), "no_such", "handler_warning_msecs", "progress_timeout_ub_msecs")
	for _, bad := range []string{"", "x", "-1", "99999999999999"} {
		wantInvalid(t, SetParam(e, "progress_timeout_ub_msecs", bad), bad, "milliseconds")
	}
	must(t, e.Close())
	if got := e.Config().HandlerWarning; got != time.Second {
		t.Errorf("the configuration of the closed engine warns after %v, want a second", got)
	}
	for name := range params {
		if err := SetParam(e, name, "1"); !errors.Is(err, codes.Permission) {
			t.Errorf("%s of a closed engine: %v", name, err)
		}
	}
}
