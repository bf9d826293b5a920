package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"cinnabar"
)

type (
	none    struct{}
	content struct {
		Data []byte `proc:"counted=uint64"`
	}
	number struct{ N uint32 }

	// moveIn asks the server for a transfer with all of the client's memory. With Push the server writes the pattern of Seed to the memory;
	// otherwise it reads the memory and expects that pattern.
	moveIn struct {
		Push bool
		Seed uint64
		Bulk cinnabar.BulkHandle
	}
	// moveOut has the number of bytes that the server's device has moved meanwhile, and the number of those that were copied.
	moveOut struct{ RDMA, Bounced uint64 }

	phaseIn struct{ Phase string }
	doomIn  struct {
		Phase string
		Bulk  cinnabar.BulkHandle // the survivor's
	}
	takeIn struct {
		Push bool
		Bulk cinnabar.BulkHandle // the victim's
	}
	verdict struct{ Text string } // the error of a phase; empty: none
	backIn  struct{ Address string }
)

var (
	echo = cinnabar.NewRPC[content, content]("echo")
	note = cinnabar.NewOneWay[number]("note")
	// noted returns the number of the next one-way request.
	noted = cinnabar.NewRPC[none, number]("noted")
	move  = cinnabar.NewRPC[moveIn, moveOut]("move")

	doom = cinnabar.NewRPC[doomIn, none]("doom")
	// doomed is doom without response.
	doomed = cinnabar.NewOneWay[doomIn]("doomed")
	// take makes the survivor transfer memory of the victim. The survivor sends now when the transfer has begun.
	take      = cinnabar.NewRPC[takeIn, none]("take")
	now       = cinnabar.NewOneWay[none]("now")
	avenge    = cinnabar.NewRPC[phaseIn, none]("avenge")
	verdictOf = cinnabar.NewRPC[phaseIn, verdict]("verdict")
	// callBack makes the server call an engine of the client.
	callBack = cinnabar.NewRPC[backIn, none]("call back")
)

// serve registers the procedures.
func (s *side) serve() error {
	return errors.Join(
		echo.Handle(s.e, func(_ context.Context, in content) (content, error) { return in, nil }),
		note.Handle(s.e, func(_ context.Context, in number) error {
			s.noted <- in.N
			return nil
		}),
		noted.Handle(s.e, func(ctx context.Context, _ none) (number, error) {
			select {
			case n := <-s.noted:
				return number{n}, nil
			case <-ctx.Done():
				return number{}, context.Cause(ctx)
			}
		}),
		move.Handle(s.e, s.move),
		doom.Handle(s.e, func(ctx context.Context, in doomIn) (none, error) { return none{}, s.die(ctx, in) }),
		doomed.Handle(s.e, s.die),
		take.Handle(s.e, func(ctx context.Context, in takeIn) (none, error) { return none{}, s.take(ctx, in) }),
		now.Handle(s.e, func(context.Context, none) error { return killSelf() }),
		avenge.Handle(s.e, s.avenge),
		callBack.Handle(s.e, s.back),
		verdictOf.Handle(s.e, func(ctx context.Context, in phaseIn) (verdict, error) { return s.verdicts.wait(ctx, in.Phase) }),
	)
}

// pattern returns n bytes that depend on the seed.
func pattern(seed uint64, n int64) []byte {
	b := make([]byte, n)
	x := seed*2 + 1
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return b
}

// move is the server's part of a transfer.
func (s *side) move(ctx context.Context, in moveIn) (out moveOut, err error) {
	remote := in.Bulk.On(cinnabar.InfoFrom(ctx).Peer)
	want := pattern(in.Seed, remote.Len())
	mode, transfer := cinnabar.WriteOnly, cinnabar.RemoteBulk.Pull
	if in.Push {
		mode, transfer = cinnabar.ReadOnly, cinnabar.RemoteBulk.Push
	}
	memory := make([]byte, remote.Len())
	if in.Push {
		copy(memory, want)
	}
	local, err := s.e.Expose(mode, memory)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	before := s.e.Stats()
	n, err := transfer(remote, ctx, local)
	if err != nil {
		return out, err
	}
	after := s.e.Stats()
	if n != remote.Len() {
		return out, fmt.Errorf("%d of %d bytes were moved", n, remote.Len())
	}
	if !bytes.Equal(memory, want) {
		return out, fmt.Errorf("wrong bytes among the %d that were read", n)
	}
	return moveOut{RDMA: after.BytesRDMA - before.BytesRDMA, Bounced: after.BytesBounced - before.BytesBounced}, nil
}

// cut divides memory into segments of nearly the same size.
func cut(b []byte, segments int) [][]byte {
	return slices.Collect(slices.Chunk(b, (len(b)+segments-1)/segments))
}
