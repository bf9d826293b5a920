package tree

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cinnabar/xfer"
)

// removal is an entry of the receiver that the sender does not have, or a directory that has such entries.
type removal struct {
	name   string
	depth  int
	parent int // the number of the directory in the list that has it; -1: the tree's own
	dir    bool
	stays  bool // it is in the list because of the entries below it
	spared bool // the sender does not want that it goes
}

// removalCost is the number of bytes that a removal counts for, beside those of its name.
const removalCost = 96

// listRemovals lists what the sender does not have, each directory before its contents.
func (s *storing) listRemovals() error {
	if s.choice == nil || s.choice.offer.Wishes&xfer.WishDelete == 0 {
		return nil
	}
	next := s.m.siblings()
	above := []int{} // for each depth the directory that is being listed, in the list, or -1: it is not there yet
	return s.meet(func(i int, at string, old fs.FileInfo) error {
		s.steps.Add(1)
		e := &s.m.Entries[i]
		if old == nil || i == 0 && !old.IsDir() {
			return nil
		}
		if (e.Kind == Directory) != old.IsDir() {
			return s.goes(at, i, old.IsDir(), &above)
		}
		if !old.IsDir() {
			return nil
		}
		above = append(above[:e.Depth], -1)
		names := s.m.names(i, next)
		return s.eachListed(at, func(d fs.DirEntry) error {
			if _, known := slices.BinarySearch(names, d.Name()); known || s.protects(d.Name()) {
				return nil
			}
			parent, err := s.context(i, &above)
			if err != nil {
				return err
			}
			return s.remove(filepath.Join(at, d.Name()), removal{name: d.Name(), depth: e.Depth, parent: parent, dir: d.IsDir()})
		})
	})
}

// goes lists an entry that stands in the place of an entry of another kind.
func (s *storing) goes(at string, i int, dir bool, above *[]int) error {
	e := &s.m.Entries[i]
	parent, err := s.context(e.parent, above)
	if err != nil {
		return err
	}
	return s.remove(at, removal{name: e.Name, depth: e.Depth - 1, parent: parent, dir: dir})
}

// context lists the directory of entry i with those around it, unless they are listed, and returns its number in the list; -1 for the root.
func (s *storing) context(i int, above *[]int) (int, error) {
	if i == 0 {
		return -1, nil
	}
	e := &s.m.Entries[i]
	parent, err := s.context(e.parent, above)
	if err != nil {
		return 0, err
	}
	if n := (*above)[e.Depth]; n >= 0 && len(s.around) >= e.Depth && s.around[e.Depth-1] == n {
		return n, nil
	}
	n := len(s.removals)
	(*above)[e.Depth] = n
	return n, s.listed(removal{name: e.Name, depth: e.Depth - 1, parent: parent, dir: true, stays: true})
}

// protects reports whether entries of a name never go: those that this receiver would not store, because a sender who may not write them may not remove them either.
func (s *storing) protects(name string) bool {
	return xfer.CheckName(name) != nil || !s.dir.opt.AllowDotFiles && strings.HasPrefix(name, ".")
}

// listed adds a removal to the list.
func (s *storing) listed(r removal) error {
	if len(s.removals) == s.dir.opt.Limits.Entries {
		return failf(xfer.CodeTooLarge, "more than %d entries would be removed, the limit of this receiver; raise Limits.Entries", s.dir.opt.Limits.Entries)
	}
	if err := s.dir.take(s, removalCost+int64(len(r.name))); err != nil {
		return err
	}
	s.around = s.around[:r.depth]
	if r.dir {
		s.around = append(s.around, len(s.removals))
	}
	s.removals = append(s.removals, r)
	return nil
}

// remove lists an entry with everything below it.
func (s *storing) remove(at string, r removal) error {
	s.steps.Add(1)
	if r.depth >= s.dir.opt.Limits.Depth {
		return failf(xfer.CodeTooLarge, "%s, which the sender does not have, is below %d directories, the limit of this receiver", quote(r.name), r.depth)
	}
	n := len(s.removals)
	if err := s.listed(r); err != nil || !r.dir {
		return err
	}
	err := s.eachListed(at, func(d fs.DirEntry) error {
		if s.protects(d.Name()) {
			return nil
		}
		return s.remove(filepath.Join(at, d.Name()), removal{name: d.Name(), depth: r.depth + 1, parent: n, dir: d.IsDir()})
	})
	return err
}

// nextRemovals returns the next removals for the sender.
func (s *storing) nextRemovals() (list []xfer.Removal) {
	for s.sent < len(s.removals) && len(list) < requestsAtOnce {
		r := &s.removals[s.sent]
		list = append(list, xfer.Removal{Name: r.name, Depth: r.depth, Dir: r.dir, Stays: r.stays})
		s.sent++
	}
	return list
}

// removeListed removes what was listed and the sender has not spared, the contents of each directory before it. A directory that still has entries stays.
func (s *storing) removeListed() error {
	for i := len(s.removals) - 1; i >= 0; i-- {
		s.steps.Add(1)
		r := &s.removals[i]
		if r.stays || r.spared {
			continue
		}
		at := s.removalPath(i)
		switch info, err := s.dir.root.Lstat(at); {
		case absentError(err):
			continue
		case err != nil:
			return storageFailure("look for", r.name, err)
		case info.IsDir() != r.dir: // something else has the name now
			continue
		}
		if err := s.dir.root.Remove(at); err != nil && !absentError(err) && (!r.dir || s.isEmpty(at)) {
			return storageFailure("remove", r.name, err)
		}
	}
	return nil
}

// removalPath returns the path of a removal, below the root of the Dir.
func (s *storing) removalPath(i int) string {
	var names []string
	for ; i >= 0; i = s.removals[i].parent {
		names = append(names, s.removals[i].name)
	}
	names = append(names, s.name)
	slices.Reverse(names)
	return filepath.Join(names...)
}

// isEmpty reports whether a directory has no entries.
func (s *storing) isEmpty(at string) bool {
	f, err := s.dir.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	_, err = f.ReadDir(1)
	return err == io.EOF //nolint:errorlint // ReadDir returns it as it is
}

// eachListed calls do for each entry of a directory of the receiver.
func (s *storing) eachListed(at string, do func(fs.DirEntry) error) error {
	dir, err := s.dir.root.OpenRoot(at)
	if err != nil {
		return err
	}
	return errors.Join(s.eachName(dir, do), dir.Close())
}
