package sm

import (
	"fmt"

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
