package tree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"cinnabar/xfer"
)

// Limits bound the manifests that a receiver takes and a sender makes. A zero stands for the default.
type Limits struct {
	Entries int // entries of one tree, and parts of its sparse files; default 524,288
	Depth   int // directories below one another; default 128
	Path    int // bytes of a path below the tree's root; default 4,000
	// Memory bounds the memory of all manifests that a Dir has at once, and that of the one manifest of Receive, in bytes; default
	// 256 MiB. An entry counts as 320 bytes, a part of a sparse file as 40, and the bytes of names and targets count too.
	Memory int64
}

const (
	defaultEntries = 1 << 19
	defaultDepth   = 128
	defaultPath    = 4000
	defaultMemory  = 256 << 20

	// The costs have room for the growth of slices.
	entryCost  = 320
	extentCost = 40
)

// filled returns l with the defaults in the place of zeros.
func (l Limits) filled() Limits {
	if l.Entries <= 0 {
		l.Entries = defaultEntries
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	if l.Path <= 0 {
		l.Path = defaultPath
	}
	if l.Memory <= 0 {
		l.Memory = defaultMemory
	}
	return l
}

// failure is an error with a class, of which the text does not speak again.
type failure struct {
	code xfer.Code
	err  error
}

func (f *failure) Error() string   { return f.err.Error() }
func (f *failure) Unwrap() []error { return []error{f.code, f.err} }

// failf makes an error of a class.
func failf(code xfer.Code, format string, args ...any) error {
	return &failure{code, fmt.Errorf(format, args...)}
}

// parser reads a manifest that comes in pieces. It keeps one record at most that is not complete.
type parser struct {
	limits Limits
	take   func(cost int64) error // counts memory; nil: not counted
	m      *Manifest

	rest    []byte // the beginning of a record
	started bool
	done    bool
	parts   int // entries and extents

	dirs  []int // the number of the last directory of each depth
	last  []string
	paths []int // bytes of the path of the last directory of each depth
	end   int64 // of the last extent of the last entry
}

func newParser(l Limits, take func(int64) error) *parser {
	return &parser{limits: l.filled(), take: take, m: &Manifest{}}
}

// feed reads b and returns how many of its bytes belong to the manifest: all, unless the manifest is complete then.
func (p *parser) feed(b []byte) (n int, err error) {
	for !p.done && n < len(b) {
		src, held := b[n:], len(p.rest)
		if held > 0 {
			p.rest = append(p.rest, src[:min(len(src), maxRecord-held)]...)
			src = p.rest
		}
		used, err := p.record(src[:min(len(src), maxRecord)])
		switch {
		case err != nil:
			return n, err
		case used > 0:
			n += used - held
			p.rest = p.rest[:0]
		case len(src) >= maxRecord:
			return n, failf(xfer.CodeProtocol, "a record of the manifest has more than %d bytes", maxRecord)
		default:
			if held == 0 {
				p.rest = append(p.rest, src...)
			}
			return len(b), nil
		}
	}
	return n, nil
}

// reader reads the fields of a record. After the end of the bytes or a malformed number it returns zeros.
type reader struct {
	b     []byte
	at    int
	short bool // there are not enough bytes
	bad   bool // a number is malformed
}

func (r *reader) bytes(n int) []byte {
	if r.short || r.bad || n > len(r.b)-r.at {
		r.short = true
		return nil
	}
	b := r.b[r.at : r.at+n]
	r.at += n
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	if r.short || r.bad {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	if n <= 0 {
		r.short, r.bad = n == 0, n < 0
		return 0
	}
	r.at += n
	return v
}

// text reads a text of most bytes at most, and its length.
func (r *reader) text(most int) (string, bool) {
	n := r.uvarint()
	if n > uint64(most) {
		return "", false
	}
	return string(r.bytes(int(n))), true
}

// record reads one record at the beginning of b and returns its length, 0 if it is not complete.
func (p *parser) record(b []byte) (used int, err error) {
	r := &reader{b: b}
	var apply func() error
	switch {
	case !p.started:
		head := r.bytes(headerLen)
		apply = func() error { return p.header(head) }
	case b[0] == recordEnd:
		r.at++
		entries, data := r.uvarint(), r.uvarint()
		apply = func() error { return p.finish(entries, data) }
	case b[0] == recordExtent:
		r.at++
		hole, length := r.uvarint(), r.uvarint()
		apply = func() error { return p.extent(hole, length) }
	default:
		e, err := readEntry(r)
		if err != nil {
			return 0, err
		}
		apply = func() error { return p.entry(e) }
	}
	switch {
	case r.bad:
		return 0, failf(xfer.CodeProtocol, "a number of the manifest has more than 64 bits")
	case r.short:
		return 0, nil
	}
	return r.at, apply()
}

func (p *parser) header(b []byte) error {
	if !bytes.Equal(b[:len(magic)], []byte(magic)) || b[4] != version {
		return failf(xfer.CodeUnsupported, "the manifest is not of version %d", version)
	}
	p.started = true
	return nil
}

// wireEntry is a record of an entry as it was read, with numbers that were not checked.
type wireEntry struct {
	Entry
	depth, size, link uint64
}

// readEntry reads the record of an entry. Its lengths are checked before the bytes are there.
func readEntry(r *reader) (w wireEntry, err error) {
	kind := r.byte()
	w.Kind = Kind(kind)
	if w.Kind < Directory || w.Kind > HardLink {
		return w, failf(xfer.CodeProtocol, "the manifest has a record of kind %d", kind)
	}
	w.depth = r.uvarint()
	var ok bool
	if w.Name, ok = r.text(maxName); !ok {
		return w, failf(xfer.CodeName, "the manifest has a name of more than %d bytes", maxName)
	}
	known := r.byte()
	if known&^knowsAll != 0 || known&knowsSparse != 0 && w.Kind != File {
		return w, failf(xfer.CodeProtocol, "%s %s has fields %#x, which are not known here", w.Kind, quote(w.Name), known)
	}
	if known&knowsMode != 0 {
		w.Mode, w.HasMode = fs.FileMode(r.uvarint())&fs.ModePerm, true
	}
	if known&knowsTime != 0 {
		if b := r.bytes(8); b != nil {
			w.ModTime = time.Unix(0, int64(binary.LittleEndian.Uint64(b)))
		}
	}
	w.Sparse = known&knowsSparse != 0
	switch w.Kind {
	case File:
		w.size = r.uvarint()
	case Symlink:
		if w.Target, ok = r.text(maxTarget); !ok {
			return w, failf(xfer.CodeName, "the target of symbolic link %s has more than %d bytes", quote(w.Name), maxTarget)
		}
	case HardLink:
		w.link = r.uvarint()
	default: // a directory has no more
	}
	return w, nil
}

// entry adds a whole entry.
func (p *parser) entry(w wireEntry) error {
	e := w.Entry
	n := len(p.m.Entries)
	switch {
	case n == 0 && (w.depth != 0 || e.Kind != Directory || e.Name != ""):
		return failf(xfer.CodeProtocol, "the manifest does not begin with the root")
	case n > 0 && (w.depth == 0 || w.depth > uint64(len(p.dirs))):
		return failf(xfer.CodeProtocol, "%s %s has depth %d, and no directory of the depth before it", e.Kind, quote(e.Name), w.depth)
	case w.depth > uint64(p.limits.Depth):
		return failf(xfer.CodeTooLarge, "%s is below %d directories; %d are the limit of this receiver", quote(e.Name), w.depth, p.limits.Depth)
	case w.size > math.MaxInt64:
		return failf(xfer.CodeProtocol, "file %s is said to have %d bytes", quote(e.Name), w.size)
	}
	e.Depth, e.Size = int(w.depth), int64(w.size)
	if err := p.place(&e); err != nil {
		return err
	}
	if e.Kind == HardLink {
		if w.link >= uint64(n) || p.m.Entries[w.link].Kind != File {
			return failf(xfer.CodeProtocol, "hard link %s is said to be entry %d, which is no file before it", quote(e.Name), w.link)
		}
		e.Link = int(w.link)
	}
	if err := p.count(entryCost + int64(len(e.Name)+len(e.Target))); err != nil {
		return err
	}
	if !e.Sparse {
		if err := p.addData(e.Size); err != nil {
			return err
		}
	}
	p.end = 0
	p.m.Entries = append(p.m.Entries, e)
	return nil
}

// place checks the name and the place of an entry, and makes it the last one of its depth.
func (p *parser) place(e *Entry) error {
	if len(p.m.Entries) == 0 {
		p.dirs, p.last, p.paths = []int{0}, []string{""}, []int{0}
		return nil
	}
	if err := checkElement(e.Name); err != nil {
		return err
	}
	p.last = p.last[:min(len(p.last), e.Depth+1)]
	p.dirs, p.paths = p.dirs[:e.Depth], p.paths[:e.Depth]
	e.parent = p.dirs[e.Depth-1]
	if len(p.last) > e.Depth {
		if e.Name <= p.last[e.Depth] {
			return failf(xfer.CodeProtocol, "%s comes after %s in the manifest; names of one directory ascend", quote(e.Name), quote(p.last[e.Depth]))
		}
		p.last[e.Depth] = e.Name
	} else {
		p.last = append(p.last, e.Name)
	}
	length := p.paths[e.Depth-1] + 1 + len(e.Name)
	if length-1 > p.limits.Path {
		return failf(xfer.CodeTooLarge, "the path of %s has %d bytes; %d are the limit of this receiver", quote(e.Name), length-1, p.limits.Path)
	}
	if e.Kind == Directory {
		p.dirs, p.paths = append(p.dirs, len(p.m.Entries)), append(p.paths, length)
	}
	return nil
}

// checkElement refuses names that no path can have as an element.
func checkElement(name string) error {
	switch {
	case name == "":
		return failf(xfer.CodeName, "the manifest has an empty name")
	case name == "." || name == "..":
		return failf(xfer.CodeName, "the manifest has the name %q", name)
	case len(name) > maxName:
		return failf(xfer.CodeName, "the name %s has %d bytes, the most is %d", quote(name), len(name), maxName)
	case strings.ContainsAny(name, "/\x00"):
		return failf(xfer.CodeName, "the name %s has a slash or a NUL inside", quote(name))
	}
	return nil
}

// extent adds a part of the last file.
func (p *parser) extent(hole, length uint64) error {
	n := len(p.m.Entries)
	if n == 0 || !p.m.Entries[n-1].Sparse {
		return failf(xfer.CodeProtocol, "the manifest has an extent of no sparse file")
	}
	e := &p.m.Entries[n-1]
	left := uint64(e.Size - p.end)
	if length == 0 || hole > left || length > left-hole {
		return failf(xfer.CodeProtocol, "the sparse file %s has an extent beyond its end, or without bytes", quote(e.Name))
	}
	if err := p.count(extentCost); err != nil {
		return err
	}
	if err := p.addData(int64(length)); err != nil {
		return err
	}
	x := Extent{p.end + int64(hole), int64(length)}
	e.Extents = append(e.Extents, x)
	p.end = x.Offset + x.Length
	return nil
}

// count counts an entry or an extent, and its memory.
func (p *parser) count(cost int64) error {
	if p.parts++; p.parts > p.limits.Entries {
		return failf(xfer.CodeTooLarge, "the tree has more than %d entries and parts of sparse files, the limit of this receiver; send parts of it, or raise Limits.Entries", p.limits.Entries)
	}
	if p.take == nil {
		return nil
	}
	return p.take(cost)
}

func (p *parser) addData(n int64) error {
	if n > math.MaxInt64-p.m.Data {
		return failf(xfer.CodeProtocol, "the manifest announces more than %d bytes", int64(math.MaxInt64))
	}
	p.m.Data += n
	return nil
}

// finish checks the record of the end.
func (p *parser) finish(entries, data uint64) error {
	if entries == 0 || entries != uint64(len(p.m.Entries)) || data != uint64(p.m.Data) {
		return failf(xfer.CodeProtocol, "the manifest ends after %d entries with %d bytes; it says %d and %d", len(p.m.Entries), p.m.Data, entries, data)
	}
	p.done = true
	return nil
}

// quote returns a name for messages, without its middle if it is long.
func quote(name string) string {
	const most = 64
	if r := []rune(name); len(r) > most {
		name = string(r[:most/2]) + "…" + string(r[len(r)-most/2:])
	}
	return strconv.Quote(name)
}
