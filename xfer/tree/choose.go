package tree

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"cinnabar/xfer"
)

// choosing is what a receiver that chooses knows about the files of a tree. The ranges that it wants, in this order:
//
//	removals   the list of what goes (remove.go)
//	sums       of the blocks of files that are staged by an earlier transfer, or that --checksum compares
//	data       of all other files, of the blocks that differ, and behind the last block
type choosing struct {
	offer  xfer.Offer
	state  []state // of each entry
	have   []int64 // bytes of each file's data that are there, as far as their sums are the sender's
	starts []int64 // of each file's data, in those of the sender
	// returns the entry that is the n-th in the order of the data
	ordered func(n int) int
	met     []met // of each file and hard link that the receiver has; nil without wishes about them

	asked  blocks // sums that are wanted
	came   blocks // sums that have come
	differ []uint64
	found  cursor   // the data of the next sum that comes
	file   *os.File // of entry open, for sums
	open   int
	data   wanted
	// the sums have decided about the files that are compared
	decided bool
}

// met is what survey saw of a file of the receiver, by which a change of it is found later.
type met struct {
	id   identity
	time int64 // in ns since 1970
}

func metOf(info fs.FileInfo) met {
	id, _ := identityOf(info)
	return met{id, info.ModTime().UnixNano()}
}

// state is what the receiver has of an entry.
type state uint8

const (
	absent   state = iota
	staged         // a file below the temporary name, of which have bytes may be right
	finished       // a staged file that has all its data, its size, mode and time
	kept           // the receiver's file, which is the sender's
	compared       // the receiver's file, which may be the sender's; its sums decide
	linked         // a hard link of the receiver to the file that the sender says; kept, if the file is
)

const (
	resumeBlock    = 4 << 20 // bytes of one sum
	mostBlocks     = 1 << 20 // of one transfer; files behind them cross whole
	requestsAtOnce = 64
	// mostExpansion bounds the ratio between the length of a staged file and its room on the disk, because reading holes costs time and no traffic of the sender.
	mostExpansion = 64
)

// blocks goes through the blocks that sums are wanted of.
type blocks struct {
	entry int   // in the order of the data
	at    int64 // in the entry's data
	n     int   // blocks before
}

// next returns the next block: the entry, its place in the entry's data, and its length.
func (b *blocks) next(c *choosing) (entry int, at, length int64, ok bool) {
	for ; b.entry < len(c.have); b.entry, b.at = b.entry+1, 0 {
		i := c.ordered(b.entry)
		if left := c.have[i] - b.at; left > 0 && (c.state[i] == staged || c.state[i] == compared) {
			entry, at, length = i, b.at, min(left, resumeBlock)
			b.at += length
			b.n++
			return entry, at, length, true
		}
	}
	return 0, 0, 0, false
}

// Choose implements xfer.Chooser.
func (c *claimed) Choose(o xfer.Offer) error {
	if o.Wishes&xfer.WishDelete != 0 && !c.s.dir.opt.AllowDelete {
		return failf(xfer.CodeUnsupported, "this receiver removes nothing for senders; it does with DirOptions.AllowDelete (recv --allow-delete)")
	}
	c.s.choice = &choosing{offer: o, open: -1}
	c.head = o.Head
	return nil
}

// Steps implements xfer.Worker.
func (c *claimed) Steps() uint64 { return c.s.steps.Load() }

// Want implements xfer.Chooser.
func (c *claimed) Want() (w xfer.Wanted, err error) {
	if !c.begun {
		return w, failf(xfer.CodeProtocol, "the head of the tree ends inside the manifest")
	}
	return c.s.want()
}

// Sum implements xfer.Chooser.
func (c *claimed) Sum(r xfer.Range, sum [xfer.SumLen]byte) error { return c.s.compareBlock(r, sum) }

// Spare implements xfer.Chooser.
func (c *claimed) Spare(n int) {
	if n < len(c.s.removals) {
		c.s.removals[n].spared = true
	}
}

// survey prepares the choice, and takes files for unchanged that have size and time of the sender's.
func (s *storing) survey() error {
	c := s.choice
	n := len(s.m.Entries)
	c.state, c.have, c.starts, c.ordered = make([]state, n), make([]int64, n), s.starts(), s.ordered
	c.found = cursor{m: s.whole()}
	if c.offer.Wishes&(xfer.WishUpdate|xfer.WishChecksum) == 0 {
		return nil
	}
	c.met = make([]met, n)
	links := map[int][]int{}
	for i := range s.m.Entries {
		if e := &s.m.Entries[i]; e.Kind == HardLink {
			links[e.Link] = append(links[e.Link], i)
		}
	}
	if len(links) > 0 { // before the files, because these stay only if all their names do
		err := s.meet(func(i int, _ string, old fs.FileInfo) error {
			if s.m.Entries[i].Kind == HardLink && old != nil && old.Mode().IsRegular() {
				c.met[i] = metOf(old)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return s.meet(func(i int, at string, old fs.FileInfo) error {
		e := &s.m.Entries[i]
		if e.Kind != File || old == nil || !old.Mode().IsRegular() || old.Size() != e.Size || !s.dresses(e, old) || !s.sameNames(old, links[i]) {
			return nil
		}
		c.met[i] = metOf(old)
		switch checksum := c.offer.Wishes&xfer.WishChecksum != 0; {
		case !checksum && !e.ModTime.IsZero() && old.ModTime().Equal(e.ModTime):
			c.state[i] = kept
		case checksum && (e.data()/mostExpansion > allocated(old) || !s.zerosBetween(at, e, e.Size)):
		case checksum && e.data() == 0:
			c.state[i] = kept
		case checksum && s.countBlocks(e.data()):
			c.state[i], c.have[i] = compared, e.data()
		}
		if s.keeps(i) {
			for _, l := range links[i] {
				c.state[l] = linked
			}
		}
		return nil
	})
}

// dresses reports whether a file of the receiver has the mode and time of the sender's, or can get them.
func (s *storing) dresses(e *Entry, old fs.FileInfo) bool {
	return owned(old) || s.dir.opt.IgnoreMeta ||
		(!e.HasMode || old.Mode().Perm() == s.fileMode(e)) && (e.ModTime.IsZero() || old.ModTime().Equal(e.ModTime))
}

// sameNames reports whether a file of the receiver has, beside its own name, those of the links, and no others. Links below a link of the receiver were not met.
func (s *storing) sameNames(old fs.FileInfo, links []int) bool {
	id, n := identityOf(old)
	for _, l := range links {
		if s.choice.met[l].id != id {
			return false
		}
	}
	return n == 1+len(links)
}

// countBlocks counts the blocks of a file with so many bytes of data, and reports whether there may be so many.
func (s *storing) countBlocks(data int64) bool {
	n := (data + resumeBlock - 1) / resumeBlock
	if n > mostBlocks-s.blocks {
		return false
	}
	s.blocks += n
	return true
}

// keeps reports whether an entry of the receiver stays as it is.
func (s *storing) keeps(i int) bool {
	if s.choice == nil {
		return false
	}
	switch s.choice.state[i] {
	case kept, compared:
		return true
	case linked:
		return s.keeps(s.m.Entries[i].Link)
	default:
		return false
	}
}

// checkKept makes sure that the receiver's files that are to stay are there under all their names, as they were compared.
func (s *storing) checkKept() error {
	if s.choice == nil {
		return nil
	}
	for i := range s.choice.state {
		if s.keeps(i) {
			if _, err := s.lookAtKept(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookAtKept looks at a file of the receiver that stays, and fails if it is not as it was compared.
func (s *storing) lookAtKept(i int) (fs.FileInfo, error) {
	s.steps.Add(1)
	of := i
	if e := &s.m.Entries[i]; e.Kind == HardLink {
		of = e.Link
	}
	info, err := s.dir.root.Lstat(s.below(s.name, i))
	if err != nil || !info.Mode().IsRegular() || info.Size() != s.m.Entries[of].Size || metOf(info) != s.choice.met[of] {
		return nil, failf(xfer.CodeExists, "%s has changed at the receiver meanwhile; transfer the tree again", quote(s.m.Path(i)))
	}
	return info, nil
}

// dressKept gives the receiver's files that stay the modes and times of the sender's, and syncs them where the sync of the tree does not reach them.
func (s *storing) dressKept() error {
	if s.choice == nil {
		return nil
	}
	for i, st := range s.choice.state {
		if st != kept {
			continue
		}
		info, err := s.lookAtKept(i)
		if err != nil {
			return err
		}
		e, at := &s.m.Entries[i], s.below(s.name, i)
		if s.dir.opt.Sync && !syncsAll {
			err = s.syncFile(at)
		}
		if err == nil && s.given(e) && info.Mode().Perm() != s.fileMode(e) {
			err = s.dir.root.Chmod(at, s.fileMode(e))
		}
		if err == nil && !s.dir.opt.IgnoreMeta && !e.ModTime.IsZero() && !info.ModTime().Equal(e.ModTime) {
			err = s.dir.root.Chtimes(at, time.Time{}, e.ModTime)
		}
		if err != nil {
			return storageFailure("set mode and time of", s.m.Path(i), err)
		}
	}
	return nil
}

// syncFile writes a file that was there before to the disk, where that can be asked for without writing to it.
func (s *storing) syncFile(at string) error {
	f, err := s.dir.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(syncAll(f), f.Close())
}

// zerosBetween reports whether the parts of a file that a sparse entry does not list are zero, up to an offset.
func (s *storing) zerosBetween(at string, e *Entry, end int64) bool {
	if !e.Sparse {
		return true
	}
	f, err := s.dir.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	data := dataOf(f, end)
	if data == nil {
		data = []Extent{{0, end}}
	}
	next := 0
	for _, d := range data {
		for from := d.Offset; from < d.Offset+d.Length; {
			for next < len(e.Extents) && e.Extents[next].Offset+e.Extents[next].Length <= from {
				next++
			}
			to := d.Offset + d.Length
			if next < len(e.Extents) {
				if x := e.Extents[next]; x.Offset <= from {
					from = x.Offset + x.Length
					continue
				} else if x.Offset < to {
					to = x.Offset
				}
			}
			if !s.isZero(f, from, to) {
				return false
			}
			from = to
		}
	}
	return true
}

// isZero reports whether a file has zeros from an offset to another.
func (s *storing) isZero(f *os.File, from, to int64) bool {
	b := make([]byte, min(to-from, 256<<10))
	for from < to {
		if s.step() != nil {
			return false // the next step of the caller has the reason
		}
		b = b[:min(int64(len(b)), to-from)]
		if n, err := f.ReadAt(b, from); n < len(b) && (err == nil || !errors.Is(err, io.EOF) || n == 0) {
			return false
		} else if len(bytes.TrimLeft(b[:n], "\x00")) > 0 {
			return false
		} else {
			from += int64(n)
		}
	}
	return true
}

// want returns the next ranges.
func (s *storing) want() (w xfer.Wanted, err error) {
	c := s.choice
	if w.Removals = s.nextRemovals(); len(w.Removals) > 0 {
		return w, nil
	}
	if c.offer.Wishes&xfer.WishDryRun != 0 {
		return xfer.Wanted{Last: true}, nil
	}
	for len(w.Ranges) < requestsAtOnce {
		i, at, length, ok := c.asked.next(c)
		if !ok {
			break
		}
		w.Ranges = append(w.Ranges, xfer.Range{Offset: c.offer.Head + c.starts[i] + at, Length: length, Sum: true})
	}
	if len(w.Ranges) > 0 || c.came.n < c.asked.n {
		return w, nil
	}
	if !c.decided {
		s.decide()
	}
	for len(w.Ranges) < requestsAtOnce {
		r, ok := s.nextData()
		if !ok {
			w.Last = true
			break
		}
		r.Offset += c.offer.Head
		w.Ranges = append(w.Ranges, r)
	}
	return w, nil
}

// compareBlock compares a block of the receiver with its sum at the sender.
func (s *storing) compareBlock(r xfer.Range, sum [xfer.SumLen]byte) error {
	c := s.choice
	n := c.came.n
	i, _, length, ok := c.came.next(c)
	if !ok {
		return failf(xfer.CodeProtocol, "there is a sum of nothing")
	}
	if n%64 == 0 {
		c.differ = append(c.differ, 0)
	}
	c.found.skip(r.Offset - c.offer.Head)
	h := c.offer.NewHash()
	b := make([]byte, min(length, 256<<10))
	for left := length; left > 0; {
		if err := s.step(); err != nil {
			return err
		}
		_, offset, k, _ := c.found.next()
		b = b[:min(int64(cap(b)), k, left)]
		if !s.readHere(i, b, offset) {
			c.differ[n/64] |= 1 << (n % 64)
			return nil
		}
		h.Write(b) // never fails (package hash)
		c.found.advance(int64(len(b)))
		left -= int64(len(b))
	}
	if !bytes.Equal(h.Sum(nil), sum[:]) {
		c.differ[n/64] |= 1 << (n % 64)
	}
	return nil
}

// readHere reads a part of the receiver's file for entry i. A part that cannot be read crosses again.
func (s *storing) readHere(i int, b []byte, offset int64) bool {
	c := s.choice
	if c.open != i {
		s.closeCompared()
		at := s.below(s.name, i)
		if c.state[i] == staged {
			at = s.staged(i)
		}
		f, err := s.dir.root.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return false
		}
		c.file, c.open = f, i
	}
	n, _ := c.file.ReadAt(b, offset)
	return n == len(b)
}

// closeCompared closes the file that is compared.
func (s *storing) closeCompared() {
	if c := s.choice; c != nil && c.file != nil {
		_ = c.file.Close() // nothing was written to it
		c.file, c.open = nil, -1
	}
}

// decide keeps the files of which all sums are those of the sender. The others of which sums were compared cross whole.
func (s *storing) decide() {
	c := s.choice
	c.decided = true
	s.closeCompared()
	equal := map[int]bool{}
	for all := (blocks{}); ; {
		n := all.n
		i, at, length, ok := all.next(c)
		if !ok {
			break
		}
		differs := c.differ[n/64]>>(n%64)&1 != 0
		if c.state[i] == compared {
			same, known := equal[i]
			equal[i] = (same || !known) && !differs
		} else if differs {
			c.data.wrong = append(c.data.wrong, Extent{c.starts[i] + at, length})
		}
	}
	for i, same := range equal {
		if c.state[i] = absent; same {
			c.state[i] = kept
		}
	}
}

// wanted goes through the data that are wanted, after decide.
type wanted struct {
	entry int      // in the order of the data
	wrong []Extent // blocks of staged files that differ
	last  Extent   // which may go on; Length 0: there is none
}

// nextData returns the next range of the data. Ranges that follow one another without a gap are one.
func (s *storing) nextData() (r xfer.Range, ok bool) {
	d := &s.choice.data
	for {
		x, ok := s.nextRange()
		switch {
		case ok && d.last.Length > 0 && d.last.Offset+d.last.Length == x.Offset:
			d.last.Length += x.Length
			continue
		case !ok && d.last.Length == 0:
			return r, false
		case d.last.Length > 0:
			r = xfer.Range{Offset: d.last.Offset, Length: d.last.Length}
			d.last = x
			return r, true
		}
		d.last = x
	}
}

// nextRange returns the next range in one file; false at the end.
func (s *storing) nextRange() (x Extent, ok bool) {
	c, d := s.choice, &s.choice.data
	for d.entry < len(s.m.Entries) {
		i := s.ordered(d.entry)
		e := &s.m.Entries[i]
		have := int64(0)
		if c.state[i] == staged {
			have = c.have[i]
			if len(d.wrong) > 0 && d.wrong[0].Offset < c.starts[i]+have {
				x, d.wrong = d.wrong[0], d.wrong[1:]
				return x, true
			}
		}
		d.entry++
		if left := e.data() - have; e.Kind == File && left > 0 && (c.state[i] == staged || c.state[i] == absent) {
			return Extent{c.starts[i] + have, left}, true
		}
	}
	return x, false
}
