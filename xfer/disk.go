package xfer

import (
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
}

// do is the job of the client's worker.
func (r *reader) do(a action) event {
	ev := event{kind: evRead, slot: a.slot, n: a.n}
	b := r.buf[a.slot*r.chunk:][:a.n]
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

// read fills b from offset and, if that is the end of the file as it was
// announced, looks whether it is still the end.
func (r *reader) read(b []byte, offset int64) error {
	if n, err := r.src.Data.ReadAt(b, offset); n < len(b) {
		if errors.Is(err, io.EOF) {
			return failf(CodeChanged, "the file ends after %d bytes; it had %d when the transfer began", offset+int64(n), r.src.Size)
		}
		return orOwn(err, failf(CodeSource, "cannot read at offset %d: %w", offset+int64(n), err))
	}
	if offset+int64(len(b)) < r.src.Size {
		return nil
	}
	if n, err := r.src.Data.ReadAt(r.beyond[:], r.src.Size); n > 0 {
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
}

// do is the job of the server's worker.
func (s *storer) do(a action) event {
	switch a.kind {
	case actOpen:
		return event{kind: evOpened, err: s.open(string(a.msg))}
	case actStore:
		return event{kind: evStored, slot: a.slot, n: a.n, err: s.store(a)}
	default:
		return event{kind: evCommitted, err: s.commit()}
	}
}

func (s *storer) open(name string) error {
	f, err := s.make(name)
	if err != nil {
		return classed(CodeStorage, err)
	}
	if f == nil {
		return failf(CodeStorage, "the receiver's Open made no file for %q", name)
	}
	s.file = f
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
	b := s.buf[a.slot*s.chunk:][:a.n]
	n, err := s.file.WriteAt(b, a.offset)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return orOwn(err, failf(CodeStorage, "cannot write at offset %d: %w", a.offset+int64(n), diskFailure(err)))
	}
	return nil
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
		return classed(CodeStorage, err)
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
