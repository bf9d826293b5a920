//go:build !linux

package sockio

import (
	"errors"
	"syscall"
)

// HasTypeOfService reports whether [SetTypeOfService] works on this system.
const HasTypeOfService = false

// SetTypeOfService returns [errors.ErrUnsupported].
func SetTypeOfService(syscall.RawConn, bool, uint8) error { return errors.ErrUnsupported }

// SetReuseAddr returns [errors.ErrUnsupported].
func SetReuseAddr(syscall.RawConn) error { return errors.ErrUnsupported }
