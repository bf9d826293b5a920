package tree

import (
	"errors"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"
	"syscall"

	"cinnabar/xfer"
)

// creating is the batch of files that one buffer of a transfer holds whole. The files are new, in a directory that only the owner can enter.
type creating struct {
	batch
	// makeRun holds making while it makes files, because the kernel makes one entry of a directory at a time, and other goroutines would spin or sleep for each file.
	making sync.Mutex
	// open is held for reading while files of the batch are open, and for writing by a goroutine that had no descriptor for a file, because the others then have closed theirs.
	open sync.RWMutex
	// exact has true for each mode that a new file has got as it was asked for, because neither the umask nor the directory's access control list has taken bits away
	exact [fs.ModePerm + 1]atomic.Bool
}

// take implements wholeSink.
func (s *storing) take(i int, b []byte) (bool, error) {
	if i = s.entryOf(i); i < 0 {
		return true, nil // see Write
	}
	return s.takeEntry(i, b)
}

// takeEntry takes all data of an entry that is stored.
func (s *storing) takeEntry(i int, b []byte) (bool, error) {
	e := &s.m.Entries[i]
	if !hasSmall || e.Sparse || s.dir.opt.Sync && !syncsAll || s.choice != nil && s.choice.state[i] != absent {
		return false, nil
	}
	if err := s.finish(); err != nil {
		return true, err
	}
	if !s.small.room(i) {
		if err := s.flush(); err != nil {
			return true, err
		}
	}
	s.small.m, s.small.fsys = s.m, s.fsys
	if err := s.small.add(i, path.Join(s.temp, stagedName), b); err != nil {
		return true, storageFailure("create", s.m.Path(i), err)
	}
	return true, nil
}

// flush implements wholeSink.
func (s *storing) flush() error {
	if len(s.small.list) == 0 {
		return nil
	}
	for i := range s.small.list {
		n := int64(len(s.small.list[i].b))
		s.unsynced += n
		s.wrote = s.wrote || n > 0
	}
	if i, err := s.small.each(smallCreators, createAtOnce, s.create); err != nil {
		return described("finish", s.m.Path(i), err)
	}
	if s.dir.opt.Sync && s.unsynced >= syncEvery {
		return s.sync()
	}
	return nil
}

// create makes files with their data, modes and times. Several goroutines call it. If no descriptor is free, it fills and closes the files that it has made, and
// then makes the others. If it has made none, it waits until the other goroutines have closed theirs.
func (s *storing) create(run []small) {
	for len(run) > 0 {
		s.small.open.RLock()
		made, failed := s.makeAndFill(run, false)
		s.small.open.RUnlock()
		if len(made) == 0 && !failed {
			s.small.open.Lock()
			made, failed = s.makeAndFill(run, true)
			s.small.open.Unlock()
		}
		if failed {
			return
		}
		run = run[len(made):]
	}
}

// makeAndFill makes files and then fills and closes them. It returns those that it has made, and whether a file has failed.
func (s *storing) makeAndFill(run []small, alone bool) (made []small, failed bool) {
	made, failed = s.makeRun(run, alone)
	for i := range made {
		made[i].err = s.fillNew(&made[i]) // of each, because fillNew closes the file
		failed = failed || made[i].err != nil
	}
	return made, failed
}

// makeRun makes files in order until one fails, and returns those that it has made. It sets the error of the file that fails, unless the process has no free
// descriptor and files of the batch are open: create then closes those, or waits until they are closed, and tries the file again. alone means that no other
// goroutine has files open.
func (s *storing) makeRun(run []small, alone bool) (made []small, failed bool) {
	s.small.making.Lock()
	defer s.small.making.Unlock()
	for i := range run {
		f := &run[i]
		var err error
		f.fd, err = s.make(f)
		if (i > 0 || !alone) && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) {
			return run[:i], false
		}
		if f.err = err; err != nil {
			return run[:i], true
		}
	}
	return run, false
}

// make makes one file, which has no data yet, and returns its descriptor.
func (s *storing) make(f *small) (fd int, err error) {
	if err := s.step(); err != nil {
		return 0, err
	}
	fd, err = openSmall(f.dir, s.m.Entries[f.entry].Name, flagsNew, s.newMode(f.entry))
	if errors.Is(err, fs.ErrExist) {
		return 0, takenForAnother(s.m.Path(f.entry))
	}
	if err != nil {
		return 0, storageFailure("create", s.m.Path(f.entry), err)
	}
	return fd, nil
}

// newMode returns the mode with which make makes the file of an entry.
func (s *storing) newMode(i int) fs.FileMode {
	if e := &s.m.Entries[i]; s.given(e) {
		return s.fileMode(e).Perm()
	}
	return 0o644
}

// fillNew gives a new file its data, mode and time, and closes it.
func (s *storing) fillNew(f *small) (err error) {
	e := &s.m.Entries[f.entry]
	if werr := writeSmall(f.fd, f.b); werr != nil {
		err = storageFailure("write", s.m.Path(f.entry), werr)
	}
	if err == nil && s.given(e) {
		err = s.setExactly(f.fd, s.newMode(f.entry))
	}
	if err = errors.Join(err, closeSmall(f.fd)); err == nil && !e.ModTime.IsZero() && !s.dir.opt.IgnoreMeta {
		err = setTimeIn(f.dir, e.Name, e.ModTime)
	}
	return err
}

// setExactly sets the mode of a new file, unless the file has got that mode when it was made.
func (s *storing) setExactly(fd int, mode fs.FileMode) error {
	exact := &s.small.exact[mode]
	if exact.Load() {
		return nil
	}
	got, err := modeOf(fd)
	if err != nil {
		return err
	}
	if got == mode {
		exact.Store(true)
		return nil
	}
	return setModeOf(fd, mode)
}

// takenForAnother returns the failure of entry p, whose name the file system does not distinguish from that of another entry.
func takenForAnother(p string) error {
	return failf(xfer.CodeName, "%s: the receiver's file system takes the name for that of another entry", quote(p))
}

var _ wholeSink = (*storing)(nil)

// wholeSink is a Sink with a faster way than Write to store a file that one buffer holds whole.
type wholeSink interface {
	Sink
	// take takes all data of a file, in the order of the manifest, and may keep b until flush. If it returns false, the caller calls flush, and then Write for
	// this file.
	take(entry int, b []byte) (bool, error)
	// flush stores the files that were taken. It keeps no data.
	flush() error
}

// whole gives the sink the piece b of a file, at offset at, if it is the whole file and the sink is a wholeSink. It reports whether the sink has taken the piece.
func (f *incoming) whole(i int, at int64, b []byte) (bool, error) {
	sink, ok := f.sink.(wholeSink)
	if !ok {
		return false, nil
	}
	if at == 0 && int64(len(b)) == f.p.m.Entries[i].Size {
		if taken, err := sink.take(i, b); taken || err != nil {
			return true, err
		}
	}
	return false, sink.flush()
}

// flush stores the files that the sink has taken.
func (f *incoming) flush() error {
	if sink, ok := f.sink.(wholeSink); ok && f.begun {
		return sink.flush()
	}
	return nil
}
