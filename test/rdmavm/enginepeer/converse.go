package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"cinnabar"
)

const (
	notes    = 100 // one-way requests
	inFlight = 64  // calls at a time
	many     = 640 // calls in all
	// copiedNone is the size in bytes from which on a transfer must move without a copy.
	copiedNone = 1 << 20
)

// sizes are the sizes of requests and responses, in bytes. A request or response of more than about 4000 bytes does not fit a message.
var sizes = []int64{0, 1, 100, 3000, 4096, 20_000, 1 << 20}

// moves are the transfers: sizes in bytes, and numbers of segments of the client's memory.
var moves = []struct {
	size     int64
	segments int
}{{1, 1}, {5000, 1}, {100_003, 3}, {1 << 20, 1}, {1<<20 + 1, 7}, {8 << 20, 1}}

// converse checks calls, one-way requests and transfers at the server.
func (s *side) converse(ctx context.Context, server *cinnabar.Endpoint, out io.Writer) error {
	for _, n := range sizes {
		if err := echoed(ctx, server, pattern(uint64(n), n)); err != nil {
			return err
		}
	}
	if err := pipeline(ctx, server); err != nil {
		return err
	}
	for i := range uint32(notes) {
		if err := note.Send(ctx, server, number{i}); err != nil {
			return fmt.Errorf("one-way request %d: %w", i, err)
		}
	}
	seen := map[uint32]bool{}
	for range notes {
		n, err := noted.Call(ctx, server, none{})
		if err != nil {
			return err
		}
		seen[n.N] = true
	}
	if len(seen) != notes {
		return fmt.Errorf("%d of %d one-way requests have come", len(seen), notes)
	}
	for i, m := range moves {
		for _, push := range []bool{false, true} {
			if err := s.moved(ctx, server, m.size, m.segments, push, uint64(i)); err != nil {
				return fmt.Errorf("%d bytes in %d segments, push %t: %w", m.size, m.segments, push, err)
			}
		}
	}
	_, err := fmt.Fprintf(out, "%d sizes of requests, %d calls with %d in flight, %d one-way requests, %d transfers\n",
		len(sizes), many, inFlight, notes, 2*len(moves))
	return err
}

// echoed calls echo, and returns an error unless the response has the bytes of the request.
func echoed(ctx context.Context, server *cinnabar.Endpoint, data []byte) error {
	got, err := echo.Call(ctx, server, content{data})
	if err != nil {
		return fmt.Errorf("echo of %d bytes: %w", len(data), err)
	}
	if !bytes.Equal(got.Data, data) {
		return fmt.Errorf("echo of %d bytes: the response has %d others", len(data), len(got.Data))
	}
	return nil
}

// pipeline makes many calls, with several in flight.
func pipeline(ctx context.Context, server *cinnabar.Endpoint) error {
	ended := make(chan error, inFlight)
	for i := range many {
		if i >= inFlight {
			if err := <-ended; err != nil {
				return err
			}
		}
		go func() { ended <- echoed(ctx, server, pattern(uint64(i), int64(i))) }()
	}
	var errs []error
	for range inFlight {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// moved makes the server read or write memory of this side, and checks the bytes and the counters of both engines.
func (s *side) moved(ctx context.Context, server *cinnabar.Endpoint, size int64, segments int, push bool, seed uint64) (err error) {
	want := pattern(seed, size)
	memory, mode := make([]byte, size), cinnabar.WriteOnly
	if !push {
		copy(memory, want)
		mode = cinnabar.ReadOnly
	}
	b, err := s.e.Expose(mode, cut(memory, segments)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	before := s.e.Stats().BytesBounced
	out, err := move.Call(ctx, server, moveIn{Push: push, Seed: seed, Bulk: b.Handle()})
	if err != nil {
		return err
	}
	if !bytes.Equal(memory, want) {
		return errors.New("wrong bytes in this side's memory")
	}
	copied := s.e.Stats().BytesBounced - before
	if size >= copiedNone && (out.RDMA != uint64(size) || out.Bounced != 0 || copied != 0) {
		return fmt.Errorf("the server has moved %d bytes by RDMA, and copied %d of them; this side has copied %d", out.RDMA, out.Bounced, copied)
	}
	return nil
}
