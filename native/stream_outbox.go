package native

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// Limits of the elements that a sender keeps while it has no credit. An element is accepted below both limits, and may itself be longer than outboxBytes.
const (
	outboxCount = creditCount
	outboxBytes = creditBytes
)

// Errors of senders.
var (
	errSendClosed = fmt.Errorf("native: CloseSend was called before (%w)", codes.InvalidArg)
	errOver       = fmt.Errorf("native: the server has ended the stream (%w)", io.EOF)
)

// outboxFree is the length in bytes up to which the memory of an outbox at a server is not counted for the host of the client.
const outboxFree = 16 << 10

// outbox has the elements of one direction that are not sent yet.
type outbox struct {
	budget envelope.Budget // of the client's host, for outboxes at servers; nil: the memory is not counted

	mu sync.Mutex
	// +checklocks:mu
	buf []byte // the elements, each behind its length
	// +checklocks:mu
	pooled *pooledBytes // the memory of buf; nil: other memory
	// +checklocks:mu
	counted bool // budget has counted outboxBytes
	// +checklocks:mu
	count int
	// +checklocks:mu
	ended bool // no element follows
	// +checklocks:mu
	sealed bool // the frame with the end is taken, or nothing can be sent any more
	// +checklocks:mu
	err error // of add, once nothing can be sent any more
	// +checklocks:mu
	leaving int // number of frames that the client has not received since takeLocked; counted at servers only
	// +checklocks:mu
	room chan struct{} // closed when the outbox changes; nil if no goroutine waits
}

// addLocked appends an element, encoded by p. It returns a channel that is closed when there may be room, if there is none.
// +checklocks:o.mu
func (o *outbox) addLocked(p codec.Plan, v any) (full <-chan struct{}, err error) {
	switch {
	case o.err != nil:
		return nil, o.err
	case o.ended:
		return nil, errSendClosed
	case o.count >= outboxCount || len(o.buf) >= outboxBytes || len(o.buf) >= outboxFree && !o.countLocked():
		return o.waitLocked(), nil
	}
	if len(o.buf) >= pooledFrom && o.pooled == nil {
		o.pooled, _ = pool.Get().(*pooledBytes)
		o.buf = append(o.pooled[:0], o.buf...)
	}
	start := len(o.buf)
	b := append(o.buf, 0, 0, 0, 0)
	if b, err = p.Append(b, v); err != nil {
		return nil, fmt.Errorf("native: the element cannot be encoded: %w", err)
	}
	n := len(b) - start - elementSize
	if n > maxElement {
		return nil, fmt.Errorf("native: an element of %d bytes, at most %d are possible; divide it (%w)", n, uint32(maxElement), codes.Overflow)
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(n))
	if o.pooled != nil && &b[0] != &o.buf[0] { // the element did not fit
		pool.Put(o.pooled)
		o.pooled = nil
	}
	o.buf = b
	o.count++
	return nil, nil
}

// countLocked counts the memory of the outbox until the end of the stream. It returns false if the host of the client, or the engine, has no room for
// it. The outbox is full then, until the client has fetched elements.
// +checklocks:o.mu
func (o *outbox) countLocked() bool {
	if o.budget == nil || o.counted {
		return true
	}
	o.counted = o.budget.Charge(outboxBytes) == nil
	return o.counted
}

// pooledFrom is the length in bytes from which the memory of an outbox comes from pool, because append would otherwise allocate five times the bytes of
// each frame. The memory goes back to pool when the frame that has it is sent.
const pooledFrom = 8 << 10

// pooledBytes has room for a full outbox, and for a further element of up to 64 KiB.
type pooledBytes [outboxBytes + 64<<10]byte

var pool = sync.Pool{New: func() any { return new(pooledBytes) }}

// frameMemory is the memory of a frame's body. It goes back to pool when the frame is sent. An interceptor may have left a goroutine running that
// still encodes the frame, so the users are counted.
type frameMemory struct {
	users  atomic.Int32 // the owner of the frame is one; 0: the memory may be another frame's
	pooled *pooledBytes
}

// enter must be called before the body is read. It returns false if the frame is sent already. A nil frameMemory is memory that is not pooled.
func (m *frameMemory) enter() bool {
	for m != nil {
		n := m.users.Load()
		if n == 0 {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			break
		}
	}
	return true
}

// exit ends what enter has begun, or the use by the owner.
func (m *frameMemory) exit() {
	if m != nil && m.users.Add(-1) == 0 {
		pool.Put(m.pooled)
	}
}

// waitLocked returns a channel that is closed when the outbox changes.
// +checklocks:o.mu
func (o *outbox) waitLocked() <-chan struct{} {
	if o.room == nil {
		o.room = make(chan struct{})
	}
	return o.room
}

// changedLocked wakes the goroutines that wait.
// +checklocks:o.mu
func (o *outbox) changedLocked() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

// dueLocked reports whether there is a frame to send.
// +checklocks:o.mu
func (o *outbox) dueLocked() bool { return o.count > 0 || o.ended && !o.sealed }

// takeLocked moves the elements of the next frame to f: as many as the credit admits. It sets flagEnd if no element follows.
// +checklocks:o.mu
func (o *outbox) takeLocked(c credit, f *frame) {
	n := 0
	if f.size = (credit{}); o.count <= int(c.count) && len(o.buf) <= int(c.bytes) { // the credit admits all elements
		n, f.size.count = len(o.buf), uint32(o.count)
	}
	for ; f.size.count < c.count && int(f.size.count) < o.count; f.size.count++ {
		next := elementSize + int(binary.LittleEndian.Uint32(o.buf[n:]))
		if f.size.count > 0 && uint64(n+next) > uint64(c.bytes) {
			break
		}
		n += next
	}
	f.size.bytes = uint32(n)
	o.count -= int(f.size.count)
	f.body = o.buf[:n:n]
	switch rest := o.buf[n:]; {
	case o.pooled != nil && len(rest) > n: // the shorter part leaves the memory
		f.body, o.buf = bytes.Clone(f.body), rest
	default:
		if o.pooled != nil {
			f.memory, o.pooled, rest = &frameMemory{pooled: o.pooled}, nil, bytes.Clone(rest)
			f.memory.users.Store(1)
		}
		if o.buf = rest; len(rest) == 0 {
			o.buf = nil
		}
	}
	if o.count == 0 && o.ended {
		f.flags |= flagEnd
		o.sealed = true
	}
	o.changedLocked()
}

// arrive ends a frame that was counted in leaving.
func (o *outbox) arrive() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leaving--
	o.changedLocked()
}

// fail makes further elements fail with err, and drops those that are not sent.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	if o.pooled != nil {
		pool.Put(o.pooled)
	}
	o.buf, o.pooled, o.count, o.sealed = nil, nil, 0, true
	o.changedLocked()
}

// addTo adds an element, and waits for room if there is none. ctx ends the wait; life ends with the stream. The element is encoded from slot, which
// the mutex of o guards, because v would otherwise be allocated.
func addTo[T any](ctx, life context.Context, o *outbox, p codec.Plan, slot *T, v T) error {
	for {
		full, err := tryAdd(o, p, slot, v)
		if err != nil || full == nil {
			return err
		}
		if err := await(ctx, life, full); err != nil {
			return err
		}
	}
}

func tryAdd[T any](o *outbox, p codec.Plan, slot *T, v T) (<-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*slot = v
	full, err := o.addLocked(p, slot)
	*slot = *new(T) // because an idle stream must not keep the memory of v
	return full, err
}

// end closes the direction. It returns an error if it is closed already.
func (o *outbox) end() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return errSendClosed
	}
	o.ended = true
	o.changedLocked()
	return nil
}

// await waits for c. If ctx belongs to a handler, other handlers have its worker meanwhile.
func await(ctx, life context.Context, c <-chan struct{}) (err error) {
	select {
	case <-c:
		return nil
	default:
	}
	cinnabar.Block(ctx, func() {
		select {
		case <-c:
		case <-life.Done():
			err = endOf(life)
		case <-ctx.Done():
			err = endOf(ctx)
		}
	})
	return err
}

// endOf returns the error of a context that has ended, with its cause.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return fmt.Errorf("native: %w", cause)
	}
	return fmt.Errorf("native: %w: %w", err, cause)
}
