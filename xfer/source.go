package xfer

import (
	"fmt"
	"os"
	"path/filepath"
)

// OpenFile opens the file at path for sending, under the last element of its
// path. With preserve its mode and time go along. The caller closes the file
// after Send.
func OpenFile(path string, preserve bool) (Source, *os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return Source{}, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file; its size is not known beforehand", path)
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
