package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// pipeGrace is the time that a write to a pipe has after the end of the command's context, because a reader that lives takes the bytes at once.
const pipeGrace = 500 * time.Millisecond

// interruptible returns streams whose reads and writes end with ctx where they are pipes or sockets. The system has no end for a read of a pipe
// that gets no bytes, nor for a write to a pipe that is full, so an interrupt would not end the command.
func interruptible(ctx context.Context, in, out, err *os.File) Streams {
	s := Streams{In: in, Out: out, Err: err}
	if isPipe(in) {
		s.In = newPipeReader(ctx, in)
	}
	if isPipe(out) {
		s.Out = &pipeWriter{ctx: ctx, file: out}
	}
	if isPipe(err) {
		s.Err = &pipeWriter{ctx: ctx, file: err}
	}
	return s
}

// OpenInput opens a file for reading. Where it is a pipe with a name, the open waits for a writer, and reads wait for bytes; both end when ctx does. The
// caller closes the result.
func OpenInput(ctx context.Context, path string) (io.ReadCloser, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() { // ends at the latest with the process, because the system has no end for an open that waits
		f, err := os.Open(path)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		switch {
		case o.err != nil:
			return nil, o.err
		case isPipe(o.file):
			return &pipeFile{newPipeReader(ctx, o.file)}, nil
		}
		return o.file, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// pipeFile is a pipe that OpenInput has opened. Its Close closes the file too.
type pipeFile struct{ *pipeReader }

func (p *pipeFile) Close() error { return errors.Join(p.pipeReader.Close(), p.file.Close()) }

func isPipe(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}

// transferred is the result of a read or a write.
type transferred struct {
	n   int
	err error
}

// pipeWriter writes to a pipe until ctx ends. It is safe for concurrent use.
type pipeWriter struct {
	ctx  context.Context // of the process, so it may be kept
	file *os.File

	mu sync.Mutex
	// +checklocks:mu
	buf []byte // a copy, because a write that was given up goes on
	// +checklocks:mu
	failed error // a write was given up
}

// Write implements [io.Writer]. A write that is under way when ctx ends, or begins afterwards, has the time pipeGrace. Once one was given up, each
// fails with the cause of the end.
func (w *pipeWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return 0, w.failed
	}
	w.buf = append(w.buf[:0], b...)
	done := make(chan transferred, 1)
	go func(b []byte) { // ends at the latest with the process
		n, err := w.file.Write(b)
		done <- transferred{n, err}
	}(w.buf)
	select {
	case t := <-done:
		return t.n, t.err
	case <-w.ctx.Done():
	}
	grace := time.NewTimer(pipeGrace)
	defer grace.Stop()
	select {
	case t := <-done:
		return t.n, t.err
	case <-grace.C:
	}
	w.failed = context.Cause(w.ctx)
	return 0, w.failed
}

// pipeReader reads from a pipe until ctx ends. One goroutine at a time may use it.
type pipeReader struct {
	ctx  context.Context // of the process, so it may be kept
	file *os.File
	buf  []byte
	done chan transferred // of the read that is under way; nil: there is none
	rest []byte           // bytes of buf that were not returned yet
	err  error            // that comes behind them

	cancel context.CancelCauseFunc // ends ctx
}

var _ io.ReadCloser = (*pipeReader)(nil)

func newPipeReader(ctx context.Context, file *os.File) *pipeReader {
	r := &pipeReader{file: file}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// IsPipe reports whether r is the standard input of this process, and a pipe or a socket. Closing it ends its reads.
func IsPipe(r io.Reader) bool {
	_, ok := r.(*pipeReader)
	return ok
}

// Close ends the reads with [os.ErrClosed].
func (r *pipeReader) Close() error {
	r.cancel(os.ErrClosed)
	return nil
}

// Read implements [io.Reader]. It fails with the cause of the end of ctx.
func (r *pipeReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 && r.err == nil && len(b) > 0 {
		if r.done == nil {
			if r.buf == nil {
				r.buf = make([]byte, 64<<10)
			}
			r.done = make(chan transferred, 1)
			go func(done chan<- transferred) { // ends at the latest with the process
				n, err := r.file.Read(r.buf)
				done <- transferred{n, err}
			}(r.done)
		}
		select {
		case t := <-r.done:
			r.done, r.rest, r.err = nil, r.buf[:t.n], t.err
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
	n := copy(b, r.rest)
	if r.rest = r.rest[n:]; n == 0 {
		return 0, r.err
	}
	return n, nil
}
