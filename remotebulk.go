package cinnabar

import (
	"context"
	"io"
	"sync"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/sglist"
)

// RemoteBulk is a handle joined with the process that holds the memory; [BulkHandle.On] makes it. It is a plain value,
// safe for concurrent use, and has nothing to close.
//
// The process that has a RemoteBulk starts the transfers. A transfer moves the smaller of the two sizes and returns the number of bytes;
// use Slice on either side for a part. When Pull, Push or Pending.Wait has returned, with an error or without, the network does not
// touch the local memory any more, also when the context has ended and also when the peer has died.
//
// If the memory belongs to this very process, transfers are copies.
type RemoteBulk struct {
	h      BulkHandle
	ep     *Endpoint
	off, n int64
	err    error // the reason why the view is void, which every use returns; nil: it is valid
}

// Slice is the part of r that starts at offset off and has n bytes. If there is no such part, every use of it fails with
// an [*Error] of [codes.InvalidArg] that says so: offsets and sizes may come from a peer.
func (r RemoteBulk) Slice(off, n int64) RemoteBulk {
	if r.err != nil {
		return r
	}
	if err := checkSlice(off, n, r.n); err != nil {
		return RemoteBulk{h: r.h, ep: r.ep, err: err}
	}
	r.off, r.n = r.off+off, n
	return r
}

// Len is the number of bytes that the peer says there are.
func (r RemoteBulk) Len() int64 { return r.n }

// Endpoint is the process that holds the memory.
func (r RemoteBulk) Endpoint() *Endpoint { return r.ep }

// Pull reads remote memory into local memory: HG_BULK_PULL. The remote Bulk must be readable and the local one writable,
// else the error is [codes.Permission] and nothing is sent.
func (r RemoteBulk) Pull(ctx context.Context, into *Bulk) (int64, error) {
	return r.transfer(ctx, pull, into)
}

// Push writes local memory to remote memory: HG_BULK_PUSH. It returns when the peer has placed all of it. The remote Bulk
// must be writable and the local one readable, else the error is [codes.Permission] and nothing is sent.
func (r RemoteBulk) Push(ctx context.Context, from *Bulk) (int64, error) {
	return r.transfer(ctx, push, from)
}

// StartPull is Pull that does not wait. The operation is cancelled when ctx ends.
func (r RemoteBulk) StartPull(ctx context.Context, into *Bulk) *Pending[int64] {
	return startPending(ctx, r, pull, into)
}

// StartPush is Push that does not wait. The operation is cancelled when ctx ends.
func (r RemoteBulk) StartPush(ctx context.Context, from *Bulk) *Pending[int64] {
	return startPending(ctx, r, push, from)
}

// PullChunks is Pull in chunks of chunk bytes, the last one shorter if need be. At most inFlight chunks are under way
// at a time; 0 stands for 8. Between chunks the network serves others, which a single large transfer makes wait. A chunk
// of 0 or less bytes is refused.
//
// If a chunk fails, the others are cancelled, and the count is of the bytes from the start that have all arrived.
func (r RemoteBulk) PullChunks(ctx context.Context, into *Bulk, chunk int64, inFlight int) (int64, error) {
	return r.chunks(ctx, pull, into, chunk, inFlight)
}

// PushChunks is Push in chunks, as PullChunks is Pull.
func (r RemoteBulk) PushChunks(ctx context.Context, from *Bulk, chunk int64, inFlight int) (int64, error) {
	return r.chunks(ctx, push, from, chunk, inFlight)
}

func (r RemoteBulk) transfer(ctx context.Context, d *direction, b *Bulk) (int64, error) {
	n, err := r.common(d, b)
	if err != nil {
		return 0, err
	}
	m := newMove(ctx, part{r: r, d: d, n: n})
	defer m.release()
	if err := m.prepare(b, 0); err != nil {
		return 0, err
	}
	m.t.Block()
	m.start(ctx)
	return m.wait(ctx)
}

// common returns how many bytes a transfer between r and b moves.
func (r RemoteBulk) common(d *direction, b *Bulk) (int64, error) {
	switch {
	case r.err != nil:
		return 0, r.err
	case b == nil:
		return 0, argumentError(d.op, "", r.ep.String(), "no local bulk given")
	case b.err != nil:
		return 0, b.err
	}
	return min(r.n, b.n), nil
}

// check says why no transfer with r can be started.
func (r RemoteBulk) check(d *direction) error {
	if r.err != nil {
		return r.err
	}
	if err := r.ep.usable(); err != nil {
		return err
	}
	if r.h.d == nil {
		return argumentError(d.op, "", r.ep.String(), "the handle is null")
	}
	if mode := r.h.Mode(); !mode.allows(d.remote) {
		return permission(d.op, r.ep.String(), "remote", mode, d.remote)
	}
	return nil
}

// defaultInFlight is the number of chunks under way if inFlight is 0: enough to fill the time in which the
// peer turns one around.
const defaultInFlight = 8

func (r RemoteBulk) chunks(ctx context.Context, d *direction, b *Bulk, chunk int64, inFlight int) (int64, error) {
	total, err := r.common(d, b)
	switch {
	case err != nil:
		return 0, err
	case chunk <= 0:
		return 0, argumentError(d.op, "", r.ep.String(), "chunks of %d bytes; give at least 1", chunk)
	case inFlight < 0:
		return 0, argumentError(d.op, "", r.ep.String(), "%d chunks in flight; give at least 1, or 0 for %d", inFlight, defaultInFlight)
	case inFlight == 0:
		inFlight = defaultInFlight
	}
	if total <= chunk {
		return r.transfer(ctx, d, b)
	}
	t := chunkedTransfer{r: r, d: d, b: b, chunk: chunk, total: total, limit: inFlight}
	return t.run(ctx)
}

// ReadAt copies from the memory to p. It is an [io.ReaderAt] in every mode, because the mode limits peers only.
func (b *Bulk) ReadAt(p []byte, off int64) (int, error) {
	return b.copyAt("read", p, off, io.EOF, func(seg, p []byte) (int, error) { return hostmem.Copy(p, seg) })
}

// WriteAt copies p to the memory. It is an [io.WriterAt] in every mode, because the mode limits peers only. Bytes beyond
// the end are not written, and the error then is [io.ErrShortWrite]. A file that [Engine.ExposeFile] exposes for reading cannot be
// written: [codes.Permission].
func (b *Bulk) WriteAt(p []byte, off int64) (int, error) {
	if b.mem.fixed {
		return 0, permission("write", "", "local", b.mem.mode, WriteOnly)
	}
	return b.copyAt("write", p, off, io.ErrShortWrite, func(seg, p []byte) (int, error) { return hostmem.Copy(seg, p) })
}

// copyAt moves bytes between p and the memory from off on; short is the error if p goes beyond the end.
func (b *Bulk) copyAt(op string, p []byte, off int64, short error, move func(seg, p []byte) (int, error)) (int, error) {
	if err := b.use(op); err != nil {
		return 0, err
	}
	defer b.life.Release()
	n, err := clip(op, len(p), off, b.n, short)
	done := 0
	for _, seg := range sglist.Slice(nil, b.mem.segs, b.off+off, n) {
		moved, fault := move(seg, p[done:])
		if fault != nil { // a mapping of a file that has become shorter, or has no room
			return done, &Error{Op: op, Code: codes.Fault, Err: fault}
		}
		done += moved
	}
	return done, err
}

// clip returns how many of want bytes from off on there are among size, and short if fewer than wanted. An offset below
// 0 is an error, one beyond the end is short of everything.
func clip(op string, want int, off, size int64, short error) (int64, error) {
	if off < 0 {
		return 0, argumentError(op, "", "", "offset %d is negative", off)
	}
	n := min(int64(want), max(size-off, 0))
	if n < int64(want) {
		return n, short
	}
	return n, nil
}

// ReadAt reads len(p) bytes of the remote memory from offset off on, straight into p. At the end of the memory it returns the
// bytes up to there and [io.EOF], as an [io.ReaderAt] does; [RemoteBulk.Reader] returns one. It is cancelled when ctx ends. When
// it returns, nothing writes to p any more; the content of p is undefined after an error other than [io.EOF].
func (r RemoteBulk) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return r.bytesAt(ctx, pull, p, off, io.EOF)
}

// WriteAt writes p to the remote memory from offset off on. Bytes beyond the end are not written, and the error then is
// [io.ErrShortWrite]. It is cancelled when ctx ends. When it returns, nothing reads p any more; which bytes have arrived is unknown
// after an error other than [io.ErrShortWrite].
func (r RemoteBulk) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return r.bytesAt(ctx, push, p, off, io.ErrShortWrite)
}

// bytesAt transfers between p and the remote memory from off on; short is the error if p goes beyond the end.
func (r RemoteBulk) bytesAt(ctx context.Context, d *direction, p []byte, off int64, short error) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, end := clip(d.op, len(p), off, r.n, short)
	if n == 0 {
		return 0, end
	}
	m := newMove(ctx, part{r, d, off, n})
	defer m.release()
	m.segs = append(m.segs, p[:n])
	if err := m.admit(); err != nil {
		return 0, err
	}
	m.t.Block()
	m.start(ctx)
	done, err := m.wait(ctx)
	if err != nil {
		return int(done), err
	}
	return int(done), end
}

// Writer returns an [io.Writer], [io.WriterAt] and [io.Seeker] at the start of the remote memory. It costs no traffic; each write
// is a transfer of its own. The end of ctx cancels the writes.
func (r RemoteBulk) Writer(ctx context.Context) *io.OffsetWriter {
	return io.NewOffsetWriter(within{ctx, r}, 0)
}

// within is remote memory for interfaces without contexts: an [io.ReaderAt] and [io.WriterAt]. ctx cancels its transfers.
type within struct {
	ctx context.Context
	r   RemoteBulk
}

func (w within) ReadAt(p []byte, off int64) (int, error)  { return w.r.ReadAt(w.ctx, p, off) }
func (w within) WriteAt(p []byte, off int64) (int, error) { return w.r.WriteAt(w.ctx, p, off) }

var (
	_ io.ReaderAt = (*Bulk)(nil)
	_ io.WriterAt = (*Bulk)(nil)
)

// WriteTo of [RemoteBulk.Reader] has up to 4 pieces of 1 MiB under way at a time.
const (
	readAheadPieces = 4
	readAheadBytes  = 1 << 20
)

// Reader returns a reader at the start of the remote memory, for packages such as archive/zip. It costs no traffic. The end of ctx
// cancels its reads.
//
// Each Read is a transfer of its own, so put a [bufio.Reader] in between where reads are small. WriteTo, which [io.Copy] calls, copies
// the remote memory from the position to its end to w and returns the number of bytes that w has taken. It reads ahead, up to four
// pieces of 1 MiB at a time, because the network would be idle if each transfer waited for the one before it. The first error of a
// transfer or of w ends WriteTo, and the position is then behind the last byte that w has taken.
//
// Read, Seek and WriteTo share one position, so only one goroutine at a time may call them; ReadAt is safe for concurrent use.
func (r RemoteBulk) Reader(ctx context.Context) interface {
	io.ReadSeeker
	io.ReaderAt
	io.WriterTo
} {
	w := within{ctx, r}
	return &remoteReader{SectionReader: io.NewSectionReader(w, 0, r.Len()), remote: w}
}

// remoteReader is the result of [RemoteBulk.Reader].
type remoteReader struct {
	*io.SectionReader
	remote within
}

// WriteTo implements [io.WriterTo].
func (r *remoteReader) WriteTo(w io.Writer) (n int64, err error) {
	from, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(r.remote.ctx)
	ahead := newReadAhead(ctx, r.remote.r, from)
	defer ahead.reads.Wait()
	defer cancel()
	for err == nil {
		piece, readErr := ahead.next(ctx)
		if readErr == io.EOF { //nolint:errorlint // next returns io.EOF itself
			break
		}
		if err = readErr; err != nil {
			break
		}
		var written int
		written, err = w.Write(piece)
		if err == nil && written < len(piece) {
			err = io.ErrShortWrite
		}
		n += int64(min(max(written, 0), len(piece)))
	}
	if _, seekErr := r.Seek(from+n, io.SeekStart); err == nil {
		err = seekErr
	}
	return n, err
}

// readAhead reads remote memory piece by piece, some of them at the same time.
type readAhead struct {
	remote RemoteBulk
	at     int64 // offset of the next piece to read
	pieces []*readPiece
	oldest int  // index in pieces of the next one for the caller
	given  bool // the caller has the bytes of the oldest piece
	reads  sync.WaitGroup
}

// readPiece is a piece under way. The goroutine that reads owns its buffer until it sends on done.
type readPiece struct {
	buf  []byte
	n    int
	err  error
	done chan struct{} // of capacity 1; holds an element when the read has ended
	busy bool          // a read has begun, and next has not received from done
}

// newReadAhead starts to read at offset at. The end of ctx ends the reads; the caller then waits for a.reads.
func newReadAhead(ctx context.Context, r RemoteBulk, at int64) *readAhead {
	a := &readAhead{remote: r, at: at}
	for range readAheadPieces {
		p := &readPiece{done: make(chan struct{}, 1)}
		a.pieces = append(a.pieces, p)
		a.begin(ctx, p)
	}
	return a
}

// begin starts to read the next piece into p, if any is left.
func (a *readAhead) begin(ctx context.Context, p *readPiece) {
	n := min(readAheadBytes, a.remote.Len()-a.at)
	if n <= 0 {
		return
	}
	if p.buf == nil {
		p.buf = make([]byte, n) // no later piece is longer
	}
	off := a.at
	a.at += n
	p.busy = true
	a.reads.Go(func() {
		p.n, p.err = a.remote.ReadAt(ctx, p.buf[:n], off)
		p.done <- struct{}{}
	})
}

// next returns the bytes of the next piece, which belong to the caller until the next call, or [io.EOF] at the end.
func (a *readAhead) next(ctx context.Context) ([]byte, error) {
	if a.given { // the caller no longer uses the piece of the previous call
		a.begin(ctx, a.pieces[a.oldest])
		a.oldest = (a.oldest + 1) % len(a.pieces)
	}
	p := a.pieces[a.oldest]
	if !p.busy {
		return nil, io.EOF
	}
	<-p.done
	p.busy, a.given = false, true
	return p.buf[:p.n], p.err
}
