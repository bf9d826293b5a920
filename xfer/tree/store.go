package tree

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/xfer"
)

// storing is a tree that is being stored. It is the Sink of a Dir.
type storing struct {
	ctx  context.Context // of Open
	dir  *Dir
	name string    // of the tree
	m    *Manifest // of the entries that are stored
	temp string    // the directory in which the tree comes into being, with the name staged; "": there is none
	lock *os.File  // temp
	fsys *rootFS   // the Dir, for entries below temp

	file     *os.File // of entry open
	open     int
	path     string         // of the file, below the root of the Dir, with slashes
	unsynced int64          // bytes written since the last sync
	held     int64          // bytes of the manifest; guarded by the Dir's mutex
	host     hostquota.Host // of the sender; zero: not known

	selection *selection // nil: all entries are stored

	small creating // files that one buffer has whole

	steps   atomic.Uint64 // grows with the work
	commits bool          // Commit was called
	choice  *choosing     // nil: all bytes cross
	blocks  int64         // of which sums are wanted
	named   bool          // temp has the name where a later transfer looks for it
	resumes bool          // temp is that of an earlier transfer
	wrote   bool          // there are data below temp
	newFile fs.FileMode   // the modes of a new file and a new directory, if resumes
	newDir  fs.FileMode

	removals []removal
	around   []int // the directories around the next removal, by their numbers in the list
	sent     int   // removals that the sender knows
}

// release gives the name and the memory back.
func (s *storing) release() {
	d := s.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, s.name)
	d.held -= s.held
	if d.hosts[s.host] -= s.held; d.hosts[s.host] == 0 {
		delete(d.hosts, s.host)
	}
	s.held = 0
}

// Begin refuses a tree with names that this directory cannot or may not store, and makes the directories and symbolic links of others
// below the temporary name.
func (s *storing) Begin(m *Manifest) error {
	s.m = m
	if p := s.dir.opt.Patterns; p != nil && len(p.rules) > 0 {
		if err := s.leaveOut(); err != nil {
			return err
		}
	}
	refused := s.dir.refusals(s.m, runtime.GOOS)
	if err := refused.err("the receiver refuses the tree"); err != nil {
		return err
	}
	if err := s.merge(refused); err != nil {
		return err
	}
	if s.choice != nil {
		if err := errors.Join(s.survey(), s.listRemovals()); err != nil || s.dry() {
			return err
		}
	}
	if err := s.makeTemp(); err != nil {
		return err
	}
	if s.dir.foldsCase(s.temp) {
		refuseCollisions(s.m, refused)
		if err := refused.err("the receiver refuses the tree"); err != nil {
			return err
		}
	}
	if s.resumes {
		if err := s.clear(); err != nil {
			return err
		}
	}
	return s.frame()
}

// dry reports whether nothing is to be stored.
func (s *storing) dry() bool { return s.choice != nil && s.choice.offer.Wishes&xfer.WishDryRun != 0 }

// deletes reports whether entries of the receiver go that the sender does not have.
func (s *storing) deletes() bool {
	return s.choice != nil && s.choice.offer.Wishes&xfer.WishDelete != 0
}

// merge refuses a tree that does not fit into the directory that has its name.
func (s *storing) merge(refused *RefusedError) error {
	info, err := s.dir.target(s.name)
	if err != nil || info == nil || s.deletes() {
		return err
	}
	err = s.meet(func(i int, at string, old fs.FileInfo) error {
		if e := &s.m.Entries[i]; old != nil && (e.Kind == Directory) != old.IsDir() {
			refused.add(s.m.Path(i), fmt.Sprintf("it is a %s, and at the receiver %s", e.Kind, kindOf(old)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return refused.err("the receiver refuses the tree")
}

func kindOf(info fs.FileInfo) string {
	if info.IsDir() {
		return "a directory"
	}
	return "none"
}

// meet calls do for each entry that may meet one of the receiver, with the number of the entry, its path below the root of the Dir, and
// the receiver's entry; nil: the receiver has none. It leaves out entries below one that the receiver does not have, or that is no directory there.
func (s *storing) meet(do func(i int, at string, old fs.FileInfo) error) error {
	for i := 0; i < len(s.m.Entries); {
		if err := s.step(); err != nil {
			return err
		}
		at := s.below(s.name, i)
		old, err := s.dir.root.Lstat(at)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				return storageFailure("look for", s.m.Path(i), err)
			}
			old = nil
		}
		if err := do(i, at, old); err != nil {
			return err
		}
		if old != nil && old.IsDir() {
			i++
		} else {
			i = s.m.after(i)
		}
	}
	return nil
}

// below returns the path of an entry, below the root of the Dir, if the tree has the name top.
func (s *storing) below(top string, i int) string {
	return filepath.Join(top, filepath.FromSlash(s.m.Path(i)))
}

// stagedName is the name of the tree below its temporary directory, which keeps other users out.
const stagedName = "tree"

// staged returns the path of an entry that has not got its name.
func (s *storing) staged(i int) string { return s.below(filepath.Join(s.temp, stagedName), i) }

// makeTemp makes the directory in which the tree comes into being, and locks it.
func (s *storing) makeTemp() error {
	if s.choice != nil && s.dir.opt.KeepFor > 0 {
		if err := s.adoptTemp(); err != nil || s.named {
			return err
		}
	}
	var random [tempRandom]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	temp := tempPrefix + hex.EncodeToString(random[:]) + tempSuffix
	if err := s.dir.root.Mkdir(temp, 0o700); err != nil {
		return storageFailure("create", s.name, err)
	}
	s.temp = temp
	f, err := s.dir.root.Open(temp)
	if err != nil {
		return storageFailure("open", s.name, err)
	}
	s.lock = f
	_ = lockDir(f) // without locks it is only not removed if this process is killed
	return nil
}

// frame makes everything below the temporary name that has no data.
func (s *storing) frame() error {
	for i := range s.m.Entries {
		if err := s.step(); err != nil {
			return err
		}
		e := &s.m.Entries[i]
		var err error
		switch {
		case s.keeps(i):
		case e.Kind == Directory:
			if err = s.fsys.mkdir(filepath.ToSlash(s.staged(i)), s.dirMode(i)); s.resumes && errors.Is(err, fs.ErrExist) {
				err = nil
			}
		case e.Kind == Symlink:
			err = s.fsys.symlink(filepath.FromSlash(e.Target), filepath.ToSlash(s.staged(i)))
		case e.Kind == File && e.data() == 0:
			taken, err := s.takeEntry(i, nil)
			if err == nil && !taken {
				err = s.turn(i)
			}
			if err != nil {
				return err
			}
		}
		if errors.Is(err, fs.ErrExist) { // the temporary directory was empty
			return takenForAnother(s.m.Path(i))
		}
		if err != nil {
			return storageFailure("create", s.m.Path(i), err)
		}
	}
	return errors.Join(s.flush(), s.finish())
}

// dirMode returns the mode with which a directory is made.
func (s *storing) dirMode(i int) fs.FileMode {
	e := &s.m.Entries[i]
	if s.given(e) { // no more than that, because the directory has a name for a moment before it gets its mode
		return e.Mode&0o777 | 0o700
	}
	return 0o777
}

// given reports whether an entry gets the mode that the sender gives.
func (s *storing) given(e *Entry) bool { return e.HasMode && !s.dir.opt.IgnoreMeta }

// Write stores data of a file of the sender.
func (s *storing) Write(i int, b []byte, offset int64) error {
	if i = s.entryOf(i); i < 0 {
		return nil // all bytes cross if the sender lets the receiver not choose
	}
	if i != s.open {
		if err := s.turn(i); err != nil {
			return err
		}
	}
	s.wrote = true
	n, err := s.file.WriteAt(b, offset)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return storageFailure("write", s.m.Path(i), err)
	}
	if s.unsynced += int64(n); s.dir.opt.Sync && s.unsynced >= syncEvery {
		return s.sync()
	}
	return nil
}

// syncEvery bounds the bytes that a sync at the end has to write, and so the time for which the sender waits for it.
const syncEvery = 64 << 20

// sync writes the data so far to the disk.
func (s *storing) sync() error {
	s.unsynced = 0
	if !s.dir.opt.Sync || !syncsAll {
		return nil
	}
	if err := s.atWork(longestSync, func() error { return syncAll(s.lock) }); err != nil {
		return storageFailure("sync", s.name, err)
	}
	return nil
}

const (
	// longestSync is the time for which a sync counts as work. A disk that takes longer counts as dead.
	longestSync = 15 * time.Minute
	// syncStep is the time between two steps of a sync.
	syncStep = 200 * time.Millisecond
)

// atWork calls do, and counts a step each syncStep while do runs, because a system call counts none. After longest atWork counts no more steps, so that the timeouts
// of both sides apply.
func (s *storing) atWork(longest time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }() // it is waited for below
	tick := time.NewTicker(min(syncStep, longest))
	defer tick.Stop()
	for end := time.Now().Add(longest); ; {
		select {
		case err := <-done:
			return err
		case now := <-tick.C:
			if now.Before(end) {
				s.steps.Add(1)
			}
		}
	}
}

// turn finishes the file that is open and makes that of entry i.
func (s *storing) turn(i int) error {
	if err := s.finish(); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if s.given(&s.m.Entries[i]) {
		mode = 0o600
	}
	at, flag := filepath.ToSlash(s.staged(i)), os.O_WRONLY|os.O_CREATE|os.O_EXCL
	if s.choice != nil && s.choice.state[i] == staged {
		flag = os.O_WRONLY
	}
	f, err := s.fsys.openFile(at, flag, mode)
	if errors.Is(err, fs.ErrExist) {
		return takenForAnother(s.m.Path(i))
	}
	if err != nil {
		return storageFailure("create", s.m.Path(i), err)
	}
	s.file, s.open, s.path = f, i, at
	return nil
}

// finish gives the file that is open its size, mode and time, and closes it.
func (s *storing) finish() (err error) {
	if s.file == nil {
		return nil
	}
	f, e := s.file, &s.m.Entries[s.open]
	if reused := s.choice != nil && s.choice.state[s.open] == staged; e.Sparse || reused {
		err = f.Truncate(e.Size)
		if err == nil && reused {
			s.choice.state[s.open] = finished
			if !s.given(e) { // it was hidden (clear)
				err = f.Chmod(s.newFile)
			}
		}
	}
	if err == nil && s.given(e) {
		err = f.Chmod(s.fileMode(e))
	}
	if err == nil && s.dir.opt.Sync && !syncsAll {
		err = f.Sync()
	}
	i := s.open
	s.file, s.open = nil, -1
	err = errors.Join(err, f.Close())
	if err == nil && !e.ModTime.IsZero() && !s.dir.opt.IgnoreMeta {
		err = s.fsys.chtimes(s.path, e.ModTime)
	}
	if err != nil {
		return storageFailure("finish", s.m.Path(i), err)
	}
	return nil
}

// fileMode returns the mode that a file gets, if it is given.
func (s *storing) fileMode(e *Entry) fs.FileMode {
	if s.dir.opt.AllowExec {
		return e.Mode
	}
	return e.Mode &^ 0o111
}

// Commit gives the tree its name. A tree that the receiver did not have gets it by one rename. The end of the transfer ends the removal of entries only, because a tree that goes into
// an existing one would be stored in part otherwise.
func (s *storing) Commit() error {
	if err := s.over(); err != nil {
		return err
	}
	s.commits = true
	if s.dry() {
		return failf(xfer.CodeProtocol, "the sender ends a transfer of which it only wanted to know the effect")
	}
	s.closeCompared()
	err := s.finish()
	if err == nil {
		err = s.wrapUp()
	}
	if err = errors.Join(err, s.small.close(), s.fsys.leave()); err == nil {
		err = s.link()
	}
	if err == nil {
		err = s.checkKept()
	}
	if err == nil {
		err = s.sync()
	}
	if err != nil {
		return err
	}
	if err = s.over(); err != nil {
		return err
	}
	// The end of the transfer stops none of the steps below but the second removal, because it would leave a part of the old tree and a part of the new one.
	whole := false
	if err = s.removeListed(true); err == nil {
		whole, err = s.move()
	}
	if err != nil {
		return s.withRemoved(err)
	}
	removing := s.removeListed(false)
	if err = s.dressKept(); err == nil {
		err = s.dress()
	}
	if err == nil {
		err = s.settle()
	}
	if err = errors.Join(removing, err); err != nil {
		if !whole || s.dir.root.Rename(s.name, s.staged(0)) != nil {
			err = fmt.Errorf("%w; the tree stands under its name", err)
		}
		return s.withRemoved(err)
	}
	return s.close()
}

// link makes the hard links below the temporary name.
func (s *storing) link() error {
	for i := range s.m.Entries {
		e := &s.m.Entries[i]
		s.steps.Add(1)
		if e.Kind != HardLink || s.keeps(i) {
			continue
		}
		from := s.staged(e.Link)
		if s.keeps(e.Link) {
			from = s.below(s.name, e.Link)
		}
		if err := s.dir.root.Link(from, s.staged(i)); err != nil {
			return storageFailure("link", s.m.Path(i), err)
		}
	}
	return nil
}

// move renames everything that the receiver does not have, and replaces its files. It reports whether that was the whole tree by one rename.
func (s *storing) move() (whole bool, err error) {
	if _, err := s.dir.target(s.name); err != nil { // another program may have made one meanwhile
		return false, err
	}
	stored := 0
	err = s.meet(func(i int, at string, old fs.FileInfo) error {
		switch {
		case old != nil && (s.m.Entries[i].Kind == Directory) != old.IsDir():
			return failf(xfer.CodeExists, "%s has become %s at the receiver meanwhile", quote(s.m.Path(i)), kindOf(old))
		case old != nil && old.IsDir(), s.keeps(i):
			return nil
		}
		if err := s.dir.root.Rename(s.staged(i), at); err != nil {
			return storageFailure("name", s.m.Path(i), err)
		}
		whole = i == 0
		stored++
		return nil
	})
	if err != nil && stored > 0 {
		err = fmt.Errorf("%w; the entries before it are stored", err)
	}
	return whole, err
}

// dress gives the directories their modes and times, those inside before those around them, because it changes nothing inside afterwards.
func (s *storing) dress() error {
	if s.dir.opt.IgnoreMeta {
		return nil
	}
	root := s.dir.root
	for i := len(s.m.Entries) - 1; i >= 0; i-- {
		s.steps.Add(1)
		e := &s.m.Entries[i]
		if e.Kind != Directory {
			continue
		}
		at := s.below(s.name, i)
		if !e.ModTime.IsZero() {
			if err := root.Chtimes(at, time.Time{}, e.ModTime); err != nil {
				return storageFailure("set the time of", s.m.Path(i), err)
			}
		}
		if e.HasMode {
			if err := root.Chmod(at, e.Mode); err != nil {
				return storageFailure("set the mode of", s.m.Path(i), err)
			}
		}
	}
	return nil
}

// settle writes the names to the disk, and the data with them where that has not been done.
func (s *storing) settle() error {
	if !s.dir.opt.Sync {
		return nil
	}
	if syncsAll {
		return s.sync()
	}
	dirs := []string{"."}
	for i := range s.m.Entries {
		if s.m.Entries[i].Kind == Directory {
			dirs = append(dirs, s.below(s.name, i))
		}
	}
	for _, at := range dirs {
		f, err := s.dir.root.Open(at)
		if err == nil {
			err = errors.Join(syncAll(f), f.Close())
		}
		if err != nil {
			return storageFailure("sync", s.name, err)
		}
	}
	return nil
}

// close removes the temporary directory, of which everything has its name. An error does no harm: a later receiver removes it.
func (s *storing) close() error {
	_ = s.lock.Close() // nothing was written to it
	_ = s.dir.root.RemoveAll(s.temp)
	s.temp, s.lock = "", nil
	return nil
}

// Discard removes everything below the temporary name, or keeps it there if the directory keeps partial files.
func (s *storing) Discard() error {
	var errs []error
	s.closeCompared()
	if s.temp != "" && s.keepsPart() {
		errs = append(errs, s.touch())
	}
	if s.file != nil {
		errs = append(errs, s.file.Close())
		s.file = nil
	}
	errs = append(errs, s.small.close(), s.fsys.leave())
	if s.lock != nil {
		errs = append(errs, s.lock.Close()) // before the removal, because Windows removes no open directory
	}
	if s.temp != "" && !s.dir.opt.KeepPartial && !s.keepsPart() {
		errs = append(errs, s.dir.root.RemoveAll(s.temp))
	}
	s.temp, s.lock = "", nil
	return errors.Join(errs...)
}
