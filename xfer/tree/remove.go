package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
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
	stays  bool  // it is in the list because of the entries below it
	spared bool  // the sender does not want that it goes
	way    bool  // it is where the sender has an entry of another kind, or below such a one
	gone   bool  // it has been removed
	stamp  stamp // unless it stays
}

// removalCost is the number of bytes that a removal counts for, beside those of its name.
const removalCost = 144

// listRemovals lists what the sender does not have, each directory before its contents.
func (s *storing) listRemovals() error {
	if !s.deletes() {
		return nil
	}
	next := s.m.siblings()
	above := []int{} // for each depth the directory that is being listed, in the list, or -1: it is not there yet
	w := walk{root: s.dir.root}
	err := s.meet(func(i int, at string, old fs.FileInfo) error {
		if err := s.step(); err != nil || old == nil || i == 0 && !old.IsDir() {
			return err
		}
		e := &s.m.Entries[i]
		var err error
		if (e.Kind == Directory) != old.IsDir() {
			err = s.listConflict(&w, i, at, old.IsDir(), &above)
		} else if old.IsDir() {
			above = append(above[:e.Depth], -1)
			err = s.listExtra(&w, i, at, s.m.names(i, next), &above)
		}
		if err != nil {
			return described("list", s.m.Path(i), err)
		}
		return nil
	})
	return errors.Join(err, w.leave())
}

// listConflict lists an entry, a directory or not, that stands in the place of an entry of another kind.
func (s *storing) listConflict(w *walk, i int, at string, isDir bool, above *[]int) error {
	if p := s.m.Path(i); s.excludes(p, isDir) {
		return excludedConflict(p)
	}
	dir, dev, err := w.open(filepath.Dir(at))
	if err != nil {
		return err
	}
	e := &s.m.Entries[i]
	parent, err := s.context(e.parent, above)
	if err != nil {
		return err
	}
	return s.remove(dir, dev, s.m.Path(i), removal{name: e.Name, depth: e.Depth - 1, parent: parent, way: true})
}

// listExtra lists the entries of directory i that the sender does not have. It refuses a directory in which the file system finds an entry by a name that the
// entry does not have, because of its case, say: the list would have a file that the transfer keeps.
func (s *storing) listExtra(w *walk, i int, at string, names []string, above *[]int) error {
	dir, dev, err := w.open(at)
	if err != nil {
		return err
	}
	met := make([]bool, len(names))
	err = eachName(dir, s.step, func(d fs.DirEntry) error {
		if n, known := slices.BinarySearch(names, d.Name()); known {
			met[n] = true
			return nil
		}
		p := path.Join(s.m.Path(i), d.Name())
		if s.protects(d.Name()) || s.excludes(p, d.IsDir()) {
			return nil
		}
		parent, err := s.context(i, above)
		if err != nil {
			return err
		}
		return s.remove(dir, dev, p, removal{name: d.Name(), depth: s.m.Entries[i].Depth, parent: parent})
	})
	if err != nil {
		return err
	}
	for n, name := range names {
		if met[n] {
			continue
		}
		if err := s.step(); err != nil {
			return err
		}
		if _, err := dir.Lstat(name); err == nil {
			return failf(xfer.CodeName, "%s: the receiver's file system takes the name for that of another entry, so that nothing can be removed there; leave --delete out", quote(name))
		} else if !absentError(err) {
			return err
		}
	}
	return nil
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

// remove lists an entry of an open directory, at a path below the tree, with everything below it. What is mounted there stays, because it is no part of the tree, and so does what the
// patterns exclude. dev is the file system of the directory.
func (s *storing) remove(dir *os.Root, dev uint64, at string, r removal) error {
	if r.depth >= s.dir.opt.Limits.Depth {
		return failf(xfer.CodeTooLarge, "%s, which the sender does not have, is below %d directories, the limit of this receiver", quote(r.name), r.depth)
	}
	info, err := dir.Lstat(r.name)
	if absentError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	r.dir, r.stamp = info.IsDir(), stampOf(info)
	if r.dir && r.stamp.id.dev != dev { // other entries may have another number on an overlay
		return s.stays(&r)
	}
	n := len(s.removals)
	if err := s.listed(r); err != nil || !r.dir {
		return err
	}
	sub, _, err := enter(dir, r.name)
	if err != nil {
		return err
	}
	err = eachName(sub, s.step, func(d fs.DirEntry) error {
		below := removal{name: d.Name(), depth: r.depth + 1, parent: n, way: r.way}
		p := path.Join(at, d.Name())
		if s.protects(d.Name()) || s.excludes(p, d.IsDir()) {
			return s.stays(&below)
		}
		return s.remove(sub, dev, p, below)
	})
	return errors.Join(err, sub.Close())
}

// stays refuses the tree if an entry that does not go is where the sender has something else.
func (s *storing) stays(r *removal) error {
	if !r.way {
		return nil
	}
	return failf(xfer.CodeExists, "%s, which this receiver does not remove, is where the sender has no directory", quote(s.pathInTree(r)))
}

// stampOf returns the state of an entry.
func stampOf(info fs.FileInfo) stamp {
	id, _ := identityOf(info)
	return stamp{info.Size(), info.ModTime(), id}
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

// removeListed removes what was listed and the sender has not spared, the contents of each directory before it: first, with way, the entries that are where the sender has others,
// and after those of the sender have their names, the rest. Of the rest, a directory that still has entries or is in use stays. The end of the transfer ends the removal of the rest only.
func (s *storing) removeListed(way bool) error {
	if way {
		for i := range s.removals {
			if r := &s.removals[i]; r.way && r.spared {
				return failf(xfer.CodeExists, "%s, which the sender does not remove, is where the sender has an entry of another kind", quote(s.pathInTree(r)))
			}
		}
	}
	w := walk{root: s.dir.root}
	for i := len(s.removals) - 1; i >= 0; i-- {
		r := &s.removals[i]
		if r.stays || r.spared || r.way != way {
			continue
		}
		s.steps.Add(1)
		var err error
		if !way {
			err = s.over()
		}
		if err == nil {
			err = s.removeOne(&w, r)
		}
		if err != nil {
			return errors.Join(described("remove", s.pathInTree(r), err), w.leave())
		}
	}
	return w.leave()
}

// removeOne removes an entry, unless it is another one now.
func (s *storing) removeOne(w *walk, r *removal) error {
	dir, _, err := w.open(filepath.Join(s.name, filepath.Dir(s.pathInTree(r))))
	if absentError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := dir.Lstat(r.name)
	if absentError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if now := stampOf(info); info.IsDir() != r.dir || now.id != r.stamp.id || !r.dir && (now.size != r.stamp.size || !now.time.Equal(r.stamp.time)) {
		return s.left(r)
	}
	switch err = dir.Remove(r.name); {
	case err == nil:
		r.gone = true
		return nil
	case absentError(err):
		return nil
	case errors.Is(err, syscall.EBUSY), r.dir && !isEmpty(dir, r.name):
		return s.left(r)
	}
	return err
}

// left fails if an entry that is left is where the sender has another one.
func (s *storing) left(r *removal) error {
	if !r.way {
		return nil
	}
	return failf(xfer.CodeExists, "%s has changed or is in use at the receiver, where the sender has an entry of another kind; transfer the tree again", quote(s.pathInTree(r)))
}

// withRemoved adds to an error how many entries were removed before it.
func (s *storing) withRemoved(err error) error {
	n := 0
	for i := range s.removals {
		if s.removals[i].gone {
			n++
		}
	}
	if n == 0 {
		return err
	}
	return fmt.Errorf("%w; %d entries of the receiver are removed", err, n)
}

// pathInTree returns the path of a removal, below the tree.
func (s *storing) pathInTree(r *removal) string {
	names := []string{r.name}
	for i := r.parent; i >= 0; i = s.removals[i].parent {
		names = append(names, s.removals[i].name)
	}
	slices.Reverse(names)
	return filepath.Join(names...)
}

// isEmpty reports whether a directory, which is in an open one, has no entries.
func isEmpty(dir *os.Root, name string) bool {
	sub, _, err := enter(dir, name)
	if err != nil {
		return false
	}
	defer func() { _ = sub.Close() }()
	f, err := sub.Open(".")
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	_, err = f.ReadDir(1)
	return errors.Is(err, io.EOF)
}

// walk opens directories of the receiver and follows no links. It keeps the one that was used last.
type walk struct {
	root *os.Root
	dir  *os.Root // the directory at; nil: none is open
	at   string
	dev  uint64 // the file system of dir
}

// open returns a directory, which is the walk's, and its file system.
func (w *walk) open(at string) (*os.Root, uint64, error) {
	if w.dir != nil && w.at == at {
		return w.dir, w.dev, nil
	}
	const slash = string(filepath.Separator)
	rest, below := strings.CutPrefix(at, w.at+slash)
	if w.dir == nil || !below {
		rest = at
		if err := w.leave(); err != nil {
			return nil, 0, err
		}
	}
	for name := range strings.SplitSeq(rest, slash) {
		from := w.dir
		if from == nil {
			from = w.root
		}
		sub, info, err := enter(from, name)
		if err != nil {
			return nil, 0, errors.Join(err, w.leave())
		}
		if err := w.leave(); err != nil {
			return nil, 0, errors.Join(err, sub.Close())
		}
		id, _ := identityOf(info)
		w.dir, w.dev = sub, id.dev
	}
	w.at = at
	return w.dir, w.dev, nil
}

// leave closes the directory that was used last.
func (w *walk) leave() error {
	dir := w.dir
	w.dir, w.at = nil, ""
	return closeRoot(dir)
}
