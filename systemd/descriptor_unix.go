//go:build unix

package systemd

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkDescriptor returns an error if a descriptor is not a listening socket, or was not open when this process began. It changes nothing.
func checkDescriptor(fd int) error {
	// Descriptors that this process opens have FD_CLOEXEC, and one with it cannot have come through the start of this process (execve(2)).
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errNotPassed, err)
	case flags&unix.FD_CLOEXEC != 0:
		return errNotPassed
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errNoStream, err)
	case listens == 0:
		return errNoStream
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errNoStream, err)
	case kind != unix.SOCK_STREAM: // SOCK_SEQPACKET listens too
		return errNoStream
	}
	return nil
}
