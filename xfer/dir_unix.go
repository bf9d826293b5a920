//go:build linux || darwin

package xfer

import (
	"errors"
	"os"
	"syscall"
)

// within calls do with a descriptor of the directory, and again as long as a signal
// interrupts it, which some file systems let happen.
func within(root *os.Root, do func(dir int) error) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	c, err := dir.SyscallConn()
	if err == nil {
		var derr error
		err = c.Control(func(fd uintptr) {
			for derr = do(int(fd)); errors.Is(derr, syscall.EINTR); {
				derr = do(int(fd))
			}
		})
		err = errors.Join(err, derr)
	}
	_ = dir.Close() // nothing was written to it, and what was done in it is done
	return err
}
