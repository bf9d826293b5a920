package xfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
)

// resuming describes the bytes of a dirFile that the receiver has already: those of the partial file of an earlier transfer of the name, or
// those of the file that the transfer replaces.
//
//	sums   the sums of all blocks of the basis are wanted and compared
//	data   the blocks that differ, and everything behind the basis, are wanted
type resuming struct {
	offer  Offer
	named  bool        // the temporary name is that of the file, where a later transfer finds it
	none   bool        // nothing is wanted: the receiver's file is the sender's, or the sender only asks
	old    fs.FileInfo // of the file that the transfer would replace, as it was compared; nil: it is not compared
	basis  *os.File    // nil: the temporary file itself
	have   int64       // bytes of the basis, from its beginning
	asked  int64       // the end of the last sum that is wanted
	due    int         // sums that have not come
	differ []uint64    // a bit for each block
	next   int64       // the end of the last data that are wanted
}

const (
	resumeBlock    = 4 << 20 // bytes of one sum
	requestsAtOnce = 64
	mostBlocks     = 1 << 20 // of a basis, 4 TiB; bytes behind them cross again
)

// partialName is the temporary name of a file that may resume.
func partialName(name string) string {
	sum := sha256.Sum256([]byte("file\x00" + name))
	return tempPrefix + hex.EncodeToString(sum[:tempRandom]) + tempSuffix
}

// Choose implements [Chooser]: it looks for the bytes that the receiver has.
func (f *dirFile) Choose(o Offer) error {
	if o.Wishes&WishDelete != 0 {
		return failf(CodeUnsupported, "there is nothing to remove beside the file %q", f.name)
	}
	f.r = &resuming{offer: o, none: o.Wishes&WishDryRun != 0, asked: o.Head, next: o.Head}
	if f.r.none {
		return nil
	}
	// The sender could make the last block one byte by a head of a plain file, and so learn that byte of the part by a few guesses.
	if f.dir.opt.KeepFor > 0 && f.locked && (o.Head == 0 || o.Head == o.Size) {
		if err := f.adopt(); err != nil {
			return err
		}
	}
	if f.r.have == 0 && o.Wishes&(WishUpdate|WishChecksum) != 0 {
		return f.compareOld()
	}
	return nil
}

// adopt takes the partial file of an earlier transfer, or gives this one the name where a later transfer looks for it.
func (f *dirFile) adopt() error {
	name := partialName(f.name)
	for range 3 { // another process may remove the partial file meanwhile
		err := renameExclusive(f.dir.root, f.temp, name)
		if err == nil {
			f.temp, f.r.named = name, true
			return f.hide(f.File)
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil // the transfer cannot resume, which is no reason to fail
		}
		part, again, err := f.dir.openPartial(name, f.name)
		if err != nil {
			return err
		}
		if part != nil {
			return f.exchange(part, name)
		}
		if !again {
			return nil
		}
	}
	return nil
}

// HasPart reports whether the directory has the received part of a file from a transfer of this name that was cut. The next transfer of the name goes on with that part (DirOptions.KeepFor).
func (d *Dir) HasPart(name string) bool {
	if d.opt.KeepFor == 0 {
		return false
	}
	info, err := d.root.Lstat(partialName(name))
	return err == nil && info.Mode().IsRegular() && info.Size() > 0 && trusted(info)
}

// openPartial opens and locks the partial file of a name. It returns no file if there is none that this user alone may write to; again says that it has gone meanwhile.
func (d *Dir) openPartial(temp, name string) (part *os.File, again bool, err error) {
	info, err := d.root.Lstat(temp)
	if err != nil {
		return nil, errors.Is(err, fs.ErrNotExist), nil
	}
	if !info.Mode().IsRegular() { // opening a device may have effects
		return nil, false, nil
	}
	part, err = d.root.OpenFile(temp, os.O_RDWR|syscall.O_NONBLOCK, 0) // O_NONBLOCK, because opening a pipe would block
	if err != nil {
		return nil, errors.Is(err, fs.ErrNotExist), nil
	}
	err = lockTemp(part)
	at, lerr := d.root.Lstat(temp)
	opened, serr := part.Stat()
	switch {
	case isLocked(err):
		err = failf(CodeExists, "a file %q is being received right now by another process", name)
	case err != nil:
		err = nil
	case lerr != nil || serr != nil || !os.SameFile(at, opened):
		again = true
	case !opened.Mode().IsRegular() || !trusted(opened): // it is not used, and stays
	default:
		return part, false, nil
	}
	return nil, again, errors.Join(err, part.Close())
}

// exchange takes the partial file in the place of the new temporary one.
func (f *dirFile) exchange(part *os.File, name string) error {
	if err := f.hide(part); err != nil {
		return errors.Join(err, part.Close())
	}
	info, err := part.Stat()
	size := int64(0)
	if err == nil {
		if size = info.Size(); size > f.r.offer.Size {
			size, err = 0, part.Truncate(0)
		}
	}
	if err != nil {
		return storageFailure("go on with", f.name, errors.Join(err, part.Close()))
	}
	err = errors.Join(f.File.Close(), f.dir.root.Remove(f.temp))
	f.File, f.temp, f.r.named = part, name, true
	if err != nil {
		return storageFailure("go on with", f.name, err)
	}
	f.r.setHave(size)
	return nil
}

// hide keeps other users away from a temporary file that may stay for long. It gets the mode of a new file when it is complete.
func (f *dirFile) hide(temp *os.File) error {
	info, err := f.File.Stat()
	if err == nil {
		f.fresh = info.Mode().Perm()
		err = temp.Chmod(0o600)
	}
	if err != nil {
		return storageFailure("set the mode of", f.name, err)
	}
	return nil
}

// setHave says how many bytes the basis has.
func (r *resuming) setHave(n int64) {
	n = min(n, r.offer.Head+mostBlocks*resumeBlock)
	if n <= r.offer.Head {
		return
	}
	r.have = n
	r.differ = make([]uint64, (r.block(n-1)+64)/64)
}

// block returns the number of the block that has an offset.
func (r *resuming) block(offset int64) int64 { return (offset - r.offer.Head) / resumeBlock }

// compareOld takes the file that the transfer would replace as the basis, or finds that it is the sender's file.
func (f *dirFile) compareOld() error {
	info, err := f.dir.root.Lstat(f.name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != f.r.offer.Size || f.r.offer.Head > 0 { // the head crosses, and is not compared
		return nil
	}
	f.r.old = info
	if f.r.offer.Wishes&WishChecksum == 0 {
		f.r.none = f.dressed(info)
		return nil
	}
	old, err := f.dir.root.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil // it is replaced
	}
	if at, err := old.Stat(); err != nil || !os.SameFile(info, at) {
		_ = old.Close() // nothing was written to it
		return nil      // it is another file meanwhile, and is replaced
	}
	f.r.basis = old
	f.r.setHave(info.Size())
	return nil
}

// dressed reports whether a file of the receiver has the time of the sender's file, and its mode if that crosses.
func (f *dirFile) dressed(info fs.FileInfo) bool {
	return !f.meta.ModTime.IsZero() && info.ModTime().Equal(f.meta.ModTime) && (!f.chmod || info.Mode().Perm() == f.meta.Mode.Perm())
}

// Want implements [Chooser].
func (f *dirFile) Want() (w Wanted, err error) {
	r := f.r
	if r.none {
		return Wanted{Last: true}, nil
	}
	for r.asked < r.have && len(w.Ranges) < requestsAtOnce {
		n := min(r.have-r.asked, resumeBlock)
		w.Ranges = append(w.Ranges, Range{Offset: r.asked, Length: n, Sum: true})
		r.asked += n
		r.due++
	}
	if r.due > 0 {
		return w, nil
	}
	if r.basis != nil && f.keepsOld() {
		r.none = true
		return Wanted{Last: true}, nil
	}
	for r.next < r.offer.Size && len(w.Ranges) < requestsAtOnce {
		from := r.next
		for from < r.have && !r.differs(from) {
			from = min(from+resumeBlock, r.have)
		}
		to := from
		for to < r.have && r.differs(to) {
			to = min(to+resumeBlock, r.have)
		}
		if to >= r.have { // r.have may be 0, before the head
			to = r.offer.Size
		}
		if r.next = to; to > from {
			w.Ranges = append(w.Ranges, Range{Offset: from, Length: to - from})
		}
	}
	w.Last = r.next == r.offer.Size
	return w, nil
}

func (r *resuming) differs(offset int64) bool {
	n := r.block(offset)
	return r.differ[n/64]>>(n%64)&1 != 0
}

// keepsOld reports whether the file that would be replaced is the sender's in everything that crosses.
func (f *dirFile) keepsOld() bool {
	for _, bits := range f.r.differ {
		if bits != 0 {
			return false
		}
	}
	info, err := f.r.basis.Stat()
	return err == nil && (f.meta.ModTime.IsZero() || f.dressed(info)) && (!f.chmod || info.Mode().Perm() == f.meta.Mode.Perm()) && f.r.have == f.r.offer.Size
}

// commitOld ends a transfer that keeps the receiver's file. It fails if that is not the file that was compared. With Sync it waits until the file is on the disk, because
// another program may have written it.
func (f *dirFile) commitOld() error {
	if f.r.old == nil {
		return failf(CodeProtocol, "the sender ends a transfer of which it only wanted to know the effect")
	}
	changed := failf(CodeExists, "the file %q has changed at the receiver meanwhile; transfer it again", f.name)
	if !f.sameOld(f.dir.root.Lstat(f.name)) {
		return changed
	}
	if f.dir.opt.Sync {
		if err := f.syncOld(); err != nil {
			return err
		}
		if !f.sameOld(f.dir.root.Lstat(f.name)) {
			return changed
		}
	}
	return nil
}

// sameOld reports whether a look at the receiver's file finds it as it was compared.
func (f *dirFile) sameOld(info fs.FileInfo, err error) bool {
	old := f.r.old
	return err == nil && os.SameFile(old, info) && info.Mode() == old.Mode() && info.Size() == old.Size() && info.ModTime().Equal(old.ModTime())
}

// syncOld writes the receiver's file and its name to the disk. Windows syncs only files that were opened for writing, which would need a right that the transfer does not.
func (f *dirFile) syncOld() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	old, err := f.dir.root.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = errors.Join(old.Sync(), old.Close())
	}
	if err != nil {
		return storageFailure("sync", f.name, err)
	}
	return f.dir.sync()
}

// Sum implements [Chooser]. Blocks of the file that is replaced are copied while they are compared.
func (f *dirFile) Sum(req Range, sum [SumLen]byte) error {
	r := f.r
	r.due--
	from := f.File
	if r.basis != nil {
		from = r.basis
	}
	h := r.offer.NewHash()
	b := make([]byte, min(block, req.Length))
	for at := req.Offset; at < req.Offset+req.Length; at += int64(len(b)) {
		if f.ctx.Err() != nil {
			return context.Cause(f.ctx)
		}
		b = b[:min(int64(len(b)), req.Offset+req.Length-at)]
		if n, _ := from.ReadAt(b, at); n < len(b) { // it has become shorter, or cannot be read
			r.setDiffers(req.Offset)
			return nil
		}
		h.Write(b) // never fails (package hash)
		f.work.Add(1)
		if r.basis != nil {
			if _, err := f.WriteAt(b, at); err != nil {
				return storageFailure("write", f.name, err)
			}
		}
	}
	if !bytes.Equal(h.Sum(nil), sum[:]) {
		r.setDiffers(req.Offset)
	}
	return nil
}

func (r *resuming) setDiffers(offset int64) {
	n := r.block(offset)
	r.differ[n/64] |= 1 << (n % 64)
}

// Spare implements [Chooser]. A file removes nothing.
func (f *dirFile) Spare(int) {}

// Steps implements [Worker].
func (f *dirFile) Steps() uint64 { return f.work.Load() }

// closeBasis closes the file that would be replaced.
func (f *dirFile) closeBasis() {
	if f.r != nil && f.r.basis != nil {
		_ = f.r.basis.Close() // nothing was written to it
		f.r.basis = nil
	}
}

// keepsPartial reports whether the temporary file stays, so that a later transfer goes on with it. It is not closed.
func (f *dirFile) keepsPartial() bool {
	if f.r == nil || !f.r.named || f.closed || f.r.none {
		return false
	}
	info, err := f.File.Stat()
	return err == nil && info.Size() > 0
}

// isUseless reports whether the temporary file is empty because the receiver needs nothing.
func (f *dirFile) isUseless() bool { return f.r != nil && f.r.none && f.r.basis == nil }

// maxAge returns the age of the last write after which an unlocked temporary file is removed.
func (o *DirOptions) maxAge() time.Duration {
	if o.KeepFor > 0 {
		return o.KeepFor
	}
	return staleAfter
}

// cleanEvery is the time after which a directory that is in use looks for stale temporary files again.
const cleanEvery = time.Hour

// clean starts to remove stale temporary files, if the last removal began long ago. It ends with Close and not with the transfer that has begun it, because it may take longer than
// a transfer.
func (d *Dir) clean(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opt.KeepPartial || d.cleans || d.open.Err() != nil || now.Sub(d.cleaned) < min(cleanEvery, d.opt.maxAge()) {
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
