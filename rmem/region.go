package rmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Region is memory at a server. It is not bound to the process that has allocated it: see [Open] and [OpenToken].
type Region struct {
	srv    server
	id     uint64
	size   int64
	secret [16]byte
	owned  bool // secret is known
	once   bool // it is claimed before it is read; remote is nil
	lease  time.Duration
	bulk   []byte // its bound handle, nil over verbs
	remote reachable
}

// newRegion makes the region that an answer describes.
func newRegion(srv server, r *response) (*Region, error) {
	if r.Size <= 0 {
		return nil, ErrProtocol
	}
	region := &Region{srv: srv, id: r.ID, size: r.Size, secret: r.Secret, owned: true, once: r.Once, lease: leaseOf(r), bulk: r.Bulk}
	if r.Once {
		return region, nil
	}
	var err error
	region.remote, err = srv.reach(r)
	return region, err
}

// ID returns the region's number at its server.
func (r *Region) ID() uint64 { return r.id }

// Size returns how many bytes there are.
func (r *Region) Size() int64 { return r.size }

// Once reports whether the region can be read once, by this process, and not written: see [AllocOptions].
func (r *Region) Once() bool { return r.once }

// Lease returns how long the lease was when it was given, 0 if there is none.
func (r *Region) Lease() time.Duration { return r.lease }

func (r *Region) ask(ctx context.Context, operation string, q *request) (*response, error) {
	q.ID, q.Secret = r.id, r.secret
	a, err := r.srv.ask(ctx, q)
	return a, r.srv.error(operation, r.id, err)
}

// Free gives the memory back to the server (remote_free). Only its owner can.
func (r *Region) Free(ctx context.Context) error {
	_, err := r.ask(ctx, "free", &request{Op: uint32(opFree)})
	return err
}

// Renew moves the end of the lease to d from now, and returns the lease that the server granted, which may be shorter. Only
// the owner of a region with a lease can renew it.
func (r *Region) Renew(ctx context.Context, d time.Duration) (time.Duration, error) {
	a, err := r.ask(ctx, "renew", &request{Op: uint32(opRenew), Lease: int64(d)})
	if err != nil {
		return 0, err
	}
	return leaseOf(a), nil
}

// ReadAt implements [io.ReaderAt], without a limit in time.
func (r *Region) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(context.Background(), p, off)
}

// WriteAt implements [io.WriterAt], without a limit in time.
func (r *Region) WriteAt(p []byte, off int64) (int, error) {
	return r.WriteAtContext(context.Background(), p, off)
}

// ReadAtContext reads the region from offset off on into p, straight from the server's memory. At the end of the region it
// returns the bytes before it and io.EOF. When ctx ends it returns, also if other transfers hang; the device does not touch p
// afterwards. Over verbs a transfer that has begun can be given up only with the connection, and the client ends.
func (r *Region) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return r.within(ctx, "read", p, off, io.EOF, r.read)
}

// read reads p, which lies in the region.
func (r *Region) read(ctx context.Context, p []byte, off int64) (n int, err error) {
	const operation = "read"
	switch {
	case r.once:
		return r.readOnce(ctx, p, off)
	case r.srv.strict:
		return r.chunks(ctx, operation, p, off, opRead)
	}
	if n, err = r.remote.ReadAt(ctx, p, off); err != nil {
		err = r.why(ctx, operation, err)
	}
	return n, err
}

// WriteAtContext writes p to the region from offset off on, straight into the server's memory. Bytes behind the region's
// end are not written, and the error then is io.ErrShortWrite.
func (r *Region) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return r.within(ctx, "write", p, off, io.ErrShortWrite, r.write)
}

// write writes p, which lies in the region.
func (r *Region) write(ctx context.Context, p []byte, off int64) (n int, err error) {
	const operation = "write"
	switch {
	case r.once:
		return 0, r.srv.error(operation, r.id, ErrOnce)
	case r.srv.strict:
		return r.chunks(ctx, operation, p, off, opWrite)
	}
	if n, err = r.remote.WriteAt(ctx, p, off); err != nil {
		err = r.why(ctx, operation, err)
	}
	return n, err
}

// readOnce reads a region that can be read once: it claims the region, which gives it another name, reads it, and frees it.
func (r *Region) readOnce(ctx context.Context, p []byte, off int64) (int, error) {
	const operation = "read"
	a, err := r.ask(ctx, operation, &request{Op: uint32(opClaim)})
	if err != nil {
		return 0, err
	}
	own, err := newRegion(r.srv, a)
	if err != nil || a.Once || a.Size != r.size {
		return 0, r.srv.error(operation, r.id, ErrProtocol)
	}
	n, err := own.read(ctx, p, off)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), byeTime)
	defer cancel()
	_ = own.Free(ctx) // else the server ends it soon
	return n, err
}

// within calls do with the part of p that lies in the region from offset off on. It returns short if that is not all of p.
func (r *Region) within(ctx context.Context, operation string, p []byte, off int64, short error, do func(context.Context, []byte, int64) (int, error)) (int, error) {
	if off < 0 {
		return 0, r.srv.error(operation, r.id, ErrRange)
	}
	n := int(min(int64(len(p)), max(r.size-off, 0)))
	if n == len(p) {
		short = nil
	}
	if n == 0 {
		return 0, short
	}
	n, err := do(ctx, p[:n], off)
	if err != nil {
		return n, err
	}
	return n, short
}

// why asks the server for the reason of a failed transfer: if it knows one, that is the error.
func (r *Region) why(ctx context.Context, operation string, err error) error {
	if ctx.Err() != nil {
		return r.srv.error(operation, r.id, err)
	}
	if _, reason := r.srv.ask(ctx, &request{Op: uint32(opStat), ID: r.id}); reason != nil {
		for _, known := range []error{ErrFreed, ErrExpired, ErrRevoked, ErrUsed, ErrUnknown} {
			if errors.Is(reason, known) {
				return r.srv.error(operation, r.id, errors.Join(reason, err))
			}
		}
	}
	return r.srv.error(operation, r.id, err)
}

// chunks has the server read or write p.
func (r *Region) chunks(ctx context.Context, operation string, p []byte, off int64, o op) (done int, err error) {
	for done < len(p) {
		part := p[done:min(done+strictChunk, len(p))]
		q := request{Op: uint32(o), Offset: off + int64(done), Size: int64(len(part))}
		if o == opWrite {
			q.Data, q.Length = part, uint32(len(part))
		}
		a, err := r.ask(ctx, operation, &q)
		if err != nil {
			return done, err
		}
		if o == opRead && copy(part, a.Data) != len(part) {
			return done, r.srv.error(operation, r.id, ErrProtocol)
		}
		done += len(part)
	}
	return done, nil
}

// CompareAndSwap replaces the 64-bit word at off, which is a multiple of 8, by swap if it equals old, and reports whether
// it did. Words are in the server's byte order.
func (r *Region) CompareAndSwap(ctx context.Context, off int64, old, swap uint64) (bool, error) {
	a, err := r.ask(ctx, "compare and swap in", &request{Op: uint32(opCompareAndSwap), Offset: off, Compare: old, Value: swap})
	if err != nil {
		return false, err
	}
	return a.Value == old, nil
}

// FetchAdd adds delta, wrapping around, to the 64-bit word at off, which is a multiple of 8, and returns it as it was before.
func (r *Region) FetchAdd(ctx context.Context, off int64, delta uint64) (uint64, error) {
	a, err := r.ask(ctx, "fetch and add in", &request{Op: uint32(opFetchAdd), Offset: off, Value: delta})
	if err != nil {
		return 0, err
	}
	return a.Value, nil
}

// CopyFrom copies n bytes from another region, at srcOff there, to off of this one. Nothing passes through the caller: this
// region's server copies, or reads from the other server, which its Config.CopyFrom must allow ([ErrElsewhere]).
func (r *Region) CopyFrom(ctx context.Context, off int64, src *Region, srcOff, n int64) error {
	q := &request{Op: uint32(opCopy), Offset: off, Size: n, SourceID: src.id, SourceOffset: srcOff}
	if from, to := src.srv.handle(0), r.srv.handle(0); from != to {
		if src.bulk == nil || r.bulk == nil {
			return r.srv.error("copy to", r.id, fmt.Errorf("from %s: %w", from.Server, ErrNotHere))
		}
		q.Source, q.SourceLen = src.bulk, uint32(len(src.bulk))
	}
	_, err := r.ask(ctx, "copy to", q)
	return err
}

// Reader reads the region from its start. Each read is a transfer of its own, so put a bufio.Reader in between where reads
// are small.
func (r *Region) Reader() *io.SectionReader { return io.NewSectionReader(r, 0, r.size) }

// Writer writes the region from its start. Each write is a transfer of its own.
func (r *Region) Writer() *io.OffsetWriter { return io.NewOffsetWriter(r, 0) }

var (
	_ io.ReaderAt = (*Region)(nil)
	_ io.WriterAt = (*Region)(nil)
)
