//go:build !linux

package doctor

import (
	"errors"
	"time"
)

// The probes that call these functions run on Linux only.

func limitOf(resource) (limits, bool) { return limits{}, false }

func clockResolution() (time.Duration, bool) { return 0, false }

// space is that of a file system.
type space struct {
	tmpfs       bool
	total, free uint64
}

func spaceOf(string) (space, error) { return space{}, errors.ErrUnsupported }

func reserve(string, int64) error { return errors.ErrUnsupported }

func accessible(string) error { return errors.ErrUnsupported }

func readRemote(int, []byte, uint64) error { return errors.ErrUnsupported }

func writeRemote(int, []byte, uint64) error { return errors.ErrUnsupported }

func permitAttach(bool) {}

func executable() (string, error) { return "", errors.ErrUnsupported }
