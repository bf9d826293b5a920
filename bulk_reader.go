package cinnabar

import (
	"context"
	"io"
	"sync"
)

// [RemoteReader.WriteTo] has up to 4 pieces of 1 MiB under way at a time.
const (
	readAheadPieces = 4
	readAheadBytes  = 1 << 20
)

// Reader returns a RemoteReader at the start of the remote memory. It costs no traffic. The end of ctx cancels its reads.
func (r RemoteBulk) Reader(ctx context.Context) *RemoteReader {
	w := within{ctx, r}
	return &RemoteReader{SectionReader: io.NewSectionReader(w, 0, r.Len()), remote: w}
}

// A RemoteReader reads remote memory in order: an [io.Reader], [io.Seeker], [io.ReaderAt] and [io.WriterTo] for packages
// such as archive/zip. Each Read is a transfer of its own, so put a [bufio.Reader] in between where reads are small.
// Read, Seek and WriteTo share one position, so only one goroutine at a time may call them; ReadAt is safe for concurrent use.
type RemoteReader struct {
	*io.SectionReader
	remote within
}

var _ io.WriterTo = (*RemoteReader)(nil)

// WriteTo copies the remote memory from the position to its end to w and returns the number of bytes that w has taken. [io.Copy]
// calls it. It reads ahead, up to four pieces of 1 MiB at a time, because the network would be idle if each transfer waited for
// the one before it. The first error of a transfer or of w ends WriteTo, and the position is then behind the last byte that w has
// taken.
func (r *RemoteReader) WriteTo(w io.Writer) (n int64, err error) {
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
