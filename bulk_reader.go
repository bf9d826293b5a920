package cinnabar

import (
	"context"
	"io"
	"sync"
)

// readAheadPieces pieces of readAheadBytes bytes are under way at a time in [RemoteReader.WriteTo].
const (
	readAheadPieces = 4
	readAheadBytes  = 1 << 20
)

// Reader returns a reader of the remote memory, from its start.
func (r RemoteBulk) Reader() *RemoteReader {
	return &RemoteReader{SectionReader: io.NewSectionReader(r, 0, r.Len()), remote: r}
}

// A RemoteReader reads remote memory in order: an [io.Reader], [io.Seeker], [io.ReaderAt] and [io.WriterTo] for packages
// such as archive/zip. Each Read is a transfer of its own, so put a [bufio.Reader] in between where reads are small.
// Read, Seek and WriteTo move one position, and are for one goroutine at a time; ReadAt is for several.
type RemoteReader struct {
	*io.SectionReader
	remote RemoteBulk
}

var _ io.WriterTo = (*RemoteReader)(nil)

// WriteTo writes the bytes from the position to the end to w and returns how many bytes w has taken. [io.Copy] calls it. It reads ahead, four
// pieces of 1 MiB at a time, because a transfer that waits for the one before it leaves the network idle. An error of a
// transfer, or of w, ends it; the position is then behind the last byte that w has taken. There is no limit in time.
func (r *RemoteReader) WriteTo(w io.Writer) (n int64, err error) {
	from, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ahead := newReadAhead(ctx, r.remote, from)
	defer ahead.reads.Wait()
	defer cancel()
	for err == nil {
		piece, readErr := ahead.next(ctx)
		if readErr == io.EOF { //nolint:errorlint // it comes as it is
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
	at     int64 // where the next piece to be begun is
	pieces []*readPiece
	oldest int  // of pieces, whose bytes come next
	given  bool // the bytes of the oldest piece are with the caller
	reads  sync.WaitGroup
}

// readPiece is a piece under way. Its buffer belongs to the goroutine that reads until done is received from.
type readPiece struct {
	buf  []byte
	n    int
	err  error
	done chan struct{} // one element when the read has ended
	busy bool          // a read was begun and its end was not received
}

// newReadAhead begins to read at an offset. The end of ctx ends the reads, and the caller waits for them.
func newReadAhead(ctx context.Context, r RemoteBulk, at int64) *readAhead {
	a := &readAhead{remote: r, at: at}
	for range readAheadPieces {
		p := &readPiece{done: make(chan struct{}, 1)}
		a.pieces = append(a.pieces, p)
		a.begin(ctx, p)
	}
	return a
}

// begin starts to read the next piece into p, if one is left.
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
		p.n, p.err = a.remote.ReadAtContext(ctx, p.buf[:n], off)
		p.done <- struct{}{}
	})
}

// next returns the bytes of the next piece, which belong to the caller until the next call, or [io.EOF] at the end.
func (a *readAhead) next(ctx context.Context) ([]byte, error) {
	if a.given { // the caller has done with the piece before
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
