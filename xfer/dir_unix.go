//go:build linux || darwin

package xfer

import (
	"errors"
	"os"
)

// within calls do with a descriptor of the directory.
func within(root *os.Root, do func(dir int) error) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	c, err := dir.SyscallConn()
	if err == nil {
		var derr error
		err = c.Control(func(fd uintptr) { derr = do(int(fd)) })
		err = errors.Join(err, derr)
	}
	return errors.Join(err, dir.Close())
}
