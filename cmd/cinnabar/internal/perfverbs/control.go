package perfverbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/internal/sockio"
)

// The messages of the two sides of perf verbs, over the TCP connection of the exchange. Each message is a line of
// JSON. Beside the conversation both sides say alive every now and then, so that each notices that the other one is
// frozen, even in a measurement in which it has nothing to do.
//
//	client                          server
//	  | -- begin, size -------------> |  prepares itself
//	  | <--------------------- ready -- |
//	  | == the operations ==========> |
//	  | -- done --------------------> |
//	  |       ... size by size ...     |
//	  | -- bye ---------------------> |
//	  | <----------------------- bye -- |
const (
	sayAlive  = "alive"
	sayBegin  = "begin"
	sayReady  = "ready"
	sayDone   = "done"
	sayBye    = "bye"
	sayFailed = "failed"
)

// notice is one message.
type notice struct {
	Word   string `json:"word"`
	Size   int64  `json:"size,omitempty"`
	Reason string `json:"reason,omitempty"` // of a failure
}

// control is the conversation of one side. A failure of it, of the other side, or of the operations to get on ends
// the context that it was opened with.
type control struct {
	x     *link.Exchange
	limit time.Duration // in which the other side must have said something
	heard chan notice

	mu     sync.Mutex // for sending
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	stop   chan struct{}

	active   atomic.Bool   // operations are to get on
	progress atomic.Uint64 // operations that have completed
}

// openControl begins the conversation on x, which the caller closes after close.
func openControl(ctx context.Context, x *link.Exchange, limit time.Duration) (*control, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &control{x: x, limit: limit, heard: make(chan notice), cancel: cancel, stop: make(chan struct{})}
	c.wg.Go(func() { c.listen(ctx) })
	c.wg.Go(c.beat)
	return c, ctx
}

// close ends the conversation, in every state.
func (c *control) close() {
	c.cancel(nil)
	close(c.stop)
	_ = c.x.SetDeadline(sockio.Past) // fails only on a closed connection
	c.wg.Wait()
}

// listen passes on the other side's messages, until that of bye.
func (c *control) listen(ctx context.Context) {
	for {
		said, err := c.read()
		if err == nil && said.Word == sayFailed {
			err = fmt.Errorf("the other side failed: %s", said.Reason)
		}
		if err != nil {
			c.cancel(err)
			return
		}
		if said.Word == sayAlive {
			continue
		}
		select {
		case c.heard <- said:
		case <-ctx.Done():
			return
		}
		if said.Word == sayBye {
			return
		}
	}
}

// read waits for the next message.
func (c *control) read() (said notice, err error) {
	if err := c.allow(c.x.SetReadDeadline); err != nil {
		return said, err
	}
	line, err := c.x.ReadLine()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return said, fmt.Errorf("the other side has said nothing for %v; it is frozen, or the network between is cut (--timeout)", c.limit)
	case errors.Is(err, io.EOF):
		return said, errors.New("the other side ended before it was done; see its messages")
	case err != nil:
		return said, fmt.Errorf("talk to the other side: %w", err)
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return said, fmt.Errorf("the other side says %.64q, which is not understood; is it the same version of cinnabar?", line)
	}
	return said, nil
}

// controlTicks is the number of parts into which --timeout is divided: a side that is frozen is noticed after the timeout, or a part later.
const controlTicks = 4

// beat says alive, and watches whether operations get on.
func (c *control) beat() {
	tick := time.NewTicker(max(1, c.limit/controlTicks))
	defer tick.Stop()
	for seen, still := uint64(0), 0; ; {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		if err := c.say(notice{Word: sayAlive}); err != nil {
			c.cancel(err)
			return
		}
		if n := c.progress.Load(); n != seen || !c.active.Load() {
			seen, still = n, 0
			continue
		}
		if still++; still == controlTicks {
			c.cancel(fmt.Errorf("no operation has completed for %v; the other side is frozen, or the network between is cut (--timeout)", c.limit))
			return
		}
	}
}

// allow sets the deadline of the next message. It returns net.ErrClosed after close, because close closes the channel stop and then
// sets a deadline in the past, and the new deadline must not replace that one.
func (c *control) allow(set func(time.Time) error) error {
	if err := set(time.Now().Add(c.limit)); err != nil {
		return err
	}
	select {
	case <-c.stop:
		return net.ErrClosed
	default:
		return nil
	}
}

// say sends a message.
func (c *control) say(said notice) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := json.Marshal(said)
	if err != nil {
		return err
	}
	if err := c.allow(c.x.SetWriteDeadline); err != nil {
		return fmt.Errorf("talk to the other side: %w", err)
	}
	if _, err := c.x.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("talk to the other side: %w", err)
	}
	return nil
}

// hear waits for the next message.
func (c *control) hear(ctx context.Context) (notice, error) {
	select {
	case said := <-c.heard:
		return said, nil
	case <-ctx.Done():
		return notice{}, context.Cause(ctx)
	}
}

// expect waits for a certain message.
func (c *control) expect(ctx context.Context, word string) error {
	said, err := c.hear(ctx)
	if err == nil && said.Word != word {
		err = fmt.Errorf("the other side says %.64q instead of %q; is it the same version of cinnabar?", said.Word, word)
	}
	return err
}

// failed sends the other side the reason why this one ends, if it listens.
func (c *control) failed(err error) {
	reason := cli.OneLine(err)
	_ = c.say(notice{Word: sayFailed, Reason: reason[:min(len(reason), link.ExchangeLimit/8)]}) // the failure itself is reported here
}

// bye answers the client's farewell, and waits for it to hang up, because bytes that arrive at a closed socket would make
// the system discard the answer.
func (c *control) bye(ctx context.Context) error {
	if err := c.say(notice{Word: sayBye}); err != nil {
		return err
	}
	if err := c.x.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return err
	}
	defer cli.Interrupt(ctx, c.x)()
	_, _ = io.Copy(io.Discard, c.x) // the client has its answer, however this ends
	return nil
}
