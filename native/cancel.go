package native

import (
	"context"
	"reflect"
	"time"

	"cinnabar"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/envelope"
	"cinnabar/internal/invariants"
)

// cancelRPC takes the cancels of an engine's or a provider's calls. The underscores keep it out of pools, which may be full of the handlers
// that it ends.
var cancelRPC = cinnabar.NewOneWay[cancelMessage]("__native_cancel__", cinnabar.WithCodec(cancelCodec{}))

// cancelMessage names calls that their callers have given up. It takes effect when it arrives, and not in a handler, because cancels must not wait
// for the workers that they free.
type cancelMessage struct{ ids []uint64 }

// Depart implements [envelope.Arguments].
func (*cancelMessage) Depart(context.Context) error { return nil }

// Abandon implements [envelope.Arguments].
func (*cancelMessage) Abandon() {}

// Arrive implements [envelope.Arguments]. Malformed messages are refused when they are decoded.
func (*cancelMessage) Arrive(a envelope.Arrival) {
	if ids, err := parseCancel(a.Payload); err == nil {
		a.Calls.Cancel(a.Conn, ids)
	}
}

// Begin implements [envelope.Arguments].
func (*cancelMessage) Begin(ctx context.Context) (context.Context, error) { return ctx, nil }

// End implements [envelope.Arguments].
func (*cancelMessage) End() {}

// cancelCodec is the codec of cancelRPC, and its plan for cancelMessage.
type cancelCodec struct{}

// Name implements [codec.Codec].
func (cancelCodec) Name() string { return "native" }

// Enveloped implements [envelope.Codec].
func (cancelCodec) Enveloped() envelope.Mark { return envelope.Mark{} }

// Continues implements [envelope.Continuing].
func (cancelCodec) Continues() {}

// Plan implements [codec.Codec].
func (c cancelCodec) Plan(t reflect.Type) (codec.Plan, error) {
	if t == reflect.TypeFor[cancelMessage]() {
		return c, nil
	}
	return hgproc.Codec{}.Plan(t)
}

// Append implements [codec.Plan].
func (cancelCodec) Append(b []byte, v any) ([]byte, error) {
	return appendCancel(b, v.(*cancelMessage).ids), nil
}

// Decode implements [codec.Plan].
func (cancelCodec) Decode(b []byte, v any) (n int, err error) {
	v.(*cancelMessage).ids, err = parseCancel(b)
	return len(b), err
}

// handleCancels registers cancelRPC with an engine or a provider. Further calls have no effect.
func handleCancels(on cinnabar.Registrar) error {
	err := cancelRPC.Handle(on, func(context.Context, cancelMessage) error { return nil })
	if isTaken(err) {
		return nil
	}
	return err
}

const (
	cancelTime = 5 * time.Second // for the network to take a cancel
	cancelMost = 1 << 16         // cancels that wait for one target; further ones are dropped
)

// canceller sends the cancels of abandoned calls. A goroutine for each target sends those that have gathered, and ends when there are none.
// If the network does not take a message within cancelTime, those that wait are dropped. The server finds the end of such a call by its
// deadline, or by the loss of the connection.
type canceller struct {
	mu invariants.Mutex
	// +checklocks:mu
	waiting map[cinnabar.Target][]uint64 // a target is in the map while its goroutine runs
}

// add sends a cancel soon.
func (c *canceller) add(to cinnabar.Target, id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids, busy := c.waiting[to]
	if len(ids) >= cancelMost {
		return
	}
	if c.waiting == nil {
		c.waiting = map[cinnabar.Target][]uint64{}
	}
	c.waiting[to] = append(ids, id)
	if !busy {
		go c.run(to)
	}
}

// run sends the cancels for one target.
func (c *canceller) run(to cinnabar.Target) {
	for ids := c.next(to); len(ids) > 0; ids = c.next(to) {
		ctx, cancel := context.WithTimeout(context.Background(), cancelTime)
		err := cancelRPC.Send(ctx, to, cancelMessage{ids})
		cancel()
		if err != nil { // the engine is closed, or the peer is gone or takes nothing
			c.drop(to)
		}
	}
}

// drop forgets the cancels that wait for one target.
func (c *canceller) drop(to cinnabar.Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[to] = nil
}

// next takes the cancels of one message from those that wait. It returns none at the end of run.
func (c *canceller) next(to cinnabar.Target) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.waiting[to]
	if len(ids) == 0 {
		delete(c.waiting, to)
		return nil
	}
	n := min(len(ids), maxCancels)
	c.waiting[to] = ids[n:]
	return ids[:n:n]
}
