package cinnabar

import (
	"context"
)

// RemoteBulk is a handle joined with the process that holds the memory; [BulkHandle.On] makes it. It is a plain value,
// safe for concurrent use, and has nothing to close.
//
// A transfer is started by the process that has a RemoteBulk. It moves the smaller of the two sizes and returns how many
// bytes that were; use Slice on either side for a part. Whatever the outcome, the network does not touch the local memory
// any more when Pull, Push or Pending.Wait returns, also when the context has ended and also when the peer has died.
//
// If the memory belongs to this very process, transfers are copies.
type RemoteBulk struct {
	h      BulkHandle
	ep     *Endpoint
	off, n int64
	err    error // why this view is void; every use returns it
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

// PullChunks is Pull in chunks of that many bytes, the last one of what is left, of which at most inFlight are under way
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

// defaultInFlight is how many chunks are under way if the caller does not say: enough to fill the time in which the
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
	t := train{r: r, d: d, b: b, chunk: chunk, total: total, limit: inFlight}
	return t.run(ctx)
}
