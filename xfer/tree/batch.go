package tree

import (
	"errors"
	"os"
	"path"
	"sync"
	"sync/atomic"
)

// Small files take most of their time in the system calls around their data, not in the data. So those that stand whole in one buffer of a
// transfer form a batch: each call names a file relative to the descriptor of its directory, and several goroutines work on the files of one batch.
//
//	buffer of the transfer   | file 1 | file 2 | ... | file 90 |    bytes are taken from it, or read into it, without a copy
//	batch                      entry, directory, bytes, for each
//	each                       opens, reads or writes, and closes them; returns when all are closed
//
// A batch lasts no longer than the call that has the buffer, so that it needs no memory for data.
type batch struct {
	m    *Manifest
	fsys *rootFS
	list []small
	dirs []*os.File // of the files in list; the last one stays open for the next batch
	last int        // the number of the last directory's entry
}

// small is a file of a batch.
type small struct {
	entry int
	dir   int // its descriptor
	b     []byte
	err   error
}

const (
	mostSmall     = 256 // files of one batch
	mostSmallDirs = 4   // directories of one batch, because each takes a descriptor
	smallWorkers  = 4   // goroutines that work on one batch
	fewSmall      = 8   // files for which another goroutine does not pay
)

// room reports whether the batch can take a file of the entry without being worked on before.
func (b *batch) room(i int) bool {
	return len(b.list) < mostSmall && (b.isIn(i) || len(b.dirs) < mostSmallDirs)
}

// isIn reports whether the directory of an entry is the one that was opened last.
func (b *batch) isIn(i int) bool {
	return len(b.dirs) > 0 && b.last == b.m.Entries[i].parent
}

// add adds a file. root is the path of the tree below the root of the file system.
func (b *batch) add(i int, root string, data []byte) error {
	if !b.isIn(i) {
		parent := b.m.Entries[i].parent
		dir, err := b.fsys.openDir(path.Join(root, b.m.Path(parent)))
		if err != nil {
			return err
		}
		b.dirs, b.last = append(b.dirs, dir), parent
	}
	b.list = append(b.list, small{entry: i, dir: int(b.dirs[len(b.dirs)-1].Fd()), b: data}) //nolint:gosec // descriptors are small
	return nil
}

// each calls do for all files of the batch, on several goroutines, and empties the batch. It returns the first file, in the order of the manifest, for which do fails, with its
// error. After an error it leaves some files out.
func (b *batch) each(do func(*small) error) (entry int, err error) {
	share(len(b.list), func(i int) bool {
		b.list[i].err = do(&b.list[i])
		return b.list[i].err == nil
	})
	for i := range b.list {
		if b.list[i].err != nil {
			entry, err = b.list[i].entry, b.list[i].err
			break
		}
	}
	b.list = b.list[:0]
	if len(b.dirs) > 1 {
		last := len(b.dirs) - 1
		err = errors.Join(err, closeAll(b.dirs[:last]))
		b.dirs[0] = b.dirs[last]
		b.dirs = b.dirs[:1]
	}
	return entry, err
}

// share calls do with the numbers below n, in order, on several goroutines if there are many. It returns when all calls have, and begins no further ones after one that
// returns false.
func share(n int, do func(i int) bool) {
	var next atomic.Int64
	var failed atomic.Bool
	work := func() {
		for !failed.Load() {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if !do(i) {
				failed.Store(true)
			}
		}
	}
	var others sync.WaitGroup
	for range min(smallWorkers, n/fewSmall) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// close closes the directories.
func (b *batch) close() error {
	err := closeAll(b.dirs)
	b.dirs, b.list = nil, nil
	return err
}

func closeAll(files []*os.File) (err error) {
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
