package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codes"
)

// Limits of the elements that a sender keeps while it has no credit. An element may be longer than outboxBytes; no further one is accepted then.
const (
	outboxCount = creditCount
	outboxBytes = creditBytes
)

// Errors of senders.
var (
	errSendClosed = fmt.Errorf("native: CloseSend was called before (%w)", codes.InvalidArg)
	errOver       = fmt.Errorf("native: the server has ended the stream (%w)", io.EOF)
)

// outbox has the elements of one direction that are not sent yet.
type outbox struct {
	mu sync.Mutex
	// +checklocks:mu
	buf []byte // the elements, each behind its length
	// +checklocks:mu
	count int
	// +checklocks:mu
	ended bool // no element follows
	// +checklocks:mu
	sealed bool // the frame with the end is taken, or nothing can be sent any more
	// +checklocks:mu
	err error // of add, once nothing can be sent any more
	// +checklocks:mu
	leaving int // frames that are taken and have not arrived; counted at servers
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
	case o.count >= outboxCount || len(o.buf) >= outboxBytes:
		return o.waitLocked(), nil
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
	o.buf = b
	o.count++
	return nil, nil
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

// takeLocked removes the elements of the next frame: as many as the credit admits.
// +checklocks:o.mu
func (o *outbox) takeLocked(c credit) (body []byte, size credit, end bool) {
	n := 0
	for size.count < c.count && int(size.count) < o.count {
		next := elementSize + int(binary.LittleEndian.Uint32(o.buf[n:]))
		if size.count > 0 && uint64(n+next) > uint64(c.bytes) {
			break
		}
		n += next
		size.count++
	}
	size.bytes = uint32(n)
	body, o.buf, o.count = o.buf[:n:n], o.buf[n:], o.count-int(size.count)
	if o.count == 0 {
		o.buf = nil // body has its memory
		end = o.ended
		o.sealed = o.ended
	}
	o.changedLocked()
	return body, size, end
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
	o.buf, o.count, o.sealed = nil, 0, true
	o.changedLocked()
}

// add adds an element, and waits for room if there is none. ctx ends the wait; life ends with the stream.
func (o *outbox) add(ctx, life context.Context, p codec.Plan, v any) error {
	for {
		full, err := o.tryAdd(p, v)
		if err != nil || full == nil {
			return err
		}
		if err := await(ctx, life, full); err != nil {
			return err
		}
	}
}

func (o *outbox) tryAdd(p codec.Plan, v any) (<-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.addLocked(p, v)
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

// await waits for c, without the worker of the handler that ctx belongs to.
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
