package tree

import (
	"encoding/binary"
	"io/fs"
	"iter"
	"path"
	"slices"
	"sort"
	"strconv"
	"time"
)

// A manifest is a header and records, the last of which ends it. "uvarint" is a number in the form of package encoding/binary; other numbers
// are little-endian.
//
//	header, 8 bytes
//	 0  "cnxt"
//	 4  version, 1
//	 5  0, 0, 0
//
//	record of an entry
//	    kind, 1 byte            1 directory, 2 file, 3 symbolic link, 4 hard link
//	    depth, uvarint          0 for the root, which is the first entry and a directory; otherwise the entry
//	                            belongs to the last directory before it with a depth one less
//	    length, uvarint         of the name
//	    name
//	    known fields, 1 byte    bit 0: mode, bit 1: time, bit 2: the file is sparse
//	    mode, uvarint           if known: permission bits
//	    time, int64             if known: ns since 1970
//	    size, uvarint           of a file
//	    length, uvarint         of a symbolic link's target, and
//	    target
//	    entry, uvarint          of a hard link: the number of an earlier file; the root has number 0
//
//	record of an extent, 5: a part of the sparse file before it that has data
//	    hole, uvarint           bytes between the part before and this one
//	    length, uvarint         at least 1
//
//	record of the end, 0
//	    entries, uvarint
//	    data, uvarint           bytes that follow the manifest
//
// The names of one directory's entries ascend, byte by byte. The data of a file that is not sparse is all of it.
const (
	magic     = "cnxt"
	version   = 1
	headerLen = 8

	recordEnd    = 0
	recordExtent = 5

	knowsMode   = 1 << 0
	knowsTime   = 1 << 1
	knowsSparse = 1 << 2
	knowsAll    = knowsMode | knowsTime | knowsSparse

	maxName   = 255  // bytes of a name
	maxTarget = 4095 // bytes of a symbolic link's target
	maxRecord = 8 << 10
)

// Kind is the kind of an entry. Its number is part of the wire format.
type Kind uint8

// The kinds.
const (
	Directory Kind = 1 + iota
	File
	Symlink
	HardLink // a further name of a file of the same tree
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case Directory:
		return "directory"
	case File:
		return "file"
	case Symlink:
		return "symbolic link"
	case HardLink:
		return "hard link"
	}
	return "kind " + strconv.Itoa(int(k))
}

// Extent is a part of a sparse file that has data.
type Extent struct{ Offset, Length int64 }

// Entry is an entry of a tree.
type Entry struct {
	Name  string // the last element of its path; "" for the root
	Kind  Kind
	Depth int
	// Mode has permission bits, of directories and files, if HasMode.
	Mode    fs.FileMode
	HasMode bool
	ModTime time.Time // of directories and files, of the years 1678 to 2261; zero: not known
	Size    int64     // of a file, with its holes
	// Sparse files have data in Extents only, which ascend and do not overlap; other files have data everywhere.
	Sparse  bool
	Extents []Extent
	Target  string // of a symbolic link
	Link    int    // the number of the file that a hard link is a further name of

	parent int // the number of its directory; the root is its own
}

// data returns the number of bytes of the entry that cross.
func (e *Entry) data() int64 {
	if e.Kind != File || !e.Sparse {
		return e.Size
	}
	var n int64
	for _, x := range e.Extents {
		n += x.Length
	}
	return n
}

// Manifest lists a tree, its root first and each directory before its contents.
type Manifest struct {
	Entries []Entry
	Data    int64 // bytes of the files that cross: all but holes
}

// Path returns the path of an entry below the root, with slashes; "." for the root.
func (m *Manifest) Path(i int) string {
	if i == 0 {
		return "."
	}
	var names []string
	for ; i != 0; i = m.Entries[i].parent {
		names = append(names, m.Entries[i].Name)
	}
	slices.Reverse(names)
	return path.Join(names...)
}

// All returns the entries with their paths, in order. The paths are those of Path.
func (m *Manifest) All() iter.Seq2[string, *Entry] {
	return func(yield func(string, *Entry) bool) {
		var above []string // the path of the last directory of each depth
		for i := range m.Entries {
			e := &m.Entries[i]
			p := "."
			if i > 0 {
				p = path.Join(above[e.Depth-1], e.Name)
			}
			if e.Kind == Directory {
				above = append(above[:e.Depth], p)
			}
			if !yield(p, e) {
				return
			}
		}
	}
}

// after returns the number of the first entry behind i that is not below it.
func (m *Manifest) after(i int) int {
	depth := m.Entries[i].Depth
	for i++; i < len(m.Entries) && m.Entries[i].Depth > depth; i++ {
	}
	return i
}

// appendManifest appends the encoding of m to b.
func appendManifest(b []byte, m *Manifest) []byte {
	b = append(b, magic...)
	b = append(b, version, 0, 0, 0)
	for i := range m.Entries {
		b = appendEntry(b, &m.Entries[i])
	}
	b = append(b, recordEnd)
	b = binary.AppendUvarint(b, uint64(len(m.Entries)))
	return binary.AppendUvarint(b, uint64(m.Data))
}

// appendEntry appends the records of an entry to b.
func appendEntry(b []byte, e *Entry) []byte {
	b = append(b, byte(e.Kind))
	b = binary.AppendUvarint(b, uint64(e.Depth))
	b = appendText(b, e.Name)
	var known byte
	if e.HasMode {
		known |= knowsMode
	}
	if !e.ModTime.IsZero() {
		known |= knowsTime
	}
	if e.Sparse {
		known |= knowsSparse
	}
	b = append(b, known)
	if e.HasMode {
		b = binary.AppendUvarint(b, uint64(e.Mode.Perm()))
	}
	if !e.ModTime.IsZero() {
		b = binary.LittleEndian.AppendUint64(b, uint64(e.ModTime.UnixNano()))
	}
	switch e.Kind {
	case File:
		b = binary.AppendUvarint(b, uint64(e.Size))
	case Symlink:
		b = appendText(b, e.Target)
	case HardLink:
		b = binary.AppendUvarint(b, uint64(e.Link))
	default: // a directory has no more
	}
	var end int64
	for _, x := range e.Extents {
		b = append(b, recordExtent)
		b = binary.AppendUvarint(b, uint64(x.Offset-end))
		b = binary.AppendUvarint(b, uint64(x.Length))
		end = x.Offset + x.Length
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// cursor goes through the data of a manifest's files in the order in which it crosses.
type cursor struct {
	m      *Manifest
	entry  int
	extent int
	done   int64 // bytes of the extent, or of a file that is not sparse
	pos    int64 // bytes that were passed
}

// next returns the next bytes: the entry, the offset in its file, and how many there are in one piece. It returns false at the end.
func (c *cursor) next() (entry int, offset, length int64, ok bool) {
	for ; c.entry < len(c.m.Entries); c.entry, c.extent, c.done = c.entry+1, 0, 0 {
		e := &c.m.Entries[c.entry]
		switch {
		case e.Kind != File:
		case !e.Sparse && c.done < e.Size:
			return c.entry, c.done, e.Size - c.done, true
		case e.Sparse:
			for ; c.extent < len(e.Extents); c.extent, c.done = c.extent+1, 0 {
				if x := e.Extents[c.extent]; c.done < x.Length {
					return c.entry, x.Offset + c.done, x.Length - c.done, true
				}
			}
		}
	}
	return 0, 0, 0, false
}

// advance passes n of the bytes that next has returned.
func (c *cursor) advance(n int64) { c.done, c.pos = c.done+n, c.pos+n }

// skip passes the bytes before an offset of the data.
func (c *cursor) skip(to int64) {
	for c.pos < to {
		_, _, length, ok := c.next()
		if !ok {
			return
		}
		c.advance(min(length, to-c.pos))
	}
}

// starts returns the offset of each entry's data.
func (m *Manifest) starts() []int64 {
	list, at := make([]int64, len(m.Entries)), int64(0)
	for i := range m.Entries {
		list[i] = at
		if m.Entries[i].Kind == File {
			at += m.Entries[i].data()
		}
	}
	return list
}

// seek makes a cursor at an offset of the data. starts are those of the manifest.
func (m *Manifest) seek(starts []int64, to int64) cursor {
	i := sort.Search(len(starts), func(i int) bool { return starts[i] > to })
	c := cursor{m: m, entry: max(i-1, 0)}
	c.pos = starts[c.entry]
	c.skip(to)
	return c
}
