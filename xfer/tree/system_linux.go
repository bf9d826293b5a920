package tree

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// mayHaveHoles reports whether a file has fewer blocks than its size needs.
func mayHaveHoles(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Blocks*512 < st.Size
}

// dataOf returns the extents of an open file that have data; nil if the file system does not say, or if the file has no hole or very many.
func dataOf(f *os.File, size int64) []Extent {
	extents := []Extent{}
	for at := int64(0); at < size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if err != nil { // ENXIO: there is no more data
			if errors.Is(err, syscall.ENXIO) {
				break
			}
			return nil
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil || end <= start || len(extents) == mostExtents {
			return nil
		}
		if start >= size {
			break
		}
		extents = append(extents, Extent{start, min(end, size) - start})
		at = end
	}
	if len(extents) == 1 && extents[0] == (Extent{0, size}) {
		return nil
	}
	return extents
}

// syncAll writes the data of the file system that has the open directory f to the disk. It reports errors since f was opened (syncfs(2)).
func syncAll(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := c.Control(func(fd uintptr) { serr = unix.Syncfs(int(fd)) }); err != nil {
		return err
	}
	return serr
}

// syncsAll says that syncAll reaches the data of files, so that these need no sync of their own.
const syncsAll = true
