//go:build !linux

package progress

import "errors"

// newSystemAlarm returns an error, because this package has such a timer for Linux only (timerfd).
func newSystemAlarm() (alarm, error) { return nil, errors.ErrUnsupported }
