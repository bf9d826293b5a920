package tree

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// mostActive is the largest number of files that Active returns. It is the number of lanes of a transfer, of which each reads one file at a time.
	mostActive = 8
	// activeTime is the time after which a file that is not read to its end is not active any more.
	activeTime = time.Second
)

// Place is a file of a tree that a transfer reads.
type Place struct {
	Path       string // below the root
	Done, Size int64  // bytes before the place of the latest reading, and of the whole file, with its holes
}

// reading has the places at which a transfer reads a tree. Its methods are safe for concurrent use.
type reading struct {
	mu sync.Mutex
	// +checklocks:mu
	files [mostActive]readPlace
	// +checklocks:mu
	n int // used elements of files
	// +checklocks:mu
	latest int // index of the file that was read last
}

// readPlace is the place of the latest reading of a file.
type readPlace struct {
	entry int // its number
	done  int64
	at    time.Time
}

// set notes that the bytes before done of a file have been read. The file takes the place of the one that was read longest ago, if there is no other place.
func (r *reading) set(entry int, done int64) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.files[:r.n], func(f readPlace) bool { return f.entry == entry })
	switch {
	case i >= 0:
	case r.n < mostActive:
		i = r.n
		r.n++
	default:
		i = 0
		for k := range r.files {
			if r.files[k].at.Before(r.files[i].at) {
				i = k
			}
		}
	}
	r.files[i] = readPlace{entry, done, now}
	r.latest = i
}

// Reading returns the file that a transfer has read last. ok is false if no data of a file was read yet. It may be called at any time, while a
// transfer reads the tree too.
func (t *Tree) Reading() (p Place, ok bool) {
	r := &t.reading
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == 0 {
		return Place{}, false
	}
	return t.place(r.files[r.latest]), true
}

// Active returns the files that a transfer reads, at most 8, in the order of the tree: those that were read in the last second and not to their
// end, and the one that was read last. A transfer of several lanes reads several. It may be called at any time, while a transfer reads the tree too.
func (t *Tree) Active() []Place {
	now := time.Now()
	r := &t.reading
	r.mu.Lock()
	defer r.mu.Unlock()
	var active []readPlace
	for i, f := range r.files[:r.n] {
		if i == r.latest || now.Sub(f.at) < activeTime && f.done < t.manifest.Entries[f.entry].Size {
			active = append(active, f)
		}
	}
	slices.SortFunc(active, func(a, b readPlace) int { return cmp.Compare(a.entry, b.entry) })
	places := make([]Place, len(active))
	for i, f := range active {
		places[i] = t.place(f)
	}
	return places
}

// place returns the place of a file that was read.
func (t *Tree) place(f readPlace) Place {
	size := t.manifest.Entries[f.entry].Size
	return Place{Path: t.manifest.Path(f.entry), Done: min(f.done, size), Size: size}
}
