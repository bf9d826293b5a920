package xfer

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// OpenFile opens the file at path for sending, under the last element of its
// path. With preserve its mode and time go along. The caller closes the file
// after Send. What is no regular file is refused, and not waited for: a FIFO has
// no size and its open would not return before somebody writes.
func OpenFile(path string, preserve bool) (Source, *os.File, error) {
	// A FIFO is not even opened, since its writer would notice.
	info, err := os.Stat(path)
	if err != nil {
		return Source{}, nil, err
	}
	if err := wantRegular(path, info); err != nil {
		return Source{}, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openAtOnce, 0)
	if err != nil {
		return Source{}, nil, err
	}
	if info, err = f.Stat(); err == nil { // of what was opened
		err = wantRegular(path, info)
	}
	if err != nil {
		_ = f.Close() // it was only looked at
		return Source{}, nil, err
	}
	src := Source{Name: filepath.Base(path), Data: f, Size: info.Size()}
	if preserve {
		src.Meta = Meta{Mode: info.Mode().Perm(), ModTime: info.ModTime()}
	}
	return src, f, nil
}

// wantRegular refuses what has no size beforehand.
func wantRegular(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file; its size is not known beforehand", path)
	}
	return nil
}
