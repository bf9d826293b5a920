package share

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cinnabar/verbs"
	"cinnabar/xfer"
)

// A list is one file of a pull: a line of JSON for each entry, in the order of the names. Later versions may add members.

// Entry is an entry of a list.
type Entry struct {
	// Name is the last element of the path. Bytes that are not UTF-8 are replaced, and such an entry cannot be pulled. It is input of the peer:
	// it may have any other characters.
	Name    string      `json:"name"`
	Kind    Kind        `json:"kind"`
	Size    int64       `json:"size"` // of a file, in bytes
	Mode    fs.FileMode `json:"mode"` // permission bits
	ModTime time.Time   `json:"time"`
	Target  string      `json:"target,omitempty"` // of a symbolic link
}

// Kind is the kind of an entry.
type Kind string

// The kinds.
const (
	KindFile      Kind = "file"
	KindDirectory Kind = "directory"
	KindSymlink   Kind = "symlink"
	KindOther     Kind = "other" // a device, a socket or a named pipe, which cannot be pulled
)

// listName is the name of a list as a file.
const listName = "list"

// atOnce is the number of entries of a directory that are read at a time.
const atOnce = 1024

// list makes the list of a directory, or of the one file at p.
func (d *Dir) list(ctx context.Context, peer netip.AddrPort, p, name string, info fs.FileInfo) (src xfer.Source, closer io.Closer, err error) {
	done, err := d.begin(ctx, peer)
	if err != nil {
		return src, nil, err
	}
	var list lines
	if info.IsDir() {
		err = d.entries(ctx, p, &list)
	} else {
		err = list.add(d.entry(p, name, info))
	}
	if err != nil {
		done()
		return src, nil, err
	}
	b := list.join()
	return xfer.Source{Name: listName, Data: bytes.NewReader(b), Size: int64(len(b))}, closing(func() error { done(); return nil }), nil
}

// lines are the entries of a list in their form for the peer.
type lines struct {
	list []line
	size int64
}

type line struct {
	name string
	text []byte
}

// add adds an entry, unless the list would be longer than a peer takes.
func (l *lines) add(e Entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if l.size += int64(len(text)); l.size > MaxListBytes {
		return failf(xfer.CodeTooLarge, "the list has more than %d bytes: pull the directory, or list one below it", int64(MaxListBytes))
	}
	l.list = append(l.list, line{e.Name, text})
	return nil
}

// join returns the list in the order of the names.
func (l *lines) join() []byte {
	slices.SortFunc(l.list, func(a, b line) int { return cmp.Compare(a.name, b.name) })
	b := make([]byte, 0, l.size)
	for i := range l.list {
		b = append(b, l.list[i].text...)
		l.list[i].text = nil
	}
	return b
}

// entries adds the entries of a directory to a list.
func (d *Dir) entries(ctx context.Context, p string, to *lines) error {
	f, err := d.root.Open(filepath.FromSlash(p))
	if err != nil {
		return sourceFailure(p, err)
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	for {
		names, err := f.Readdirnames(atOnce)
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if d.hidden(name) {
				continue
			}
			if len(to.list) == d.opt.MaxList {
				return failf(xfer.CodeTooLarge, "%q has more than %d entries, the limit of this server for a list: pull the directory, or list one below it", p, d.opt.MaxList)
			}
			at := path.Join(p, name)
			info, err := d.root.Lstat(filepath.FromSlash(at))
			if err != nil { // it has gone meanwhile
				continue
			}
			if err := to.add(d.entry(at, name, info)); err != nil {
				return err
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return sourceFailure(p, err)
			}
			return nil
		}
	}
}

// entry describes what is at p.
func (d *Dir) entry(p, name string, info fs.FileInfo) Entry {
	e := Entry{Name: name, Kind: KindOther, Mode: info.Mode().Perm(), ModTime: info.ModTime()}
	if y := e.ModTime.Year(); y < 1 || y > 9999 { // which JSON has no form for
		e.ModTime = time.Time{}
	}
	switch {
	case info.Mode().IsRegular():
		e.Kind, e.Size = KindFile, info.Size()
	case info.IsDir():
		e.Kind = KindDirectory
	case info.Mode()&fs.ModeSymlink != 0:
		e.Kind = KindSymlink
		e.Target, _ = d.root.Readlink(filepath.FromSlash(p)) // it may have gone meanwhile
	}
	return e
}

// MaxListBytes is the size of the longest list that [List] takes, in bytes.
const MaxListBytes = 64 << 20

// mostEntries is the number of entries of the longest list that is taken, because an entry of a few bytes takes many more in memory.
const mostEntries = 1_000_000

// List pulls the list of the directory at a path of the server, or of one file. p has the settings of the transfer; its Open is not used.
func List(ctx context.Context, p xfer.Puller, dev *verbs.Device, addr netip.AddrPort, dir string) ([]Entry, error) {
	var f memory
	p.Open = func(_ context.Context, _ netip.AddrPort, _ string, _ xfer.Meta, size int64) (xfer.File, error) {
		if size > MaxListBytes {
			return nil, failf(xfer.CodeTooLarge, "the list has %d bytes; at most %d are taken", size, int64(MaxListBytes))
		}
		return &f, nil
	}
	if _, err := p.Pull(ctx, dev, addr, xfer.FileRequest{Op: xfer.RequestList, Path: dir}); err != nil {
		return nil, err
	}
	return parseList(f.b)
}

// memory is a file in memory, of which the size was checked.
type memory struct{ b []byte }

func (f *memory) WriteAt(b []byte, offset int64) (int, error) {
	if offset != int64(len(f.b)) {
		return 0, failf(xfer.CodeProtocol, "the list goes on at offset %d; %d is due", offset, len(f.b))
	}
	f.b = append(f.b, b...)
	return len(b), nil
}
func (f *memory) Commit() error  { return nil }
func (f *memory) Discard() error { return nil }

// parseList reads a list.
func parseList(b []byte) (list []Entry, err error) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, failf(xfer.CodeProtocol, "line %d of the list is wrong: %w", len(list)+1, err)
		}
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.Contains(e.Name, "/") || e.Size < 0 {
			return nil, failf(xfer.CodeProtocol, "line %d of the list has a name that is no element of a path, or a negative size", len(list)+1)
		}
		if len(list) == mostEntries {
			return nil, failf(xfer.CodeTooLarge, "the list has more than %d entries", mostEntries)
		}
		list = append(list, e)
	}
	if err := lines.Err(); err != nil {
		return nil, failf(xfer.CodeProtocol, "line %d of the list is wrong: %w", len(list)+1, err)
	}
	return list, nil
}
