package tree

import (
	"errors"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
)

// A batch is a number of small files that one buffer of a transfer holds whole. The system calls that open and close a small file take more time than its data. So
// each call names a file of the batch relative to the descriptor of its directory, and several goroutines work on the files.
//
//	buffer of the transfer   | file 1 | file 2 | ... | file 90 |    data is written from it, or read into it, without a copy
//	batch                      entry, directory and part of the buffer of each file
//	each                       opens, reads or writes, and closes the files; returns when all are closed
//
// A batch is emptied before the call returns that has the buffer, so it needs no memory for data.
type batch struct {
	m    *Manifest
	fsys *rootFS
	list []small
	dirs []*os.File // of the files in list; the last one stays open for the next batch
	last int        // the entry of the last one in dirs
}

// small is a file of a batch.
type small struct {
	entry int
	dir   int // descriptor of its directory
	b     []byte
	fd    int // descriptor of a new file, from make to fillNew
	err   error
}

const (
	mostSmall     = 256 // files of one batch
	mostSmallDirs = 4   // directories of one batch, because each takes a descriptor
	smallWorkers  = 4   // goroutines that read one batch, because they may wait for the disk
	smallCreators = 2   // goroutines that store one batch: one makes files while the other fills the files that it has made
	createAtOnce  = 4   // files that a goroutine makes before it fills them, because each takes a descriptor
	fewSmall      = 8   // least number of files for each goroutine, because one does not pay for fewer
)

// room reports whether the batch can take the file of entry i before each empties it.
func (b *batch) room(i int) bool {
	return len(b.list) < mostSmall && (b.isIn(i) || len(b.dirs) < mostSmallDirs)
}

// isIn reports whether entry i is in the directory that was opened last.
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

// each divides the batch into parts of run files, calls do for each part, on at most workers goroutines, and empties the batch. do sets the error of each file that
// fails, and may leave out files behind it in the part. each returns the entry and the error of the failed file that comes first in the manifest. After an error each
// begins no further parts.
func (b *batch) each(workers, run int, do func([]small)) (entry int, err error) {
	share((len(b.list)+run-1)/run, min(workers, len(b.list)/fewSmall), func(i int) bool {
		part := b.list[i*run : min((i+1)*run, len(b.list))]
		do(part)
		return !slices.ContainsFunc(part, func(f small) bool { return f.err != nil })
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

// share calls do with the numbers from 0 to n-1 on workers goroutines, or on one if workers is below 1. The calls begin in ascending order. share returns when all calls have
// returned. After a call returns false, share begins no further ones.
func share(n, workers int, do func(i int) bool) {
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
	for range workers - 1 {
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
