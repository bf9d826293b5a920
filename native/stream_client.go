package native

import (
	"context"
	"errors"
	"iter"
	"maps"
	"sync/atomic"
	"time"

	"cinnabar"
	"cinnabar/codes"
)

// ClientStream is a stream at the side that has opened it: it sends elements of type In, and receives elements of type Out. Its methods may be called by
// several goroutines, of which one receives at a time.
type ClientStream[In, Out any] struct {
	stream *Stream[In, Out]
	to     cinnabar.Target
	id     uint64
	call   *cinnabar.Pending[response[struct{}]] // the request that has opened the stream; its end is the end of the stream
	opened context.Context                       // of Open
	life   context.Context                       // derived from opened
	cancel context.CancelCauseFunc

	out  outbox
	slot In // of addTo, guarded by out.mu
	// +checklocks:out.mu
	credits []credit
	idle    atomic.Bool // credits is not empty; stored with out.mu held, and loaded without it, because each Send loads it
	// +checklocks:out.mu
	nextPut uint64
	// +checklocks:out.mu
	fault error // the error with which this side has ended the stream; nil: it has not

	reading atomic.Bool                                  // a goroutine receives; the following fields are its own
	gets    [streamCredits]*cinnabar.Pending[batch[Out]] // under way, in order; nil: must be sent
	nextGet uint64                                       // sequence number of gets[0]
	items   []Out                                        // received
	ended   bool                                         // no element follows
}

// Send sends an element. It returns when the element is in the outbox of the stream, from which the engine sends elements together. The outbox accepts an
// element while it has fewer than 1,024 elements and less than 256 KiB. While it is full because the handler does not receive, Send waits until there
// is room, ctx ends, or the stream ends. The program may change v when Send has returned.
//
// If the stream has ended, Send returns its error, or one that wraps [io.EOF] if the handler has returned without an error.
func (c *ClientStream[In, Out]) Send(ctx context.Context, v In) error {
	err := addTo(ctx, c.life, &c.out, c.stream.in, &c.slot, v)
	if err == nil {
		c.flush()
		return nil
	}
	if errors.Is(err, errOver) || c.life.Err() != nil {
		if waited, over := c.await(ctx); waited != nil || over != nil {
			return errors.Join(waited, over)
		}
	}
	return err
}

// CloseSend announces to the handler that no element follows. The handler receives the elements before that. CloseSend does not wait. A second call
// returns an error.
func (c *ClientStream[In, Out]) CloseSend() error {
	if err := c.out.end(); err != nil {
		return err
	}
	c.flush()
	return nil
}

// Cancel ends the stream for both sides. Further operations return an error with codes.Canceled and with err as its cause. The handler's context ends;
// err does not travel. Cancel has no effect on a stream that has ended.
func (c *ClientStream[In, Out]) Cancel(err error) {
	c.cancel(err)
	c.out.fail(errOver)
}

// Wait waits for the end of the stream, and returns the handler's error as [RPC.Call] does, or nil if the handler has returned nil. If ctx ends first, Wait
// returns an error that wraps that of ctx, and the stream goes on. A stream with elements that the program has not received does not end.
func (c *ClientStream[In, Out]) Wait(ctx context.Context) error {
	waited, err := c.await(ctx)
	if waited != nil {
		return waited
	}
	return err
}

// Metadata returns the metadata that the handler has set with [SetMetadata]. It is nil before the end of the stream. The program may change the
// result.
func (c *ClientStream[In, Out]) Metadata() Metadata {
	select {
	case <-c.call.Done():
	default:
		return nil
	}
	res, err := c.call.Wait()
	if e, ok := errors.AsType[*Error](err); ok {
		return maps.Clone(e.metadata)
	}
	return maps.Clone(res.metadata)
}

// await waits for the end of the stream, or of ctx. waited is the error of ctx, and err is the error of the stream.
func (c *ClientStream[In, Out]) await(ctx context.Context) (waited, err error) {
	if c.apart(ctx) {
		if waited = await(ctx, ctx, c.call.Done()); waited != nil {
			return waited, nil
		}
	}
	return nil, c.result()
}

// apart reports whether ctx may end before the context of the stream. If not, a wait for a call of the stream need not watch ctx.
func (c *ClientStream[In, Out]) apart(ctx context.Context) bool {
	return ctx.Done() != nil && ctx.Done() != c.opened.Done()
}

// result waits for the end of the stream and returns its error.
func (c *ClientStream[In, Out]) result() error {
	_, err := c.call.Wait()
	c.out.fail(errOver)
	c.cancel(err)
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.fault != nil && err != nil {
		return c.fault
	}
	return err
}

// over reports whether the stream has ended.
func (c *ClientStream[In, Out]) over() bool {
	select {
	case <-c.call.Done():
		return true
	default:
		return false
	}
}

// flush starts to send the elements in the outbox, if there is a credit.
func (c *ClientStream[In, Out]) flush() {
	if !c.idle.Load() {
		return // the goroutine that gets the next credit sends the elements
	}
	if f, ok := c.nextFrame(); ok {
		go c.send(f)
	}
}

// nextFrame takes a credit, and the elements for it.
func (c *ClientStream[In, Out]) nextFrame() (f frame, ok bool) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if len(c.credits) == 0 || !c.out.dueLocked() {
		return f, false
	}
	granted := c.credits[0]
	c.credits = append(c.credits[:0], c.credits[1:]...)
	c.idle.Store(len(c.credits) > 0)
	f = frame{magic: magicPut, id: c.id, seq: c.nextPut}
	c.nextPut++
	c.out.takeLocked(granted, &f)
	return f, true
}

// send sends a frame, and further ones until there are no elements or no credit.
func (c *ClientStream[In, Out]) send(f frame) {
	for ok := true; ok; f, ok = c.nextFrame() {
		granted, err := c.put(f)
		if err != nil {
			c.fail(err)
			return
		}
		f.memory.exit()
		c.out.mu.Lock()
		c.credits = append(c.credits, granted)
		c.idle.Store(true)
		c.out.mu.Unlock()
	}
}

// put sends a frame and waits for the answer, which is a credit.
func (c *ClientStream[In, Out]) put(f frame) (credit, error) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		res, err := frameRPC.Call(c.life, c.to, frameMessage{frame: f})
		switch {
		case err == nil && (res.frame.id != f.id || res.frame.seq != f.seq):
			return credit{}, badFrame("the answer to put %d of stream %d is to put %d of stream %d", f.seq, f.id, res.frame.seq, res.frame.id)
		case err == nil && !res.frame.over():
			return res.frame.size, nil
		case err != nil && !retriable(err):
			return credit{}, err
		}
		if err := c.pause(c.life, wait); err != nil {
			return credit{}, err
		}
	}
}

// Least and longest time between two attempts to send a frame that the server has refused, because it has too many requests or does not know the stream.
const (
	firstRetry = 200 * time.Microsecond
	lastRetry  = 50 * time.Millisecond
)

// retriable reports whether a frame that the server has refused with err may be sent again. If the stream has ended, the response to its request comes
// and names the reason.
func retriable(err error) bool {
	e, ok := errors.AsType[*cinnabar.Error](err)
	return ok && e.Remote && (e.Code == codes.Again || e.Code == codes.NoEntry || e.Code == codes.Permission || e.Code == codes.Draining)
}

// pause waits for some time before a further attempt, but not beyond the end of the stream, which is the error errOver.
func (c *ClientStream[In, Out]) pause(ctx context.Context, d time.Duration) (err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	cinnabar.Block(ctx, func() {
		select {
		case <-timer.C:
		case <-c.call.Done():
			err = errOver
		case <-ctx.Done():
			err = endOf(ctx)
		}
	})
	return err
}

// fail ends the stream with err, because a frame could not be sent or was not valid. It has no effect on a stream that has ended.
func (c *ClientStream[In, Out]) fail(err error) {
	c.out.fail(errOver)
	if errors.Is(err, errOver) || c.over() || c.life.Err() != nil {
		return
	}
	c.out.mu.Lock()
	if c.fault == nil {
		c.fault = err
	}
	c.out.mu.Unlock()
	c.cancel(err)
}

// Receive yields the server's elements. If the handler has returned nil, the loop ends after the last one. An error is yielded once, as the last
// value: it is that of ctx, or that of the stream. The latter is the error that the handler has returned, as from [RPC.Call], or codes.Canceled or
// codes.Timeout when the context of Open has ended. The program may leave the loop and call Receive again for the elements that follow.
//
// Only Receive asks the server for elements, for two frames at a time. So a program that does not receive holds back the handler of this stream, and
// nothing else.
func (c *ClientStream[In, Out]) Receive(ctx context.Context) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		for {
			v, ok, err := c.receive(ctx)
			if err != nil {
				yield(v, err)
				return
			}
			if !ok || !yield(v, nil) {
				return
			}
		}
	}
}

func (c *ClientStream[In, Out]) receive(ctx context.Context) (v Out, ok bool, err error) {
	if !c.reading.CompareAndSwap(false, true) {
		return v, false, errReceiving
	}
	defer c.reading.Store(false)
	for wait := firstRetry; len(c.items) == 0; {
		if c.ended {
			waited, err := c.await(ctx)
			return v, false, errors.Join(waited, err)
		}
		c.fill()
		if waited, err := c.fetch(ctx); waited != nil || err != nil {
			if waited != nil {
				return v, false, waited
			}
			if !retriable(err) && !errors.Is(err, errOver) {
				c.fail(err)
				c.ended = true
				continue
			}
			if err := c.pause(ctx, wait); errors.Is(err, errOver) {
				c.ended = true
			} else if err != nil {
				return v, false, err
			}
			wait = min(2*wait, lastRetry)
		}
	}
	v, c.items[0] = c.items[0], v
	c.items = c.items[1:]
	return v, true, nil
}

// fill asks for elements.
func (c *ClientStream[In, Out]) fill() {
	for i := range c.gets {
		if c.gets[i] == nil {
			f := frame{magic: magicGet, id: c.id, seq: c.nextGet + uint64(i), size: fullCredit}
			c.gets[i] = c.stream.gets.Start(c.life, c.to, frameMessage{frame: f})
		}
	}
}

// fetch waits for the answer to the oldest get, or for ctx, with waited as its error.
func (c *ClientStream[In, Out]) fetch(ctx context.Context) (waited, err error) {
	first := c.gets[0]
	if c.apart(ctx) {
		if waited = await(ctx, ctx, first.Done()); waited != nil {
			return waited, nil
		}
	}
	b, err := first.Wait()
	switch {
	case err != nil:
	case b.frame.id != c.id || b.frame.seq != c.nextGet:
		err = badFrame("the answer to get %d of stream %d is to get %d of stream %d", c.nextGet, c.id, b.frame.seq, b.frame.id)
	case b.frame.over():
		err = errOver
	}
	if err != nil {
		c.gets[0] = nil
		return nil, err
	}
	copy(c.gets[:], c.gets[1:])
	c.gets[streamCredits-1] = nil
	c.nextGet++
	c.items = b.items
	if c.ended = b.frame.end(); !c.ended {
		c.fill()
	}
	return nil, nil
}
