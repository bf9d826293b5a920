package tree

import (
	"errors"
	"io/fs"
	"syscall"

	"cinnabar/xfer"
)

// readWhole reads into b the next files that are not sparse and fit whole. It returns the number of their bytes, which is 0 if the next file is not such a file.
func (t *Tree) readWhole(b []byte) (n int, err error) {
	for n < len(b) {
		i, offset, length, ok := t.next.next()
		if !ok || !t.isSmall(i, offset, length, len(b)-n) {
			break
		}
		if err := t.finish(); err != nil {
			return 0, err
		}
		if !t.small.room(i) {
			if err := t.readBatch(); err != nil {
				return 0, err
			}
		}
		t.small.m, t.small.fsys = t.manifest, t.root
		if err := t.small.add(i, ".", b[n:n+int(length)]); err != nil {
			t.at = -1 // the cursor is behind files that were not read
			return 0, t.unreadable(i, err)
		}
		t.next.advance(length)
		n += int(length)
	}
	return n, t.readBatch()
}

// isSmall reports whether the next piece of the data, length bytes at offset of the file of entry i, is a file that a batch can read: it is whole, not sparse, and
// has at most room bytes.
func (t *Tree) isSmall(i int, offset, length int64, room int) bool {
	e := &t.manifest.Entries[i]
	return hasSmall && t.root != nil && offset == 0 && !e.Sparse && length == e.Size && length <= int64(room)
}

// readBatch reads the files of the batch.
func (t *Tree) readBatch() error {
	if n := len(t.small.list); n > 0 {
		last := &t.small.list[n-1]
		t.reading.set(last.entry, int64(len(last.b)))
	}
	if _, err := t.small.each(smallWorkers, 1, func(f []small) { f[0].err = t.fill(&f[0]) }); err != nil {
		t.at = -1 // see readWhole
		return err
	}
	return nil
}

// fill reads one file, which must not have changed since the scan. Several goroutines call it.
func (t *Tree) fill(f *small) error {
	fd, err := openSmall(f.dir, t.manifest.Entries[f.entry].Name, flagsRead, 0)
	if err != nil {
		return t.unreadable(f.entry, err)
	}
	n, err := readSmall(fd, f.b)
	now, regular, statErr := openStamp(fd)
	if statErr = errors.Join(statErr, closeSmall(fd)); statErr != nil {
		return failf(xfer.CodeSource, "%w", statErr)
	}
	st := &t.stamps[f.entry]
	switch {
	case !regular || now.size != st.size || !now.time.Equal(st.time) || now.id != st.id:
		return t.changed(f.entry)
	case err != nil:
		return failf(xfer.CodeSource, "cannot read %s: %w", quote(t.manifest.Path(f.entry)), err)
	case n < len(f.b):
		return t.changed(f.entry)
	}
	return nil
}

// unreadable returns the failure of a file that cannot be opened.
func (t *Tree) unreadable(i int, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) { // ELOOP: it has become a link
		return t.changed(i)
	}
	return failf(xfer.CodeSource, "cannot open %s: %w", quote(t.manifest.Path(i)), err)
}
