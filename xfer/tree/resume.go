package tree

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
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

// clear removes the staged entries that are not in the manifest, or of another kind there. It notes how much of the other files is there.
func (s *storing) clear() error {
	for i := range s.m.Entries { // first, because staged files with several names are not used
		if s.m.Entries[i].Kind == HardLink {
			if err := s.dir.root.Remove(s.staged(i)); err != nil && !absentError(err) {
				return storageFailure("remove the earlier part of", s.m.Path(i), err)
			}
		}
	}
	for i := range s.m.Entries {
		s.steps.Add(1)
		at := filepath.ToSlash(s.staged(i))
		old, err := s.fsys.Lstat(at)
		if err != nil {
			if absentError(err) {
				continue
			}
			return storageFailure("look for", s.m.Path(i), err)
		}
		e := &s.m.Entries[i]
		switch {
		case e.Kind == Directory && old.IsDir():
			err = s.prune(i, at)
		case e.Kind == File && s.adopts(i, at, old):
			err = s.dir.root.Chmod(filepath.FromSlash(at), 0o600)
		default:
			err = s.dir.root.RemoveAll(filepath.FromSlash(at))
		}
		if err != nil {
			return storageFailure("go on with", s.m.Path(i), err)
		}
	}
	return nil
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
func (s *storing) prune(i int, at string) error {
	mode := s.newDir | 0o700
	if s.given(&s.m.Entries[i]) {
		mode = s.dirMode(i)
	}
	if err := s.dir.root.Chmod(filepath.FromSlash(at), mode); err != nil {
		return err
	}
	var names []string // in ascending order
	for j := i + 1; j < s.m.after(i); j++ {
		if s.m.Entries[j].Depth == s.m.Entries[i].Depth+1 {
			names = append(names, s.m.Entries[j].Name)
		}
	}
	return s.eachName(filepath.FromSlash(at), func(d fs.DirEntry) error {
		s.steps.Add(1)
		if _, known := slices.BinarySearchFunc(names, d.Name(), cmp.Compare); known {
			return nil
		}
		return s.dir.root.RemoveAll(filepath.FromSlash(path.Join(at, d.Name())))
	})
}

// eachName calls do for each entry of a directory of the receiver, which do may remove.
func (s *storing) eachName(at string, do func(fs.DirEntry) error) error {
	f, err := s.dir.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	list, err := f.ReadDir(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, d := range list {
		if err := do(d); err != nil {
			return err
		}
	}
	return nil
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
		if err := s.turn(i); err != nil {
			return err
		}
	}
	return s.finish()
}

// keepsPart reports whether the temporary directory stays, so that a later transfer goes on with it.
func (s *storing) keepsPart() bool { return s.named && (s.wrote || s.resumes) }
