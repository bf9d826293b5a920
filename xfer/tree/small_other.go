//go:build !linux

package tree

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// hasSmall is false because the functions below, which open files relative to the descriptor of their directory, exist for Linux only.
const hasSmall = false

func openSmall(int, string, int, fs.FileMode) (int, error) { return 0, errors.ErrUnsupported }
func writeSmall(int, []byte) error                         { return errors.ErrUnsupported }
func readSmall(int, []byte) (int, error)                   { return 0, errors.ErrUnsupported }
func modeOf(int) (fs.FileMode, error)                      { return 0, errors.ErrUnsupported }
func setModeOf(int, fs.FileMode) error                     { return errors.ErrUnsupported }
func setTimeIn(int, string, time.Time) error               { return errors.ErrUnsupported }
func openStamp(int) (stamp, bool, error)                   { return stamp{}, false, errors.ErrUnsupported }
func closeSmall(int) error                                 { return errors.ErrUnsupported }

const (
	flagsNew  = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	flagsRead = os.O_RDONLY
)
