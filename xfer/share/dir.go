package share

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/xfer"
	"cinnabar/xfer/tree"
)

// Options are the rules by which a [Dir] serves files. A zero stands for the default.
type Options struct {
	AllowDotFiles bool        // serve names that begin with a dot too
	Limits        tree.Limits // of the trees that are served
	MaxList       int         // entries of the longest list; default 100,000
	// MaxWork is the number of trees and lists that are under way at once, because each holds memory; default 8. One host gets a quarter of them,
	// at least one.
	MaxWork int
}

const (
	defaultMaxList = 100_000
	defaultMaxWork = 8
	hostShare      = 4 // a host gets one in so many

	defaultPatience = 5 * time.Second
)

// Dir is a directory that is served.
type Dir struct {
	root *os.Root
	name string // of the tree that is the whole directory
	opt  Options
	hide *tree.Patterns

	patience time.Duration // for a tree or a list to end, if there are too many

	mu sync.Mutex
	// closed when a tree or a list has ended
	// +checklocks:mu
	freed chan struct{}
	// trees and lists under way
	// +checklocks:mu
	work map[hostquota.Host]int
	// of all hosts
	// +checklocks:mu
	all int
}

// OpenDir opens the directory at path.
func OpenDir(path string, opt Options) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	if opt.MaxList <= 0 {
		opt.MaxList = defaultMaxList
	}
	if opt.MaxWork <= 0 {
		opt.MaxWork = defaultMaxWork
	}
	d := &Dir{root: root, name: filepath.Base(abs), opt: opt, work: map[hostquota.Host]int{}, freed: make(chan struct{}), patience: defaultPatience}
	if xfer.CheckName(d.name) != nil || d.hidden(d.name) { // the directory / of the system, say
		d.name = "files"
	}
	pattern := ".*"
	if opt.AllowDotFiles {
		pattern = ".cinnabar-*.part" // which xfer.CheckName refuses
	}
	if d.hide, err = tree.ParsePatterns(pattern); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return d, nil
}

// Close closes the directory. Files that are open stay usable until their transfers end.
func (d *Dir) Close() error { return d.root.Close() }

// hidden reports whether a name is not served.
func (d *Dir) hidden(name string) bool { return !d.opt.AllowDotFiles && strings.HasPrefix(name, ".") }

// clean returns the path of a request below the root, with slashes; "." is the root. It refuses paths that lead out, and names that are hidden or
// that no receiver stores. A slash at either end has no meaning.
func (d *Dir) clean(asked string) (string, error) {
	p := strings.Trim(asked, "/")
	if p == "" || p == "." {
		return ".", nil
	}
	if !fs.ValidPath(p) {
		return "", failf(xfer.CodeName, "the path %q has an empty element, a dot or two dots; write it from the served directory on", asked)
	}
	for name := range strings.SplitSeq(p, "/") {
		if err := d.check(name); err != nil {
			return "", err
		}
	}
	return p, nil
}

// check refuses a name that is hidden, or that no receiver stores.
func (d *Dir) check(name string) error {
	if d.hidden(name) {
		return failf(xfer.CodeName, "%q begins with a dot, and this server serves no such names", name)
	}
	return xfer.CheckName(name)
}

// mostLinks is the number of symbolic links that a path may lead through.
const mostLinks = 40

// resolve follows the symbolic links on a clean path one by one, and returns the path without any, and what is there. The rules for names hold for the
// targets too, because a link could lead to a hidden file otherwise; a peer that may write here can make links.
func (d *Dir) resolve(asked, p string) (string, fs.FileInfo, error) {
	todo := strings.Split(p, "/")
	at := "."
	info, err := d.root.Lstat(at)
	for links := 0; err == nil && len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..": // of a target, and at has no link in it
			if at == "." {
				return "", nil, failf(xfer.CodeSource, "%q leads out of the directory that is served", asked)
			}
			at = path.Dir(at)
			info, err = d.root.Lstat(filepath.FromSlash(at))
			continue
		}
		if err := d.check(name); err != nil {
			return "", nil, failf(xfer.CodeName, "%q: %w", asked, err)
		}
		next := path.Join(at, name)
		if info, err = d.root.Lstat(filepath.FromSlash(next)); err != nil || info.Mode().Type() != fs.ModeSymlink {
			at = next
			continue
		}
		target, lerr := d.root.Readlink(filepath.FromSlash(next))
		if links++; lerr != nil || links > mostLinks || filepath.IsAbs(target) {
			return "", nil, failf(xfer.CodeSource, "%q leads through too many symbolic links, or out of the directory that is served", asked)
		}
		todo = append(strings.Split(filepath.ToSlash(target), "/"), todo...)
		info, err = d.root.Lstat(filepath.FromSlash(at))
	}
	if err != nil {
		return "", nil, sourceFailure(asked, err)
	}
	return at, info, nil
}

// Files opens the file, directory or list of a request. It is the Files of an xfer.Receiver. A directory is served as a tree, under the last element of its path; the
// served directory itself under its own name.
func (d *Dir) Files(ctx context.Context, peer netip.AddrPort, req xfer.FileRequest) (xfer.Source, io.Closer, error) {
	p, err := d.clean(req.Path)
	if err != nil {
		return xfer.Source{}, nil, err
	}
	name := path.Base(p) // a link is served under its own name
	p, info, err := d.resolve(req.Path, p)
	if err != nil {
		return xfer.Source{}, nil, err
	}
	if name == "." {
		name = d.name
	}
	switch {
	case req.Op == xfer.RequestList:
		return d.list(ctx, peer, p, name, info)
	case req.Op != xfer.RequestFile:
		return xfer.Source{}, nil, failf(xfer.CodeUnsupported, "%v is not known here", req.Op)
	case info.IsDir():
		return d.tree(ctx, peer, p, name)
	default:
		return d.file(p, name, req.Path, info)
	}
}

// file opens a regular file.
func (d *Dir) file(p, name, asked string, info fs.FileInfo) (src xfer.Source, closer io.Closer, err error) {
	if !info.Mode().IsRegular() { // which is not even opened, because the other end of a pipe would notice
		return src, nil, failf(xfer.CodeSource, "%q is neither a file nor a directory at the server", asked)
	}
	f, err := d.root.OpenFile(filepath.FromSlash(p), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return src, nil, sourceFailure(asked, err)
	}
	resolved := info
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() || !os.SameFile(info, resolved) { // the path may have changed
		return src, f, failf(xfer.CodeSource, "%q is no regular file at the server any more", asked)
	}
	return xfer.Source{Name: name, Data: withoutPath{f}, Size: info.Size(), Meta: xfer.Meta{Mode: info.Mode().Perm(), ModTime: info.ModTime()}, Choice: &xfer.Choice{}, Concurrent: true}, f, nil
}

// withoutPath is a file of which the errors do not name the server's path.
type withoutPath struct{ f io.ReaderAt }

func (w withoutPath) ReadAt(b []byte, offset int64) (int, error) {
	n, err := w.f.ReadAt(b, offset)
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return n, err
}

// tree lists a directory for sending.
func (d *Dir) tree(ctx context.Context, peer netip.AddrPort, p, name string) (src xfer.Source, closer io.Closer, err error) {
	done, err := d.begin(ctx, peer)
	if err != nil {
		return src, nil, err
	}
	root, err := d.root.OpenRoot(filepath.FromSlash(p))
	if err != nil {
		done()
		return src, nil, sourceFailure(p, err)
	}
	t, err := tree.ScanRoot(ctx, root, name, tree.ScanOptions{Patterns: d.hide, Preserve: true, Limits: d.opt.Limits})
	if err != nil {
		done()
		return src, nil, sourceFailure(p, err)
	}
	return t.Source(), closing(func() error {
		defer done()
		return t.Close()
	}), nil
}

// closing is a function as an io.Closer.
type closing func() error

func (c closing) Close() error { return c() }

// begin counts a tree or a list of a host, and waits for a moment if there are too many, because one whose transfer is over may not have ended
// yet. The caller calls done at its end.
func (d *Dir) begin(ctx context.Context, peer netip.AddrPort) (done func(), err error) {
	host := hostquota.HostOf(peer.Addr())
	limit := time.NewTimer(d.patience)
	defer limit.Stop()
	for {
		freed, busy := d.enter(host)
		if busy == nil {
			return sync.OnceFunc(func() { d.leave(host) }), nil
		}
		select {
		case <-freed:
		case <-limit.C:
			return nil, busy
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// enter counts a tree or a list of a host. If there are too many it returns an error, and a channel that is closed when one has ended.
func (d *Dir) enter(host hostquota.Host) (freed <-chan struct{}, busy error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if most := max(d.opt.MaxWork/hostShare, 1); d.all >= d.opt.MaxWork || d.work[host] >= most {
		return d.freed, failf(xfer.CodeBusy, "this server works on %d directories, %d of them for your host, and may on %d, %d for each host: try again later", d.all, d.work[host], d.opt.MaxWork, most)
	}
	d.all++
	d.work[host]++
	return nil, nil
}

// leave counts a tree or a list down.
func (d *Dir) leave(host hostquota.Host) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	if d.work[host]--; d.work[host] == 0 {
		delete(d.work, host)
	}
	close(d.freed)
	d.freed = make(chan struct{})
}

// failure is an error with a class, of which the text does not speak again.
type failure struct {
	code xfer.Code
	err  error
}

func (f *failure) Error() string   { return f.err.Error() }
func (f *failure) Unwrap() []error { return []error{f.code, f.err} }

// failf makes a failure.
func failf(code xfer.Code, format string, args ...any) error {
	return &failure{code, fmt.Errorf(format, args...)}
}

// sourceFailure is an error of the file system without the server's own paths. An error that has a class stays as it is.
func sourceFailure(asked string, err error) error {
	if _, ok := errors.AsType[xfer.Code](err); ok {
		return err
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return failf(xfer.CodeSource, "the server has no %q", asked)
	}
	return failf(xfer.CodeSource, "the server cannot open %q: %w", asked, err)
}
