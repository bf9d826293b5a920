package cinnabar

import (
	"context"
	"io"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/sglist"
)

// ReadAt copies from the memory to p. It is an [io.ReaderAt], whatever the mode: that is about peers.
func (b *Bulk) ReadAt(p []byte, off int64) (int, error) {
	return b.copyAt("read", p, off, io.EOF, func(seg, p []byte) (int, error) { return hostmem.Copy(p, seg) })
}

// WriteAt copies p to the memory. It is an [io.WriterAt], whatever the mode: that is about peers. What does not fit is
// not written, and the error then is [io.ErrShortWrite]. A file that [Engine.ExposeFile] exposes for reading cannot be
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

// within is remote memory for interfaces without contexts: an [io.ReaderAt] and [io.WriterAt] whose transfers ctx cancels.
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
