package xfer

import (
	"context"
	"errors"
	"hash"
	"io"
	"sync"
	"sync/atomic"

	"cinnabar/internal/crc32c"
)

// reader reads the source for a client. It is used by one goroutine.
type reader struct {
	src     Source
	buf     []byte // the data buffers, one behind the other
	chunk   int
	checked bool // compute checksums
	beyond  [1]byte
	sum     func() hash.Hash // of the ranges that the receiver has
	scratch []byte
}

// do is the job of the client's worker.
func (r *reader) do(a action) event {
	ev := event{kind: evRead, slot: a.slot, n: a.n}
	b := r.buf[a.slot*r.chunk:][:a.n]
	if a.parts != nil {
		ev.err = r.readParts(b, a.parts)
		ev.crc = crc32c.Checksum(b)
		return ev
	}
	if !r.checked {
		ev.err = r.read(b, a.offset)
		return ev
	}
	for done := 0; ev.err == nil && (done < len(b) || done == 0); done += block {
		part := b[done:min(done+block, len(b))]
		if ev.err = r.read(part, a.offset+int64(done)); ev.err == nil {
			ev.crc = crc32c.Update(ev.crc, part)
		}
	}
	return ev
}

// block is how many bytes are read between two updates of the checksum: few
// enough that they are still in the processor's cache.
const block = 256 << 10

// readParts fills b with ranges of the source and with sums of others.
func (r *reader) readParts(b []byte, parts []Range) error {
	for _, p := range parts {
		if !p.Sum {
			if err := r.read(b[:p.Length], p.Offset); err != nil {
				return err
			}
			b = b[p.Length:]
			continue
		}
		sum, err := r.sumOf(p)
		if err != nil {
			return err
		}
		b = b[copy(b, sum):]
	}
	return nil
}

// sumOf returns the sum of a range.
func (r *reader) sumOf(p Range) ([]byte, error) {
	if r.scratch == nil {
		r.scratch = make([]byte, block)
	}
	h, data := r.sum(), r.src.Data
	if c := r.src.Choice; c != nil && c.SumData != nil {
		data = c.SumData
	}
	for done := int64(0); done < p.Length; {
		part := r.scratch[:min(p.Length-done, block)]
		if err := r.readFrom(data, part, p.Offset+done); err != nil {
			return nil, err
		}
		h.Write(part) // never fails (package hash)
		done += int64(len(part))
	}
	return h.Sum(nil), nil
}

// read fills b from offset and, if that is the end of the file as it was
// announced, looks whether it is still the end.
func (r *reader) read(b []byte, offset int64) error {
	return r.readFrom(r.src.Data, b, offset)
}

// readFrom is read with the bytes of data.
func (r *reader) readFrom(data io.ReaderAt, b []byte, offset int64) error {
	if n, err := data.ReadAt(b, offset); n < len(b) {
		if errors.Is(err, io.EOF) {
			return failf(CodeChanged, "the file ends after %d bytes; it had %d when the transfer began", offset+int64(n), r.src.Size)
		}
		return orOwn(err, failf(CodeSource, "cannot read at offset %d: %w", offset+int64(n), err))
	}
	if offset+int64(len(b)) < r.src.Size {
		return nil
	}
	if n, err := data.ReadAt(r.beyond[:], r.src.Size); n > 0 {
		return failf(CodeChanged, "the file has grown beyond the %d bytes that it had when the transfer began", r.src.Size)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return orOwn(err, failf(CodeSource, "cannot read at offset %d: %w", r.src.Size, err))
	}
	return nil
}

// orOwn returns the failure that a source or a file reports with a class of its own, and otherwise def: a tree, say, is refused while its first bytes are written.
func orOwn(err error, def *failure) *failure {
	if f := asFailure(err); f.code != CodeOther {
		return f
	}
	return def
}

// storer makes and writes the file for a server. It is used by one goroutine.
type storer struct {
	make  func(name string) (File, error)
	file  File // nil before it is made and after it has its name
	buf   []byte
	chunk int

	offer    *Offer  // nil: all bytes cross
	chooser  Chooser // file, or everything; nil without an offer
	requests []Range // that are not answered whole
	answer   []byte  // the beginning of a sum
	working  atomic.Pointer[Worker]
	listed   atomic.Uint64  // removals that the user of a puller has had
	removals *localRemovals // of a puller, whose own user decides about them; nil: the peer decides
}

// localRemovals asks the user of a puller for each removal that its file wants. One goroutine uses it.
type localRemovals struct {
	may   func(path string, directory bool) bool // Puller.Remove; nil: everything may be removed
	paths removalPaths
	n     int // removals before
}

// take asks for each removal whether it may happen, lets the file spare the others, and counts all in listed, because a terminal may take long for the list.
func (l *localRemovals) take(list []Removal, c Chooser, listed *atomic.Uint64) error {
	for i := range list {
		listed.Add(1)
		path := l.paths.path(&list[i])
		if path == "" {
			return failf(CodeOther, "the file would remove %q at depth %d, which is in no directory before it", list[i].Name, list[i].Depth)
		}
		if !list[i].Stays && l.may != nil && !l.may(path, list[i].Dir) {
			c.Spare(l.n)
		}
		l.n++
	}
	return nil
}

// steps returns how far the work of the file is, and that of the user who gets its list.
func (s *storer) steps() uint64 {
	n := s.listed.Load()
	if w := s.working.Load(); w != nil {
		n += (*w).Steps()
	}
	return n
}

// endingWith returns do for a file that has ctx: an error that says only that ctx has ended is the reason for that.
func endingWith(ctx context.Context, do func(action) event) func(action) event {
	return func(a action) event {
		ev := do(a)
		ev.err = reasonOf(ctx, ev.err)
		return ev
	}
}

// reasonOf returns err with the code of the reason for the end of ctx, if err comes from that end, and err otherwise. An error that says nothing but that ctx has ended becomes
// the reason.
func reasonOf(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if !errors.Is(err, cause) && !errors.Is(err, ctx.Err()) {
		return err
	}
	reason := failure{code: CodeCanceled, err: cause}
	if f, ok := errors.AsType[*failure](cause); ok { // the reason of this package
		reason = *f
	}
	if text := err.Error(); text != cause.Error() && text != ctx.Err().Error() {
		reason.err = err
	}
	return &reason
}

// endOf returns the reason for the end of the context of a file, and of the other lanes, after the transfer has ended with err.
func endOf(err error) error {
	if err == nil {
		return failf(CodeCanceled, "the transfer is complete")
	}
	return asFailure(err)
}

// do is the job of the server's worker.
func (s *storer) do(a action) event {
	switch a.kind {
	case actOpen:
		return event{kind: evOpened, err: s.open(&a)}
	case actStore:
		return event{kind: evStored, slot: a.slot, n: a.n, err: s.store(a)}
	case actWant:
		return s.want()
	case actSpare:
		for i := range mostRemovals {
			if a.crc>>i&1 != 0 {
				s.chooser.Spare(int(a.offset) + i)
			}
		}
		return event{kind: evSpared}
	default:
		return event{kind: evCommitted, err: s.commit()}
	}
}

func (s *storer) open(a *action) error {
	name := string(a.msg)
	f, err := s.make(name)
	if err != nil {
		return classed(CodeStorage, err)
	}
	if f == nil {
		return failf(CodeStorage, "the receiver's Open made no file for %q", name)
	}
	s.file = f
	if w, ok := f.(Worker); ok {
		s.working.Store(&w)
	}
	if s.offer == nil {
		return nil
	}
	s.offer.Head, s.offer.Wishes = a.offset, Wishes(a.crc)
	c, ok := f.(Chooser)
	if !ok {
		c = &everything{File: f}
	}
	s.chooser = c
	if err := c.Choose(*s.offer); err != nil {
		return classed(CodeStorage, err)
	}
	return nil
}

// want asks the file for requests.
func (s *storer) want() event {
	w, err := s.nextWanted()
	if err != nil {
		return event{kind: evWanted, err: classed(CodeStorage, err)}
	}
	s.requests = append(s.requests, w.Ranges...)
	return event{kind: evWanted, want: w}
}

// nextWanted asks the file for requests. At a puller it asks again as long as the file returns removals only, because the peer does not get these.
func (s *storer) nextWanted() (Wanted, error) {
	for {
		w, err := s.chooser.Want()
		if err != nil {
			return w, err
		}
		for i := range w.Removals {
			if !w.Removals[i].proper() {
				return w, failf(CodeOther, "the receiver's file would remove %q at depth %d", w.Removals[i].Name, w.Removals[i].Depth)
			}
		}
		if s.removals == nil || len(w.Removals) == 0 {
			return w, nil
		}
		if err := s.removals.take(w.Removals, s.chooser, &s.listed); err != nil {
			return w, err
		}
		if w.Removals = nil; len(w.Ranges) > 0 || w.Last {
			return w, nil
		}
	}
}

// answered takes bytes that answer requests.
func (s *storer) answered(b []byte) error {
	for len(b) > 0 {
		r := &s.requests[0]
		if r.Sum {
			n := min(SumLen-len(s.answer), len(b))
			s.answer = append(s.answer, b[:n]...)
			b = b[n:]
			if len(s.answer) < SumLen {
				return nil
			}
			if err := s.chooser.Sum(*r, [SumLen]byte(s.answer)); err != nil {
				return classed(CodeStorage, err)
			}
			s.answer, s.requests = s.answer[:0], s.requests[1:]
			continue
		}
		n := min(r.Length, int64(len(b)))
		if err := s.write(b[:n], r.Offset); err != nil {
			return err
		}
		b = b[n:]
		r.Offset, r.Length = r.Offset+n, r.Length-n
		if r.Length == 0 {
			s.requests = s.requests[1:]
		}
	}
	return nil
}

// store writes a chunk, unless it is known to be damaged.
func (s *storer) store(a action) error {
	if a.err != nil {
		return a.err
	}
	if a.n == 0 { // a stream that pauses
		return nil
	}
	b, offset := s.buf[a.slot*s.chunk:][:a.n], a.offset
	if s.offer == nil {
		return s.write(b, offset)
	}
	if n := min(s.offer.Head-offset, int64(len(b))); n > 0 {
		if err := s.write(b[:n], offset); err != nil {
			return err
		}
		b = b[n:]
	}
	return s.answered(b)
}

// write writes bytes at an offset of the source.
func (s *storer) write(b []byte, offset int64) error {
	n, err := s.file.WriteAt(b, offset)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return writeFailure(err, offset+int64(n))
	}
	return nil
}

// writeFailure returns the failure of a write to the file at an offset of the source.
func writeFailure(err error, offset int64) *failure {
	return orOwn(err, failf(CodeStorage, "cannot write at offset %d: %w", offset, diskFailure(err)))
}

// check compares the checksum of a chunk.
func check(b []byte, a *action) error {
	if sum := crc32c.Checksum(b); sum != a.crc {
		return failf(CodeCorrupt, "the chunk at offset %d has CRC32C %08x here and %08x at the sender", a.offset, sum, a.crc)
	}
	return nil
}

func (s *storer) commit() error {
	if err := s.file.Commit(); err != nil {
		f := classed(CodeStorage, err)
		return &failure{code: f.code, remote: f.remote, err: err} // with the text around the failure: what stands under its name, and what is gone
	}
	s.file = nil
	return nil
}

// discard drops a file that did not get its name. The worker has stopped.
func (s *storer) discard() error {
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Discard()
}

// hasher computes the digest of the file. It is used by one goroutine.
type hasher struct {
	sum   hash.Hash
	buf   []byte
	chunk int
}

func newHasher(sum hash.Hash, buf []byte, chunk int) *hasher {
	return &hasher{sum: sum, buf: buf, chunk: chunk}
}

// do is the job of the digest's worker.
func (h *hasher) do(a action) event {
	if a.kind == actSum {
		return event{kind: evSummed, sum: [SumLen]byte(h.sum.Sum(nil))}
	}
	h.sum.Write(h.buf[a.slot*h.chunk:][:a.n]) // never fails (package hash)
	return event{kind: evHashed, slot: a.slot, n: a.n}
}

// worker is a goroutine that does jobs in order and reports the result of each. One worker
// reads or writes the disk, another computes the digest, so that both overlap with
// the network. It ends with stop, which waits for it.
type worker struct {
	jobs    chan action // room for all that can be under way, so that giving a job never blocks
	do      func(action) event
	report  func(event)
	stopped atomic.Bool
	wg      sync.WaitGroup
}

// newWorker makes a worker for at most depth jobs at a time. Its goroutine begins with start.
func newWorker(depth int, do func(action) event, report func(event)) *worker {
	return &worker{jobs: make(chan action, depth), do: do, report: report}
}

// start starts the goroutine.
func (l *worker) start() { l.wg.Go(l.run) }

// run does all jobs until cancel.
func (l *worker) run() {
	for a := range l.jobs {
		l.job(a)
	}
}

// job does one job, unless the session has finished.
func (l *worker) job(a action) {
	if !l.stopped.Load() {
		l.report(l.do(a))
	}
}

// cancel skips the jobs that have not begun. The session has finished, so no further job
// comes.
func (l *worker) cancel() {
	if !l.stopped.Swap(true) {
		close(l.jobs)
	}
}

// stop is cancel, and waits for the job that has begun.
func (l *worker) stop() {
	l.cancel()
	l.wg.Wait()
}
