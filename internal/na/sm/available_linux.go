package sm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Available returns why no endpoint can listen on this host, nil if nothing is known to stand in its way.
func Available() error {
	for _, dir := range []string{defaultShm, defaultSocket} {
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("no files can be made in %s: %w", dir, err)
		}
	}
	return nil
}

// Attach returns why the kernel moves no memory between processes for this one, such as a filter of system calls, nil
// if nothing is known to stand in its way. Whether it does for a certain process is found out by a transfer.
func Attach() error {
	if err := probe(int32(os.Getpid())); err != nil {
		return newAttachError(int32(os.Getpid()), err)
	}
	return nil
}
