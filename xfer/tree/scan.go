package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"cinnabar/xfer"
)

// ScanOptions are the rules by which a tree is listed.
type ScanOptions struct {
	Patterns *Patterns // entries that stay behind; nil: none. A directory that is excluded is not looked into
	Preserve bool      // modes and times go along
	Limits   Limits    // Memory is not used
}

// Tree is a tree to be sent. It is not safe for concurrent use, except for Reading, and one transfer at a time may use its Source.
type Tree struct {
	name     string
	fsys     fs.FS
	root     *rootFS // nil, unless ScanDir has opened it
	manifest *Manifest
	stamps   []stamp // of the entries
	head     []byte  // the encoding of the manifest

	at      int64 // the next byte that a transfer reads
	next    cursor
	file    fs.File // of entry open
	open    int
	read    int64   // bytes that were read of file, if it has no ReadAt
	small   batch   // files that fit whole into the buffer of a read
	starts  []int64 // of the manifest; nil before they are needed
	reading reading
	opt     ScanOptions
}

// stamp is the state of a file at the time of the scan. A file that has another one when it is read has changed.
type stamp struct {
	size int64
	time time.Time
	id   identity
}

// identity is a file's place on its file system: zero if the system or the fs.FS has none.
type identity struct{ dev, ino uint64 }

// ScanDir lists the directory at path, without following links. The tree has the last element of the absolute path as its name.
// The caller closes the tree.
func ScanDir(ctx context.Context, dir string, opt ScanOptions) (*Tree, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return ScanRoot(ctx, root, filepath.Base(abs), opt)
}

// rootFS is os.Root as a file system. It keeps the directory open that was used last, because most entries are in the same directory as the one before. Its Open does not wait for the writer of a named pipe that has taken the place of a file. It is not
// safe for concurrent use.
type rootFS struct {
	root *os.Root
	sub  *os.Root // the directory at; nil: none is open
	at   string
}

// in returns the directory that has the entry at a path, and the entry's name there.
func (r *rootFS) in(name string) (*os.Root, string, error) {
	dir, base := path.Split(name)
	if dir == "" {
		return r.root, base, nil
	}
	if r.sub == nil || r.at != dir {
		from, rest := r.root, dir
		if below, ok := strings.CutPrefix(dir, r.at); ok && r.sub != nil { // r.at ends in a slash
			from, rest = r.sub, below
		}
		sub, err := from.OpenRoot(filepath.FromSlash(path.Clean(rest)))
		if err := errors.Join(err, r.leave()); err != nil {
			return nil, "", errors.Join(err, closeRoot(sub))
		}
		r.sub, r.at = sub, dir
	}
	return r.sub, base, nil
}

// closeRoot closes a directory, unless it is nil.
func closeRoot(r *os.Root) error {
	if r == nil {
		return nil
	}
	return r.Close()
}

// leave closes the directory that was used last.
func (r *rootFS) leave() error {
	if r.sub == nil {
		return nil
	}
	sub := r.sub
	r.sub = nil
	return sub.Close()
}

func (r *rootFS) close() error { return errors.Join(r.leave(), r.root.Close()) }

// openDir opens a directory, whose entries can then be named relative to its descriptor.
func (r *rootFS) openDir(name string) (*os.File, error) {
	dir, _, err := r.in(name + "/")
	if err != nil {
		return nil, err
	}
	return dir.Open(".")
}

// ReadDir implements [fs.ReadDirFS]. Several goroutines call Lstat for the entries, because a directory may have very many.
func (r *rootFS) ReadDir(name string) ([]fs.DirEntry, error) {
	dir, _, err := r.in(name + "/")
	if err != nil {
		return nil, err
	}
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	slices.Sort(names)
	entries, failed := make([]fs.DirEntry, len(names)), make([]error, len(names))
	share(len(names), min(smallWorkers, len(names)/fewSmall), func(i int) bool {
		info, err := dir.Lstat(names[i])
		switch {
		case err == nil:
			entries[i] = fs.FileInfoToDirEntry(info)
		case !errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
			failed[i] = err
		}
		return failed[i] == nil
	})
	if i := slices.IndexFunc(failed, func(err error) bool { return err != nil }); i >= 0 {
		return nil, failed[i]
	}
	return slices.DeleteFunc(entries, func(d fs.DirEntry) bool { return d == nil }), nil
}

func (r *rootFS) openFile(name string, flag int, mode fs.FileMode) (*os.File, error) {
	dir, base, err := r.in(name)
	if err != nil {
		return nil, err
	}
	return dir.OpenFile(base, flag, mode)
}

func (r *rootFS) Open(name string) (fs.File, error) {
	f, err := r.openFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err // and no interface with a nil *os.File in it
	}
	return f, nil
}

func (r *rootFS) Lstat(name string) (fs.FileInfo, error) {
	dir, base, err := r.in(name)
	if err != nil {
		return nil, err
	}
	return dir.Lstat(base)
}

// mkdir makes a directory.
func (r *rootFS) mkdir(name string, mode fs.FileMode) error {
	dir, base, err := r.in(name)
	if err != nil {
		return err
	}
	return dir.Mkdir(base, mode)
}

// symlink makes a symbolic link.
func (r *rootFS) symlink(target, name string) error {
	dir, base, err := r.in(name)
	if err != nil {
		return err
	}
	return dir.Symlink(target, base)
}

func (r *rootFS) chtimes(name string, t time.Time) error {
	dir, base, err := r.in(name)
	if err != nil {
		return err
	}
	return dir.Chtimes(base, time.Time{}, t)
}

func (r *rootFS) ReadLink(name string) (string, error) {
	dir, base, err := r.in(name)
	if err != nil {
		return "", err
	}
	return dir.Readlink(base)
}

// Scan lists a file system, which has the name at the receiver. Symbolic links need fs.ReadLinkFS; hard links and sparse files are
// found where the FileInfo and the files are those of package os (Linux, macOS; sparse files on Linux). The caller closes the tree, and
// fsys may be closed only after that.
func Scan(ctx context.Context, fsys fs.FS, name string, opt ScanOptions) (*Tree, error) {
	if err := xfer.CheckName(name); err != nil {
		return nil, fmt.Errorf("name of the tree: %w", err)
	}
	opt.Limits = opt.Limits.filled()
	s := &scan{ctx: ctx, fsys: fsys, opt: opt, links: map[identity]int{}, t: &Tree{name: name, fsys: fsys, manifest: &Manifest{}, open: -1, opt: opt}}
	info, err := fs.Stat(fsys, ".")
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is no directory", name)
	}
	if err := s.add(Entry{Kind: Directory}, info); err != nil {
		return nil, err
	}
	if err := s.dir(".", 0); err != nil {
		return nil, err
	}
	if err := s.refused.err("the tree cannot be sent"); err != nil {
		return nil, err
	}
	s.t.head = appendManifest(nil, s.t.manifest)
	s.t.next = cursor{m: s.t.manifest}
	return s.t, nil
}

// scan is one Scan.
type scan struct {
	ctx     context.Context
	fsys    fs.FS
	opt     ScanOptions
	t       *Tree
	links   map[identity]int // the number of the first name of each file with several
	refused RefusedError
	parts   int
}

// dir lists a directory, whose entry has the number parent.
func (s *scan) dir(at string, parent int) error {
	entries, err := fs.ReadDir(s.fsys, at) // sorted, byte by byte
	if err != nil {
		return err
	}
	depth := s.t.manifest.Entries[parent].Depth + 1
	if depth > s.opt.Limits.Depth && len(entries) > 0 {
		return failf(xfer.CodeTooLarge, "%s has entries below %d directories, the limit of this program", quote(at), s.opt.Limits.Depth)
	}
	for _, d := range entries {
		if err := s.ctx.Err(); err != nil {
			return context.Cause(s.ctx)
		}
		p := path.Join(at, d.Name())
		if s.opt.Patterns.Excludes(p, d.IsDir()) {
			continue
		}
		if err := s.entry(p, d, Entry{Name: d.Name(), Depth: depth, parent: parent}); err != nil {
			return err
		}
	}
	return nil
}

// entry adds the entry d at p and, if it is a directory, those below it.
func (s *scan) entry(p string, d fs.DirEntry, e Entry) error {
	if err := xfer.CheckName(e.Name); err != nil {
		s.refused.add(p, err.Error())
		return nil
	}
	if len(p) > s.opt.Limits.Path {
		return failf(xfer.CodeTooLarge, "the path %s has %d bytes; %d are the limit of this program", quote(p), len(p), s.opt.Limits.Path)
	}
	info, err := d.Info() // rootFS.ReadDir has looked it up already
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		e.Kind = Directory
		n := len(s.t.manifest.Entries)
		if err := s.add(e, info); err != nil {
			return err
		}
		return s.dir(p, n)
	case mode.IsRegular():
		return s.regular(p, e, info)
	case mode.Type() == fs.ModeSymlink:
		e.Kind = Symlink
		if e.Target, err = fs.ReadLink(s.fsys, p); err != nil {
			return err
		}
		e.Target = filepath.ToSlash(e.Target)
		if e.Target == "" || len(e.Target) > maxTarget {
			s.refused.add(p, fmt.Sprintf("the target of the symbolic link has %d bytes; 1 to %d are possible", len(e.Target), maxTarget))
			return nil
		}
		return s.add(e, nil)
	default:
		s.refused.add(p, "it is a "+special(mode)+", which does not cross; exclude it")
		return nil
	}
}

// special names the kind of a file that is none of those that cross.
func special(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "file of another kind"
}

// regular adds a file, or a further name of one.
func (s *scan) regular(p string, e Entry, info fs.FileInfo) error {
	id, links := identityOf(info)
	if first, known := s.links[id]; known && links > 1 {
		e.Kind, e.Link = HardLink, first
		return s.add(e, nil)
	}
	if links > 1 {
		s.links[id] = len(s.t.manifest.Entries)
	}
	e.Kind, e.Size = File, info.Size()
	if mayHaveHoles(info) {
		extents, err := s.extents(p, e.Size)
		if err != nil {
			return err
		}
		e.Sparse, e.Extents = extents != nil, extents
	}
	return s.add(e, info)
}

// extents returns the parts of a sparse file that have data; nil if it is to be sent whole.
func (s *scan) extents(p string, size int64) ([]Extent, error) {
	f, err := s.fsys.Open(p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	o, ok := f.(*os.File)
	if !ok {
		return nil, nil
	}
	return dataOf(o, size), nil
}

// mostExtents bounds the extents of one file. A file with more is sent whole.
const mostExtents = 1 << 16

// add adds an entry. info has its mode and its time; nil: it has none.
func (s *scan) add(e Entry, info fs.FileInfo) error {
	m := s.t.manifest
	var st stamp
	if info != nil {
		st = stamp{size: info.Size(), time: info.ModTime()}
		st.id, _ = identityOf(info)
		if s.opt.Preserve {
			e.Mode, e.HasMode = info.Mode().Perm(), true
			if t := info.ModTime(); time.Unix(0, t.UnixNano()).Equal(t) {
				e.ModTime = t
			}
		}
	}
	n := e.data()
	if n < 0 || n > math.MaxInt64-m.Data {
		return failf(xfer.CodeTooLarge, "the tree has more than %d bytes", int64(math.MaxInt64))
	}
	if s.parts += 1 + len(e.Extents); s.parts > s.opt.Limits.Entries {
		return failf(xfer.CodeTooLarge, "the tree has more than %d entries and parts of sparse files, the limit of this program; send parts of it", s.opt.Limits.Entries)
	}
	m.Data += n
	m.Entries = append(m.Entries, e)
	s.t.stamps = append(s.t.stamps, st)
	return nil
}

// Manifest returns the list of the tree, which the caller may not change.
func (t *Tree) Manifest() *Manifest { return t.manifest }

// Close closes the files of the tree.
func (t *Tree) Close() error {
	err := errors.Join(t.shut(), t.small.close())
	if t.root != nil {
		err = errors.Join(err, t.root.close())
	}
	return err
}

// Source returns the tree as a source of xfer's Sender.Send. Its name is that of the tree and a slash. Send fails with
// xfer.CodeChanged if a file is not as it was when it was listed. Its Choice lets a receiver take only the bytes that it needs; the caller may set the wishes in it.
// Entries that the patterns exclude are not removed at the receiver.
func (t *Tree) Source() xfer.Source {
	return xfer.Source{Name: t.name + "/", Data: t, Size: int64(len(t.head)) + t.manifest.Data,
		Choice: &xfer.Choice{Head: int64(len(t.head)), Remove: func(p string, dir bool) bool { return !t.excluded(p, dir) }}}
}

// excluded reports whether the patterns exclude a path, or a directory around it.
func (t *Tree) excluded(p string, dir bool) bool {
	for i := range p {
		if p[i] == '/' && t.opt.Patterns.Excludes(p[:i], true) {
			return true
		}
	}
	return t.opt.Patterns.Excludes(p, dir)
}

// ReadAt reads the bytes that cross, for xfer. It is fastest if offsets follow one another.
func (t *Tree) ReadAt(b []byte, offset int64) (n int, err error) {
	if offset != t.at {
		if t.starts == nil {
			t.starts = t.manifest.starts()
		}
		t.at, t.next = offset, t.manifest.seek(t.starts, max(offset-int64(len(t.head)), 0))
	}
	if offset < int64(len(t.head)) {
		n = copy(b, t.head[offset:])
	}
	for n < len(b) && err == nil {
		var k int
		if k, err = t.readWhole(b[n:]); err == nil && n+k < len(b) {
			n += k
			k, err = t.readFile(b[n:])
		}
		n += k
	}
	t.at += int64(n)
	return n, err
}

// readFile reads data of one file.
func (t *Tree) readFile(b []byte) (int, error) {
	i, offset, length, ok := t.next.next()
	if !ok {
		if err := t.finish(); err != nil {
			return 0, err
		}
		return 0, io.EOF
	}
	if i != t.open {
		if err := t.turn(i); err != nil {
			return 0, err
		}
	}
	b = b[:min(int64(len(b)), length)]
	var n int
	var err error
	if r, random := t.file.(io.ReaderAt); random {
		n, err = r.ReadAt(b, offset)
	} else {
		if err := t.forward(i, offset); err != nil {
			return 0, err
		}
		n, err = io.ReadFull(t.file, b)
		t.read += int64(n)
	}
	t.next.advance(int64(n))
	t.reading.set(i, offset+int64(n))
	switch {
	case n == len(b):
		return n, nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return n, t.changed(i)
	}
	return n, failf(xfer.CodeSource, "cannot read %s: %w", quote(t.manifest.Path(i)), err)
}

// turn ends the file that is open and opens that of entry i.
func (t *Tree) turn(i int) error {
	if err := t.finish(); err != nil {
		return err
	}
	f, err := t.fsys.Open(t.manifest.Path(i))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return t.changed(i)
		}
		return failf(xfer.CodeSource, "%w", err)
	}
	t.file, t.open, t.read = f, i, 0
	return t.check(i)
}

// forward reads the file that is open up to an offset, from its beginning if need be.
func (t *Tree) forward(i int, offset int64) error {
	if offset < t.read {
		if err := t.turn(i); err != nil {
			return err
		}
	}
	n, err := io.CopyN(io.Discard, t.file, offset-t.read)
	if t.read += n; err != nil {
		return failf(xfer.CodeSource, "cannot read %s: %w", quote(t.manifest.Path(i)), err)
	}
	return nil
}

// finish closes the file that is open, which must not have changed since the scan.
func (t *Tree) finish() error {
	if t.file == nil {
		return nil
	}
	return errors.Join(t.check(t.open), t.shut())
}

// shut closes the file that is open.
func (t *Tree) shut() error {
	if t.file == nil {
		return nil
	}
	f := t.file
	t.file, t.open = nil, -1
	return f.Close()
}

// check compares the open file with the state that it had at the scan.
func (t *Tree) check(i int) error {
	info, err := t.file.Stat()
	if err != nil {
		return failf(xfer.CodeSource, "%w", err)
	}
	id, _ := identityOf(info)
	if st := t.stamps[i]; info.Size() != st.size || !info.ModTime().Equal(st.time) || id != st.id || !info.Mode().IsRegular() {
		return t.changed(i)
	}
	return nil
}

func (t *Tree) changed(i int) error {
	return failf(xfer.CodeChanged, "%s is not as it was when the tree was listed", quote(t.manifest.Path(i)))
}

// Refusal is a name that cannot cross, with the reason.
type Refusal struct{ Path, Reason string }

// RefusedError lists the entries for which a tree was refused. It is of the class xfer.CodeName.
type RefusedError struct {
	Refusals []Refusal // the first ones
	More     int       // number of others
	head     string    // the consequence
}

// mostRefusals is the number of names that a RefusedError has.
const mostRefusals = 64

func (e *RefusedError) add(p, reason string) {
	if len(e.Refusals) == mostRefusals {
		e.More++
		return
	}
	e.Refusals = append(e.Refusals, Refusal{p, reason})
}

// err returns e with the consequence that it has, nil if it has no names.
func (e *RefusedError) err(head string) error {
	if len(e.Refusals) == 0 {
		return nil
	}
	e.head = head
	return e
}

// Error returns the names of Refusals with their reasons, and the number of the others.
func (e *RefusedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s because of %d of its names: ", e.head, len(e.Refusals)+e.More)
	for i, r := range e.Refusals {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %s", quote(r.Path), r.Reason)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "; and %d more", e.More)
	}
	return b.String()
}

// Unwrap returns the class.
func (e *RefusedError) Unwrap() error { return xfer.CodeName }
