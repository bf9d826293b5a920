package tree

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/xfer"
)

// Names of trees that are not complete, which xfer.CheckName refuses for all others.
const (
	tempPrefix = ".cinnabar-"
	tempSuffix = ".part"
	tempRandom = 8 // bytes
)

// DirOptions are the rules by which a [Dir] stores trees.
type DirOptions struct {
	// DirOptions are the rules for plain files, and hold for trees too. With Overwrite, a tree goes into a directory of its name, and replaces the
	// files in it that have the names of its own. AllowDotFiles and AllowExec concern the names and the files inside
	// of a tree too; directories keep their execute bits.
	xfer.DirOptions
	// AllowOutsideLinks accepts symbolic links that may lead out of their tree. Otherwise the target of a link must be a relative path
	// that stays in the tree: leading ".." elements no more than the link has directories above it, and none behind another element.
	AllowOutsideLinks bool
	// AllowDelete lets senders remove entries that they do not have (xfer.WishDelete) in the directories of their trees, with Overwrite. Entries that this receiver would not
	// store, because of AllowDotFiles, say, are never removed.
	AllowDelete bool
	// Patterns leave entries of trees out: the Dir does not store them, and with AllowDelete does not remove its own entries at such paths. What it stores of a tree is the same as if the
	// sender had listed the tree with these patterns (ScanOptions.Patterns). The bytes of files that are left out do not cross, if the sender lets the receiver choose. The
	// whole manifest counts for Limits. If a file is left out and a hard link to it is not, the link gets the file's data. An entry that is stored counts twice for Limits.Memory. nil: everything is stored.
	Patterns *Patterns
	Limits   Limits
}

// Dir is a directory for received trees, and for plain files as xfer.Dir is. Its Open method can be xfer's Receiver.Open. A tree is
// written below a temporary name, in a directory that only the owner can enter, and gets its name when it is complete. A Dir accesses
// nothing outside of the directory (os.Root). It is safe for concurrent use.
type Dir struct {
	files *xfer.Dir
	root  *os.Root
	opt   DirOptions

	mu sync.Mutex
	// names of trees that are being received
	// +checklocks:mu
	busy map[string]struct{}
	// bytes of all manifests
	// +checklocks:mu
	held int64
	// and of those of each host
	// +checklocks:mu
	hosts map[hostquota.Host]int64
	// when stale trees were removed
	// +checklocks:mu
	cleaned time.Time
	// a goroutine removes stale trees
	// +checklocks:mu
	cleans   bool
	cleaning sync.WaitGroup  // of that goroutine
	open     context.Context // ends with Close, which ends that goroutine
	end      context.CancelFunc
}

// OpenDir opens the directory at path. As xfer.OpenDir does, it removes what killed receivers have left there: on Linux and macOS,
// unless KeepPartial is set, incomplete trees of which the last transfer ended longer than 24 hours ago, or than KeepFor, and that no process has locked. Open does
// the same once an hour.
// If ctx ends before OpenDir returns, OpenDir fails with context.Cause(ctx).
func OpenDir(ctx context.Context, path string, opt DirOptions) (*Dir, error) {
	files, err := xfer.OpenDir(ctx, path, opt.DirOptions)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	opt.Limits = opt.Limits.filled()
	now := time.Now()
	d := &Dir{files: files, root: root, opt: opt, busy: map[string]struct{}{}, hosts: map[hostquota.Host]int64{}, cleaned: now}
	d.open, d.end = context.WithCancel(context.WithoutCancel(ctx))
	if !opt.KeepPartial {
		d.removeStale(ctx, now)
	}
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), d.Close())
	}
	return d, nil
}

// Close closes the directory. It ends the removal of incomplete trees and waits for it. Trees that are being received cannot be stored any more.
func (d *Dir) Close() error {
	d.mu.Lock()
	d.end()
	d.mu.Unlock()
	d.cleaning.Wait()
	return errors.Join(d.files.Close(), d.root.Close())
}

// Open takes a tree, if the name ends in a slash, and a file otherwise. When ctx ends, the methods of a tree's File fail at their next step, and a Commit stops removing
// entries that the sender does not have. A Commit that has begun to change the directory still gives the tree its names, because a tree that goes into an existing one would be stored in part otherwise; Discard removes everything that does not stay. If from is valid, its host
// gets at most 9/16 of the memory for manifests (Limits) for several trees at once, and 3/4 for one; otherwise no limit of hosts holds. A name that the Dir does not take fails with CodeName, one that is there or being received with CodeExists.
func (d *Dir) Open(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
	d.clean(time.Now())
	base, isTree := strings.CutSuffix(name, "/")
	if !isTree {
		return d.files.Open(ctx, from, name, meta, size)
	}
	if err := xfer.CheckName(base); err != nil {
		return nil, err
	}
	if !d.opt.AllowDotFiles && strings.HasPrefix(base, ".") {
		return nil, failf(xfer.CodeName, "%q begins with a dot, and this receiver takes no such names", base)
	}
	if _, err := d.target(base); err != nil {
		return nil, err
	}
	s := &storing{ctx: ctx, dir: d, name: base, open: -1, fsys: &rootFS{root: d.root}}
	if from.IsValid() {
		s.host = hostquota.HostOf(from.Addr())
	}
	p := newParser(d.opt.Limits, func(cost int64) error { return d.take(s, cost) })
	f, err := newIncoming(s, size, p)
	if err == nil {
		err = d.claim(base)
	}
	if err != nil {
		return nil, err
	}
	return &claimed{f, s}, nil
}

// HasPart reports whether the directory has the received part of a tree, or of a file, from a transfer of this name that was cut. The next transfer of the name goes on
// with that part (DirOptions.KeepFor). The name of a tree ends in a slash, as the name that Open takes.
func (d *Dir) HasPart(name string) bool {
	base, isTree := strings.CutSuffix(name, "/")
	if !isTree {
		return d.files.HasPart(name)
	}
	if d.opt.KeepFor == 0 {
		return false
	}
	info, err := d.root.Lstat(partialName(base))
	return err == nil && info.IsDir() && private(info)
}

// claimed is the file of a transfer, which gives name and memory back at its end.
type claimed struct {
	*incoming
	s *storing
}

func (c *claimed) Commit() error {
	err := c.incoming.Commit()
	if err == nil {
		c.s.release()
	}
	return err
}

func (c *claimed) Discard() error {
	defer c.s.release()
	return c.incoming.Discard()
}

// target returns the directory that has the name, nil: none has it. Anything else of the name is refused, and without Overwrite a
// directory too.
func (d *Dir) target(name string) (fs.FileInfo, error) {
	switch info, err := d.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, storageFailure("look for", name, err)
	case !info.IsDir():
		return nil, failf(xfer.CodeExists, "%q is no directory at the receiver", name)
	case !d.opt.Overwrite:
		return nil, failf(xfer.CodeExists, "the receiver has a directory %q and does not overwrite", name)
	default:
		return info, nil
	}
}

// claim reserves the name of a tree among the transfers that run.
func (d *Dir) claim(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.busy[name]; taken {
		return failf(xfer.CodeExists, "a tree %q is being received right now", name)
	}
	d.busy[name] = struct{}{}
	return nil
}

// take counts memory of the manifest of s.
func (d *Dir) take(s *storing, cost int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	most, own := d.opt.Limits.Memory, d.hosts[s.host]
	if cost > most-d.held || !d.sharesLocked(s, own+cost, d.held+cost) {
		return failf(xfer.CodeBusy, "the manifests of this and of other trees need more than %d bytes, the limit of this receiver, or the share of one host in it; send parts of the tree, or raise Limits.Memory", d.opt.Limits.Memory)
	}
	d.held += cost
	s.held += cost
	d.hosts[s.host] += cost
	return nil
}

// sharesLocked reports whether the host of s may hold own bytes, where all would hold total.
//
// +checklocks:d.mu
func (d *Dir) sharesLocked(s *storing, own, total int64) bool {
	most := d.opt.Limits.Memory
	only := d.hosts[s.host] == s.held // it has no other tree
	return s.host == hostquota.Host{} || hostquota.Grants(most, total, own) || only && own <= most-most/4
}

// staleAfter is the age after which the temporary directory of a killed receiver is removed.
const staleAfter = 24 * time.Hour

// maxAge returns the age after which a temporary directory that no process has locked is removed.
func (d *Dir) maxAge() time.Duration {
	if d.opt.KeepFor > 0 {
		return d.opt.KeepFor
	}
	return staleAfter
}

// cleanEvery is the time after which a directory that is in use looks for the trees of killed receivers again.
const cleanEvery = time.Hour

// clean starts to remove the trees of killed receivers, if the last look was long ago. The removal ends with Close and not with the transfer that has begun it,
// because most transfers are shorter.
func (d *Dir) clean(now time.Time) {
	if d.opt.KeepPartial {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cleans || d.open.Err() != nil || now.Sub(d.cleaned) < min(cleanEvery, d.maxAge()) {
		return
	}
	d.cleaned, d.cleans = now, true
	d.cleaning.Go(func() {
		d.removeStale(d.open, now)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.cleans = false
	})
}

// entriesAtOnce is the number of directory entries that are read at a time.
const entriesAtOnce = 1024

// removeStale removes the trees of killed receivers, until ctx ends. It ignores errors, because a receiver works beside one that cannot be removed.
func (d *Dir) removeStale(ctx context.Context, now time.Time) {
	f, err := d.root.Open(".")
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	for {
		entries, err := f.ReadDir(entriesAtOnce)
		for _, e := range entries {
			if ctx.Err() != nil {
				return
			}
			if isTemp(e.Name()) && e.IsDir() {
				d.removeIfStale(e.Name(), now, ctx.Err)
			}
		}
		if err != nil {
			return // io.EOF at the end
		}
	}
}

// isTemp reports whether name has the form of a temporary name.
func isTemp(name string) bool {
	random, prefix := strings.CutPrefix(name, tempPrefix)
	random, suffix := strings.CutSuffix(random, tempSuffix)
	b, err := hex.DecodeString(random)
	return prefix && suffix && err == nil && len(b) == tempRandom
}

// removeIfStale removes a temporary directory if it is older than staleAfter and no process has its lock. An error of step ends the removal.
func (d *Dir) removeIfStale(name string, now time.Time, step func() error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK, because opening a pipe would block
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	info, err := f.Stat()
	if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < d.maxAge() || lockDir(f) != nil {
		return
	}
	if at, err := d.root.Lstat(name); err == nil && os.SameFile(info, at) {
		_ = removeAll(d.root, name, step) // see removeStale
	}
}
