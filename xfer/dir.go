package xfer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

// Names of files that are not complete: the random part makes guessing one futile.
const (
	tempPrefix = ".cinnabar-"
	tempSuffix = ".part"
	tempRandom = 8 // bytes
)

// DirOptions are the rules by which a [Dir] stores files.
type DirOptions struct {
	Overwrite bool // replace files of the same name; otherwise they are refused
	Sync      bool // wait until file and directory are on the disk before the transfer succeeds
	// KeepPartial keeps the incomplete files of failed and of earlier transfers under their temporary names. A transfer of one lane has stored the beginning of the file; one of several lanes may
	// leave gaps, which have zeros.
	KeepPartial bool
	// KeepFor is the time for which the incomplete file of a failed transfer stays, so that the transfer goes on with it if the next transfer of the name lets this side
	// choose (Source.Choice, Puller.Choose); 0: it is removed at once. KeepPartial has no such time, and its files are not found again. It works on Linux and macOS.
	KeepFor    time.Duration
	IgnoreMeta bool // do not apply the modes and times that senders give
	// AllowDotFiles accepts names that begin with a dot. They are refused otherwise, because shells and programs read such
	// files of a home directory without being asked.
	AllowDotFiles bool
	// AllowExec applies the execute bits of the modes that senders give. They are dropped otherwise. Setuid, setgid and
	// sticky bits never cross.
	AllowExec bool
}

// Dir is a directory for received files. Its Open method can be [Receiver.Open]. A file is
// written under a temporary name and gets its own name when it is complete, so that no
// incomplete file has that name, even if a program is killed. With DirOptions.Sync that also
// holds over a power cut. A Dir accesses nothing outside of the directory
// (os.Root). It is safe for concurrent use.
//
// The temporary file is created exclusively, with mode 0644 less the umask; with
// mode 0600 if the sender gives a mode, which the file gets when it is complete, because
// before that no other user may read a file that only its owner may read in the end. A
// file that replaces another does not inherit its mode.
type Dir struct {
	root *os.Root
	opt  DirOptions

	mu sync.Mutex
	// names that are being received
	// +checklocks:mu
	busy map[string]struct{}
	// when the last removal of stale files began
	// +checklocks:mu
	cleaned time.Time
	// a removal of stale files is under way
	// +checklocks:mu
	cleans   bool
	cleaning sync.WaitGroup
	open     context.Context // ends with Close
	end      context.CancelFunc
}

// OpenDir opens the directory at path. On Linux and macOS, unless opt.KeepPartial is set, it removes the temporary files of killed
// receivers: those that have not been written to for 24 hours, or for opt.KeepFor, and that no process has locked. Open does the same once an hour.
// If ctx ends before OpenDir returns, OpenDir fails with context.Cause(ctx).
func OpenDir(ctx context.Context, path string, opt DirOptions) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	d := &Dir{root: root, opt: opt, busy: make(map[string]struct{}), cleaned: now}
	d.open, d.end = context.WithCancel(context.WithoutCancel(ctx))
	if !opt.KeepPartial {
		d.removeStale(ctx, now)
	}
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), d.Close())
	}
	return d, nil
}

// staleAfter is the age of the last write after which an unlocked temporary file is removed.
const staleAfter = 24 * time.Hour

// removeStale removes the temporary files of killed receivers, until ctx ends. It ignores errors, because a receiver works beside a file that
// cannot be removed.
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
			if isTemp(e.Name()) && e.Type().IsRegular() {
				d.removeIfStale(e.Name(), now)
			}
		}
		if err != nil {
			return // io.EOF at the end
		}
	}
}

// entriesAtOnce is the number of directory entries that are read at a time.
const entriesAtOnce = 1024

// isTemp reports whether name has the form of a temporary file's name.
func isTemp(name string) bool {
	random, prefix := strings.CutPrefix(name, tempPrefix)
	random, suffix := strings.CutSuffix(random, tempSuffix)
	b, err := hex.DecodeString(random)
	return prefix && suffix && err == nil && len(b) == tempRandom
}

// removeIfStale removes a temporary file if its last write is older than staleAfter and no process has its lock.
func (d *Dir) removeIfStale(name string, now time.Time) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK, because opening a pipe would block
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || now.Sub(info.ModTime()) < d.opt.maxAge() || lockTemp(f) != nil {
		return
	}
	if at, err := d.root.Lstat(name); err == nil && os.SameFile(info, at) {
		_ = d.root.Remove(name) // see removeStale
	}
}

// Close closes the directory. It ends a removal of temporary files of killed receivers, and waits for it. Files that are open stay usable until
// their transfers end, but cannot be committed any more.
func (d *Dir) Close() error {
	d.mu.Lock()
	d.end()
	d.mu.Unlock()
	d.cleaning.Wait()
	return d.root.Close()
}

// Open makes a temporary file for name, which must pass [CheckName] and may begin with a dot only if
// DirOptions.AllowDotFiles says so. Open fails with [CodeExists] if there is a file of that name or one is being received. When ctx
// ends, the File stops comparing a kept part, with an error; a Commit is not cut short. Open does not use from.
func (d *Dir) Open(ctx context.Context, from netip.AddrPort, name string, meta Meta, size int64) (File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if !d.opt.AllowDotFiles && strings.HasPrefix(name, ".") {
		return nil, failf(CodeName, "%q begins with a dot, and this receiver takes no such names", name)
	}
	d.clean(time.Now())
	if err := d.claim(name); err != nil {
		return nil, err
	}
	f, err := d.create(ctx, name, meta)
	if err != nil {
		d.release(name)
		return nil, err
	}
	return f, nil
}

// claim reserves a name among the transfers that run.
func (d *Dir) claim(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.busy[name]; taken {
		return failf(CodeExists, "a file %q is being received right now", name)
	}
	d.busy[name] = struct{}{}
	return nil
}

func (d *Dir) release(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, name)
}

// create checks that name may be used and makes the temporary file.
func (d *Dir) create(ctx context.Context, name string, meta Meta) (*dirFile, error) {
	switch old, err := d.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, storageFailure("look for", name, err)
	case old.IsDir():
		return nil, failf(CodeExists, "%q is a directory of the receiver", name)
	case !d.opt.Overwrite:
		return nil, failf(CodeExists, "the receiver has a file %q and does not overwrite", name)
	}
	var random [tempRandom]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	temp := tempPrefix + hex.EncodeToString(random[:]) + tempSuffix
	if d.opt.IgnoreMeta {
		meta = Meta{}
	}
	mode := fs.FileMode(0o644)
	given := meta.Mode.Perm() != 0 // even if dropping the execute bits leaves none
	if given {
		mode = 0o600
	}
	if !d.opt.AllowExec {
		meta.Mode &^= 0o111
	}
	f, err := d.root.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, storageFailure("create", name, err)
	}
	locked := lockTemp(f) == nil // without locks it is only not removed if this process is killed, and does not resume
	return &dirFile{File: f, ctx: ctx, dir: d, name: name, temp: temp, meta: meta, chmod: given, locked: locked}, nil
}

// dirFile is a file under its temporary name.
type dirFile struct {
	*os.File
	ctx        context.Context // of Open
	dir        *Dir
	name, temp string
	meta       Meta
	chmod      bool // apply meta.Mode
	closed     bool
	lock       io.Closer    // that of lockTemp, while the file is closed and has its temporary name; may be nil
	unsynced   atomic.Int64 // bytes written since the last sync
	locked     bool
	fresh      fs.FileMode   // the mode of a new file, if the temporary file has another one
	r          *resuming     // nil: all bytes cross
	work       atomic.Uint64 // blocks that were compared
}

// syncEvery bounds the bytes that a sync at the end has to write, and so the time for
// which the sender waits for it.
const syncEvery = 64 << 20

// WriteAt writes. With Sync it also syncs the file after each syncEvery bytes, so that the
// disk works while the rest of the file comes.
func (f *dirFile) WriteAt(b []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(b, offset)
	if all := f.unsynced.Add(int64(n)); err == nil && f.dir.opt.Sync && all >= syncEvery {
		f.unsynced.Store(0)
		err = f.File.Sync()
	}
	return n, err
}

// AnyOrder implements [AnyOrder]. After a transfer that was cut the file may have gaps, which the sums of a later transfer find.
func (f *dirFile) AnyOrder() bool { return true }

// Commit gives the file its name. If it fails the file has not got its name, but for one
// case, which the error describes: the file has replaced another one, which cannot be
// restored, and it may be lost if the system crashes.
func (f *dirFile) Commit() error {
	if f.r != nil && f.r.none { // the receiver's file is the sender's, and the temporary one is empty
		if err := f.commitOld(); err != nil {
			return err
		}
		return f.Discard()
	}
	err := f.finish()
	if err == nil {
		err = f.rename()
	}
	f.unlock()
	if err != nil {
		return err
	}
	f.closeBasis()
	if f.dir.opt.Sync {
		err = f.dir.sync()
	}
	if err != nil {
		err = f.undo(err)
	}
	f.dir.release(f.name)
	f.name = ""
	return err
}

// unlock releases the lock that finish has kept.
func (f *dirFile) unlock() {
	if f.lock != nil {
		_ = f.lock.Close() // nothing was written through it that Close has not reported
		f.lock = nil
	}
}

// undo removes the file from its name after the error why. The temporary name is gone, or
// Discard removes it.
func (f *dirFile) undo(why error) error {
	if f.dir.opt.Overwrite {
		return failf(CodeStorage, "the file is stored as %q, but may not outlast a crash of the machine: %w", f.name, why)
	}
	if err := f.dir.root.Remove(f.name); err != nil {
		return failf(CodeStorage, "%w; the file is stored as %q all the same, since it cannot be removed: %w", why, f.name, withoutPath(err))
	}
	return why
}

// finish applies the metadata and closes the file: some file systems report a
// full disk only then. It keeps the lock, because the sender's time may make the file look like one that was left long ago.
func (f *dirFile) finish() error {
	mode := f.fresh
	if f.chmod {
		mode = f.meta.Mode.Perm()
	}
	if f.chmod || f.fresh != 0 {
		if err := f.File.Chmod(mode); err != nil {
			return storageFailure("set the mode of", f.name, err)
		}
	}
	if f.dir.opt.Sync {
		if err := f.File.Sync(); err != nil {
			return storageFailure("sync", f.name, err)
		}
	}
	f.lock = keepLock(f.File)
	f.closed = true
	if err := f.File.Close(); err != nil {
		return storageFailure("close", f.name, err)
	}
	if t := f.meta.ModTime; !t.IsZero() {
		if err := f.dir.root.Chtimes(f.temp, time.Time{}, t); err != nil {
			return storageFailure("set the time of", f.name, err)
		}
	}
	return nil
}

// rename moves the file to its name; without Overwrite, only if nothing has it.
func (f *dirFile) rename() error {
	root := f.dir.root
	if f.dir.opt.Overwrite {
		if err := root.Rename(f.temp, f.name); err != nil {
			return storageFailure("name", f.name, err)
		}
		return nil
	}
	err := renameExclusive(root, f.temp, f.name)
	if unsupported(err) {
		err = f.link()
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return failf(CodeExists, "a file %q has come into being at the receiver meanwhile", f.name)
	case err != nil:
		return storageFailure("name", f.name, err)
	}
	return nil
}

// link gives the file its name where a system cannot rename without replacing: a
// hard link fails if there is such a file. Where there are no hard links either, a
// look must do, and another program can get in between.
func (f *dirFile) link() error {
	root := f.dir.root
	err := root.Link(f.temp, f.name)
	if unsupported(err) {
		if _, err := root.Lstat(f.name); !errors.Is(err, fs.ErrNotExist) {
			return orExists(err)
		}
		return root.Rename(f.temp, f.name)
	}
	if err != nil {
		return err
	}
	if err := root.Remove(f.temp); err != nil {
		return f.undo(storageFailure("remove the temporary name of", f.name, err)) // one file, one name
	}
	return nil
}

// orExists returns the error for a name that must not exist, where err is the result of Lstat.
func orExists(err error) error {
	if err == nil {
		return fs.ErrExist
	}
	return err
}

// unsupported reports whether err says that a system or file system has no such
// operation, rather than that it failed this time. File systems without hard links
// say so with error 1: EPERM, and on Windows ERROR_INVALID_FUNCTION.
func unsupported(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.Errno(1)) || errors.Is(err, syscall.EMLINK)
}

// Discard removes the file, or keeps it under its temporary name if the
// directory keeps partial files.
func (f *dirFile) Discard() error {
	var errs []error
	f.closeBasis()
	keeps := f.dir.opt.KeepPartial && !f.isUseless() || f.keepsPartial()
	if !f.closed {
		f.closed = true
		errs = append(errs, f.File.Close())
	}
	if f.name != "" {
		f.dir.release(f.name)
		if !keeps {
			errs = append(errs, f.dir.root.Remove(f.temp))
		}
		f.name = ""
	}
	return errors.Join(errs...)
}

// sync makes the directory's entries last, where that can be asked for: not on
// Windows, nor on file systems that say EINVAL (fsync(2)).
func (d *Dir) sync() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := d.root.Open(".")
	if err == nil {
		err = f.Sync()
		_ = f.Close() // nothing was written to it
	}
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return failf(CodeStorage, "cannot sync the directory: %w", withoutPath(err))
	}
	return nil
}

// storageFailure is a failure of the file system.
func storageFailure(what, name string, err error) error {
	return failf(CodeStorage, "cannot %s %q: %w", what, name, diskFailure(err))
}

// diskFailure is withoutPath, and says which disk is full.
func diskFailure(err error) error {
	err = withoutPath(err)
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("the disk of the receiver's directory is full: %w", err)
	case errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the receiver's quota on the disk of its directory is used up: %w", err)
	}
	return err
}

// withoutPath removes the receiver's paths from an error that is sent to the sender.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		return le.Err
	}
	return err
}

// MaxName is the largest number of bytes of a name: the limit of file systems, and
// one less than the paper's program has room for.
const MaxName = 255

// CheckName refuses names that are no plain file names: empty, longer than
// [MaxName], ".", "..", with a slash or a backslash (a separator of some system),
// with NUL or another control character, with one that turns the direction of text
// and so shows a name as another, not UTF-8, of a device, or reserved for files that
// are not complete yet.
func CheckName(name string) error {
	if err := checkWireName(name); err != nil {
		return err
	}
	switch {
	case name == "." || name == "..":
		return failf(CodeName, "%q is a directory; send a file name", name)
	case strings.ContainsAny(name, `/\`):
		return failf(CodeName, "%q has a path separator; send the last element only", name)
	case !utf8.ValidString(name):
		return failf(CodeName, "%q is not UTF-8", name)
	case strings.ContainsFunc(name, isControl):
		return failf(CodeName, "%q has a control character", name)
	case !filepath.IsLocal(name):
		return failf(CodeName, "%q means something else to this system", name)
	case strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix):
		return failf(CodeName, "%q is reserved for files that are not complete", name)
	}
	return nil
}

// isControl reports whether r changes how text is shown, and is no text itself.
func isControl(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// checkWireName refuses names that the protocol itself cannot carry.
func checkWireName(name string) error {
	switch {
	case name == "":
		return failf(CodeName, "the name is empty")
	case len(name) > MaxName:
		return failf(CodeName, "the name has %d bytes, the most is %d", len(name), MaxName)
	case strings.IndexByte(name, 0) >= 0:
		return failf(CodeName, "the name %q has a NUL inside", name)
	}
	return nil
}
