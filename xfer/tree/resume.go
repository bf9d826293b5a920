package tree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"cinnabar/xfer"
)

// partialName is the temporary name of a tree that may resume.
func partialName(name string) string {
	sum := sha256.Sum256([]byte("tree\x00" + name))
	return tempPrefix + hex.EncodeToString(sum[:tempRandom]) + tempSuffix
}

// adoptTemp takes the temporary directory of an earlier transfer of the tree, or makes one that a later transfer finds. It returns without one if this
// system has no locks, or if there is one that other users may write to.
func (s *storing) adoptTemp() error {
	root, temp := s.dir.root, partialName(s.name)
	for range 3 { // another process may remove the directory meanwhile
		err := root.Mkdir(temp, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return storageFailure("create", s.name, err)
		}
		info, lerr := root.Lstat(temp)
		if errors.Is(lerr, fs.ErrNotExist) {
			continue
		}
		if lerr != nil || !info.IsDir() || !private(info) {
			return nil
		}
		f, oerr := root.OpenFile(temp, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK, because opening a pipe would block
		if oerr != nil {
			continue
		}
		lock := lockDir(f)
		at, aerr := root.Lstat(temp)
		if lock == nil && aerr == nil && os.SameFile(info, at) {
			s.temp, s.lock, s.named, s.resumes = temp, f, true, err != nil
			return errors.Join(s.touch(), s.probe())
		}
		_ = f.Close() // nothing was written to it
		switch {
		case isLocked(lock):
			return failf(xfer.CodeExists, "a tree %q is being received right now by another process", s.name)
		case lock != nil: // there are no locks
			if err == nil {
				_ = root.Remove(temp) // it is empty
			}
			return nil
		}
	}
	return nil
}

// touch gives the temporary directory the time of now, from which its age counts.
func (s *storing) touch() error {
	now := time.Now()
	if err := s.dir.root.Chtimes(s.temp, now, now); err != nil {
		return storageFailure("create", s.name, err)
	}
	return nil
}

// probe finds the modes that the system gives new files and directories, which staged ones must get that an earlier transfer has made with others.
func (s *storing) probe() error {
	if !s.resumes {
		return nil
	}
	root, at := s.dir.root, filepath.Join(s.temp, "probe")
	err := root.RemoveAll(at)
	if err == nil {
		err = root.Mkdir(at, 0o777)
	}
	var info fs.FileInfo
	if err == nil {
		info, err = root.Lstat(at)
	}
	if err == nil {
		s.newDir = info.Mode().Perm()
		err = root.Remove(at)
	}
	var f *os.File
	if err == nil {
		f, err = root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	}
	if err == nil {
		info, err = f.Stat()
		err = errors.Join(err, f.Close(), root.Remove(at))
	}
	if err != nil {
		return storageFailure("go on with", s.name, err)
	}
	s.newFile = info.Mode().Perm()
	return nil
}

// clear removes the staged entries that are not in the manifest, or of another kind there. It notes how much of the other files is there. Directories
// come first, so that no path goes through a link that the earlier part has in the place of one; then hard links, because staged files with several
// names are not used.
func (s *storing) clear() error {
	next := s.m.siblings()
	for pass := range 3 {
		for i := range s.m.Entries {
			if clearedIn(s.m.Entries[i].Kind) != pass {
				continue
			}
			if err := s.clearEntry(i, next); err != nil {
				return described("go on with", s.m.Path(i), err)
			}
		}
	}
	return nil
}

// clearedIn returns the pass of clear for entries of a kind.
func clearedIn(k Kind) int {
	switch k {
	case Directory:
		return 0
	case HardLink:
		return 1
	default:
		return 2
	}
}

// clearEntry prepares one staged entry.
func (s *storing) clearEntry(i int, next siblings) error {
	if err := s.step(); err != nil {
		return err
	}
	at, e := filepath.ToSlash(s.staged(i)), &s.m.Entries[i]
	old, err := s.fsys.Lstat(at)
	switch {
	case absentError(err):
		return nil
	case err != nil:
		return err
	case e.Kind == Directory && old.IsDir():
		return s.prune(i, at, next)
	case e.Kind == File && s.adopts(i, at, old):
		return s.dir.root.Chmod(filepath.FromSlash(at), 0o600)
	}
	dir, name, err := s.fsys.in(at)
	if err != nil {
		return err
	}
	return removeAll(dir, name, s.step)
}

// step counts a step of the work. Before Commit it fails if the transfer is over.
func (s *storing) step() error {
	s.steps.Add(1)
	if s.commits {
		return nil
	}
	return s.over()
}

// over returns an error if the transfer is over.
func (s *storing) over() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return failf(xfer.CodeCanceled, "the transfer of %s is over: %w", quote(s.name), context.Cause(s.ctx))
}

// described returns an error of the file system as storageFailure does, and others as they are.
func described(doing, name string, err error) error {
	if _, ok := errors.AsType[*failure](err); ok {
		return err
	}
	return storageFailure(doing, name, err)
}

// absentError reports whether there is no such entry, or no directory that could have it.
func absentError(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// adopts reports whether a staged file is used. It is one of which data are there from the beginning.
func (s *storing) adopts(i int, at string, old fs.FileInfo) bool {
	c, e := s.choice, &s.m.Entries[i]
	if _, names := identityOf(old); c.state[i] == kept || !old.Mode().IsRegular() || names != 1 || old.Size() == 0 || old.Size() > e.Size {
		return false
	}
	have := min(e.data(), old.Size())
	if e.Sparse {
		have = 0
		for _, x := range e.Extents {
			have += max(min(x.Offset+x.Length, old.Size())-x.Offset, 0)
		}
	}
	if have == 0 || old.Size()/mostExpansion > allocated(old) || !s.zerosBetween(filepath.FromSlash(at), e, old.Size()) || !s.countBlocks(have) {
		return false
	}
	c.state[i], c.have[i] = staged, have
	return true
}

// prune gives a staged directory its mode, and removes the entries that the directory does not have.
func (s *storing) prune(i int, at string, next siblings) error {
	mode := s.newDir | 0o700
	if s.given(&s.m.Entries[i]) {
		mode = s.dirMode(i)
	}
	if err := s.dir.root.Chmod(filepath.FromSlash(at), mode); err != nil {
		return err
	}
	dir, _, err := s.fsys.in(at + "/")
	if err != nil {
		return err
	}
	names := s.m.names(i, next)
	for removed := true; removed; { // again, because a file system may leave out entries while others go
		removed = false
		err := eachName(dir, s.step, func(d fs.DirEntry) error {
			if _, known := slices.BinarySearch(names, d.Name()); known {
				return nil
			}
			removed = true
			return removeAll(dir, d.Name(), s.step)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// siblings has, for each entry, the number of the first entry in it, and that of the next entry in its directory; 0: there is none.
type siblings struct{ first, next []int32 }

// siblings returns those of all entries.
func (m *Manifest) siblings() siblings {
	n := len(m.Entries)
	s := siblings{make([]int32, n), make([]int32, n)}
	for i := n - 1; i > 0; i-- {
		dir := m.Entries[i].parent
		s.next[i], s.first[dir] = s.first[dir], int32(i) //nolint:gosec // a manifest of so many entries does not fit into memory
	}
	return s
}

// names returns the names of the entries of directory i, in ascending order.
func (m *Manifest) names(i int, s siblings) (names []string) {
	for j := s.first[i]; j != 0; j = s.next[j] {
		names = append(names, m.Entries[j].Name)
	}
	return names
}

// eachName calls do for each entry of an open directory, which do may remove. It calls step before each.
func eachName(dir *os.Root, step func() error, do func(fs.DirEntry) error) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	for {
		list, err := f.ReadDir(entriesAtOnce)
		for _, d := range list {
			if err := step(); err != nil {
				return err
			}
			if err := do(d); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// enter opens a directory that is in another one. It follows no link, also if one takes the place of the directory at this moment.
func enter(dir *os.Root, name string) (*os.Root, fs.FileInfo, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		return nil, nil, syscall.ENOTDIR
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, nil, err
	}
	at, err := sub.Stat(".")
	if err == nil && !os.SameFile(info, at) {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, nil, errors.Join(err, sub.Close())
	}
	return sub, at, nil
}

// removeAll removes an entry of an open directory, with everything in it. It calls step before each entry, and ends with the error of that.
func removeAll(dir *os.Root, name string, step func() error) error {
	if err := step(); err != nil {
		return err
	}
	err := dir.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	sub, _, oerr := enter(dir, name)
	if oerr != nil {
		return err
	}
	for found := true; found && oerr == nil; { // again, because a file system may leave out entries while others go
		found = false
		oerr = eachName(sub, step, func(d fs.DirEntry) error {
			found = true
			return removeAll(sub, d.Name(), step)
		})
	}
	if err := errors.Join(oerr, sub.Close()); err != nil {
		return err
	}
	return dir.Remove(name)
}

// wrapUp finishes the staged files of which nothing had to come again.
func (s *storing) wrapUp() error {
	if s.choice == nil {
		return nil
	}
	for i := range s.choice.state {
		if s.choice.state[i] != staged {
			continue
		}
		if err := s.step(); err != nil {
			return err
		}
		if err := s.turn(i); err != nil {
			return err
		}
	}
	return s.finish()
}

// keepsPart reports whether the temporary directory stays, so that a later transfer goes on with it.
func (s *storing) keepsPart() bool { return s.named && (s.wrote || s.resumes) }
