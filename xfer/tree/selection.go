package tree

import (
	"cmp"
	"slices"

	"cinnabar/xfer"
)

// selection is the part of a tree that a Dir stores: the entries that its patterns do not exclude. The sender's manifest and the data that cross are those of the whole tree. If a file is
// excluded and one of its hard links is not, the first such link takes the file's place, as in a scan with the same patterns.
type selection struct {
	all    *Manifest // of the whole tree
	stored []int32   // for each entry of all: the number of the entry that is stored of it; -1: none
	source []int32   // for each entry that is stored: the number in all of the entry that has its data
	order  []int32   // the entries that are stored, in the order of their data
}

// leaveOut makes the manifest that of the entries that the patterns do not exclude.
func (s *storing) leaveOut() error {
	all := s.m
	sel := &selection{all: all, stored: make([]int32, len(all.Entries))}
	kept, i, below := &Manifest{}, -1, 0 // below is the depth of the excluded directory of the entries that come; 0: there is none
	moved := false
	for p, e := range all.All() {
		if err := s.step(); err != nil {
			return err
		}
		i++
		sel.stored[i] = -1
		if below > 0 && e.Depth > below {
			continue
		}
		if below = 0; i > 0 && s.dir.opt.Patterns.Excludes(p, e.Kind == Directory) {
			if e.Kind == Directory {
				below = e.Depth
			}
			continue
		}
		if err := s.dir.take(s, entryCost); err != nil {
			return err
		}
		n, from := int32(len(kept.Entries)), i //nolint:gosec // a manifest of so many entries does not fit into memory
		k := *e
		if e.Kind == HardLink {
			if first := sel.stored[e.Link]; first >= 0 {
				k.Link = int(first)
			} else {
				k = all.Entries[e.Link]
				k.Name, k.Depth = e.Name, e.Depth
				sel.stored[e.Link], from, moved = n, e.Link, true
			}
		}
		k.parent = max(int(sel.stored[e.parent]), 0) // the root is its own
		sel.stored[i] = n
		sel.source = append(sel.source, int32(from)) //nolint:gosec // see above
		kept.Entries = append(kept.Entries, k)
		kept.Data += k.data()
	}
	if moved {
		starts := all.starts()
		sel.order = make([]int32, len(kept.Entries))
		for n := range sel.order {
			sel.order[n] = int32(n) //nolint:gosec // see above
		}
		slices.SortStableFunc(sel.order, func(a, b int32) int { return cmp.Compare(starts[sel.source[a]], starts[sel.source[b]]) })
	}
	s.m, s.selection = kept, sel
	return nil
}

// entryOf returns the number of the entry that is stored of entry i of the sender; -1: there is none.
func (s *storing) entryOf(i int) int {
	if s.selection == nil {
		return i
	}
	return int(s.selection.stored[i])
}

// whole returns the manifest of the sender.
func (s *storing) whole() *Manifest {
	if s.selection == nil {
		return s.m
	}
	return s.selection.all
}

// starts returns the offset of each entry's data among those of the sender.
func (s *storing) starts() []int64 {
	if s.selection == nil {
		return s.m.starts()
	}
	all, list := s.selection.all.starts(), make([]int64, len(s.m.Entries))
	for i, from := range s.selection.source {
		list[i] = all[from]
	}
	return list
}

// ordered returns the entry that is the n-th in the order of the data.
func (s *storing) ordered(n int) int {
	if s.selection == nil || s.selection.order == nil {
		return n
	}
	return int(s.selection.order[n])
}

// excludes reports whether the patterns exclude an entry of the receiver at a path below the tree, of which the directory is not excluded.
func (s *storing) excludes(at string, dir bool) bool {
	return s.dir.opt.Patterns.Excludes(at, dir)
}

// excludedConflict returns the error for an excluded entry of the receiver that is where the sender has an entry of another kind.
func excludedConflict(at string) error {
	return failf(xfer.CodeExists, "%s, which the patterns of this receiver exclude, is where the sender has an entry of another kind", quote(at))
}
