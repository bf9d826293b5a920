//go:build !linux

package sm

import (
	"errors"
	"fmt"
	"runtime"
)

// Available returns why no endpoint can listen on this host.
func Available() error {
	return fmt.Errorf("%w on %s; use ofi+tcp", errors.ErrUnsupported, runtime.GOOS)
}

// Attach returns why no memory is moved between processes.
func Attach() error { return Available() }
