//go:build !unix

package systemd

import "errors"

// checkDescriptor fails: this system passes no descriptors to processes.
func checkDescriptor(int) error { return errors.ErrUnsupported }
