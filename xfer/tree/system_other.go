//go:build !linux

package tree

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"syscall"
)

// mayHaveHoles is not known on this system. All files are sent whole.
func mayHaveHoles(fs.FileInfo) bool { return false }

func dataOf(*os.File, int64) []Extent { return nil }

// syncAll syncs the open directory f, where that can be asked for.
func syncAll(f *os.File) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// syncsAll says that syncAll reaches directories only.
const syncsAll = false
