package main

import (
	"context"
	"fmt"
	"slices"

	"cinnabar/verbs"
)

// badCases are the ways of violating the server's rights, by their number in
// HELLO less one.
var badCases = []string{"write-key", "read-key", "write-range", "send-long"}

// shortRecv is the size in bytes of the receive that send-long does not fit.
const shortRecv = 8

// badNumber returns the number of the bad case for HELLO, 0 for none.
func badNumber(name string) (uint32, error) {
	if name == "" {
		return 0, nil
	}
	i := slices.Index(badCases, name)
	if i < 0 {
		return 0, fmt.Errorf("-b %s is none of %v", name, badCases)
	}
	return uint32(i + 1), nil
}

// violate posts the request of a bad case and prints its completion.
func (s *side) violate(ctx context.Context, name string, c *conversation) error {
	if _, err := s.recvControl(ctx, kindReady); err != nil {
		return err
	}
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: s.peer, SGL: []verbs.SGE{s.local.SGE(0, 64)}}
	switch name {
	case "write-key":
		wr.Remote.RKey ^= 1 << 20
	case "read-key":
		wr.Op = verbs.OpRead
		wr.Remote.RKey ^= 1 << 20
	case "write-range":
		wr.Remote.Addr += slots*stride - 8
	case "send-long":
		wr.Op = verbs.OpSend
	}
	if err := s.post(wr); err != nil {
		return err
	}
	wc, err := s.ep.SendComp(ctx)
	return c.printCompletion(wc, err)
}

// endure posts a receive that the peer is going to overrun, and prints the completion of
// the receive.
func (s *side) endure(ctx context.Context, c *conversation) error {
	if err := s.ep.PostRecv(0, s.data, 0, shortRecv); err != nil {
		return err
	}
	if err := s.sendControl(ctx, control{kind: kindReady}); err != nil {
		return err
	}
	wc, err := s.ep.RecvComp(ctx)
	return c.printCompletion(wc, err)
}

// printCompletion prints a completion of any status; other errors are the caller's.
func (c *conversation) printCompletion(wc verbs.WC, err error) error {
	if err != nil && wc.Err() == nil {
		return err
	}
	c.printf("completion: %v\n", wc.Status)
	return nil
}

// tellEnd waits for the connection's end after a violation and prints its cause and
// the events that were raised.
func (s *side) tellEnd(ctx context.Context, dev *verbs.Device, c *conversation) error {
	conn := s.ep.Conn()
	select {
	case <-conn.Done():
	case <-ctx.Done():
		return fmt.Errorf("the connection did not end: %w", context.Cause(ctx))
	}
	c.printf("end: %v\n", conn.Err())
	over, cancel := context.WithCancel(ctx)
	cancel() // only the events that have come already are needed
	for {
		ev, err := dev.NextEvent(over)
		if err != nil {
			return nil
		}
		c.printf("event: %v\n", ev.Type)
	}
}
