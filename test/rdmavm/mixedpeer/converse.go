package main

import (
	"context"
	"fmt"
	"io"

	"cinnabar/verbs"
)

// conversation is all turns of a side.
type conversation struct {
	*side
	seed  uint64
	turns turns
	check *checker
	out   io.Writer

	turn  uint64 // number of the current one
	wrong uint64 // messages
}

func newConversation(s *side, seed, count uint64, out io.Writer) *conversation {
	return &conversation{side: s, seed: seed, turns: newTurns(seed, count), check: newChecker(seed), out: out}
}

// run takes all turns, the first one if mine, and fails if any byte was wrong on
// either side.
func (c *conversation) run(ctx context.Context, mine bool) error {
	var messages, bytes [len(ops)]uint64
	for turn := c.turns.draw(); turn != nil; turn = c.turns.draw() {
		step := c.observe
		if mine {
			step = c.act
		}
		if err := step(ctx, turn); err != nil {
			return fmt.Errorf("turn %d: %w", c.turn, err)
		}
		for _, m := range turn {
			messages[m.op]++
			bytes[m.op] += uint64(m.size)
		}
		c.turn++
		mine = !mine
	}
	theirs, err := c.bye(ctx, mine)
	if err != nil {
		return err
	}
	for op, name := range opNames {
		c.printf("%s: %d, %d bytes\n", name, messages[op], bytes[op])
	}
	c.printf("%d turns, wrong here %d, at the peer %d\n", c.turn, c.wrong, theirs)
	if c.wrong+theirs > 0 {
		return fmt.Errorf("%d messages are wrong", c.wrong+theirs)
	}
	return nil
}

func (c *conversation) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.out, format, args...) // the exit status is the verdict
}

// bye exchanges the numbers of wrong messages. The side that observed last has a receive
// posted, and answers.
func (c *conversation) bye(ctx context.Context, observed bool) (theirs uint64, err error) {
	mine := control{kind: kindBye, number: c.wrong}
	if observed {
		got, err := c.recvControl(ctx, kindBye)
		if err != nil {
			return 0, err
		}
		return got.number, c.sendControl(ctx, mine)
	}
	if err := c.expectControl(); err != nil {
		return 0, err
	}
	if err := c.sendControl(ctx, mine); err != nil {
		return 0, err
	}
	got, err := c.recvControl(ctx, kindBye)
	return got.number, err
}

// verify checks a message in its slot.
func (c *conversation) verify(m message, slot []byte) {
	if err := c.check.check(m, slot); err != nil {
		c.wrong++
		c.printf("wrong: %v\n", err)
	}
}

// act has the turn: it waits for the peer, posts all messages at once, and checks
// the bytes that it has read.
func (c *conversation) act(ctx context.Context, turn []message) error {
	ready, err := c.recvControl(ctx, kindReady)
	if err != nil {
		return err
	}
	if ready.number != c.turn {
		return fmt.Errorf("the peer is ready for turn %d", ready.number)
	}
	wrs := make([]verbs.SendWR, 0, slots+1)
	for k, m := range turn {
		if ops[m.op] == verbs.OpRead {
			mark(m, slot(c.local, k))
		} else {
			fill(c.seed, m, slot(c.local, k)[:m.size])
		}
		to := c.peer
		to.Addr += uint64(k) * stride
		wrs = append(wrs, verbs.SendWR{
			ID: uint64(k), Op: ops[m.op], Flags: verbs.Signaled, Remote: to, SGL: []verbs.SGE{c.local.SGE(k*stride, m.size)},
		})
	}
	wrs = append(wrs, c.controlWR(control{kind: kindDone, number: c.turn}))
	if err := c.post(wrs...); err != nil {
		return err
	}
	if err := c.sent(ctx, len(wrs)); err != nil {
		return err
	}
	for k, m := range turn {
		if ops[m.op] == verbs.OpRead {
			c.verify(m, slot(c.local, k))
		}
	}
	return nil
}

// observe gives the peer its turn, and checks the bytes that it has sent and written.
func (c *conversation) observe(ctx context.Context, turn []message) error {
	if err := c.offer(turn); err != nil {
		return err
	}
	for range 2 { // DONE, then READY of the next turn, or BYE
		if err := c.expectControl(); err != nil {
			return err
		}
	}
	if err := c.sendControl(ctx, control{kind: kindReady, number: c.turn}); err != nil {
		return err
	}
	for k, m := range turn {
		if ops[m.op] != verbs.OpSend {
			continue
		}
		wc, err := c.ep.RecvComp(ctx)
		if err != nil {
			return fmt.Errorf("message %d: %w", m.number, c.why(err))
		}
		if wc.ID != uint64(k) || int(wc.Len) != m.size {
			return fmt.Errorf("receive %d got %d bytes; want receive %d with %d bytes", wc.ID, wc.Len, k, m.size)
		}
	}
	done, err := c.recvControl(ctx, kindDone)
	if err != nil {
		return err
	}
	if done.number != c.turn {
		return fmt.Errorf("the peer has done turn %d", done.number)
	}
	for k, m := range turn {
		if ops[m.op] != verbs.OpRead {
			c.verify(m, slot(c.data, k))
		}
	}
	return nil
}

// offer prepares the slots for the peer's turn and posts the receives.
func (c *conversation) offer(turn []message) error {
	for k, m := range turn {
		b := slot(c.data, k)
		switch ops[m.op] {
		case verbs.OpRead:
			fill(c.seed, m, b[:m.size])
		case verbs.OpSend:
			mark(m, b)
			if err := c.ep.PostRecv(uint64(k), c.data, k*stride, maxSize); err != nil {
				return err
			}
		default:
			mark(m, b)
		}
	}
	return nil
}
