package tree

import "sync/atomic"

// reading is the place at which a transfer reads a tree. One goroutine sets it, others look.
type reading struct {
	entry atomic.Int64 // its number plus one; 0: no file yet
	done  atomic.Int64 // bytes of the file, with its holes
}

// set notes that the bytes before done of a file have been read.
func (r *reading) set(entry int, done int64) {
	r.done.Store(done)
	r.entry.Store(int64(entry) + 1)
}

// Reading returns the path below the root of the file that a transfer reads now, the number of its bytes before the place of the reading, and its
// size. ok is false if no data of a file was read yet. It may be called at any time, while a transfer reads the tree too; it then may return the
// place of one file's reading with the path of the file before or after it, but never a place behind the end.
func (t *Tree) Reading() (path string, done, size int64, ok bool) {
	i := t.reading.entry.Load() - 1
	if i < 0 {
		return "", 0, 0, false
	}
	size = t.manifest.Entries[i].Size
	return t.manifest.Path(int(i)), min(t.reading.done.Load(), size), size, true
}
