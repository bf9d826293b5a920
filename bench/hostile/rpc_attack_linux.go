package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"cinnabar"
)

// noProvider is the number of no provider.
const noProvider = 65535

// floodBy sends requests over n connections that claim a port each, and connects again when one ends.
func floodBy(ctx context.Context, o *order, ops *counter, n, window, receive int, body func() []byte) error {
	return swarm(ctx, ops, n, func(ctx context.Context, i int) error {
		p, err := dialRPC(ctx, o, ownPort(o, i), receive)
		if err != nil {
			return err
		}
		defer p.close()
		return p.flood(ctx, ops, window, body)
	})
}

// ownPort is the port that connection i claims. The ports of two attackers differ.
func ownPort(o *order, i int) uint16 { return uint16(1000 + 1000*o.Index + i) }

// holdByPull keeps handlers waiting: they pull from memory of this peer, which answers no read.
func holdByPull(ctx context.Context, o *order, ops *counter) error {
	id := rpcPull.ID(noProvider)
	var key atomic.Uint64
	return floodBy(ctx, o, ops, 1, 1024, 0, func() []byte { return call(id, descriptor(4096, key.Add(1))...) })
}

// announceUnknown and announceKnown announce arguments that nothing serves.
func announceUnknown(ctx context.Context, o *order, ops *counter) error {
	return announce(ctx, o, ops, 0x1234)
}

func announceKnown(ctx context.Context, o *order, ops *counter) error {
	return announce(ctx, o, ops, rpcEcho.ID(noProvider))
}

func announce(ctx context.Context, o *order, ops *counter, id uint64) error {
	var key atomic.Uint64
	return floodBy(ctx, o, ops, 1, 1<<14, 0, func() []byte { return append(mercuryHeader(id, flagMore), descriptor(1<<20, key.Add(1))...) })
}

// leaveResults asks for long results, takes the responses that announce them, and fetches none.
func leaveResults(ctx context.Context, o *order, ops *counter) error {
	return floodBy(ctx, o, ops, 16, 64, 0, func() []byte { return callNumber(rpcLong.ID(noProvider), 8000) })
}

// leaveResponses asks for responses that fill a message, and reads none.
func leaveResponses(ctx context.Context, o *order, ops *counter) error {
	return floodBy(ctx, o, ops, 2, 0, 2048, func() []byte { return callNumber(rpcLong.ID(noProvider), 3900) })
}

// competeByPorts keeps more requests waiting than there are handlers, from as many ports.
func competeByPorts(ctx context.Context, o *order, ops *counter) error {
	return floodBy(ctx, o, ops, 40, 20, 0, func() []byte { return callNumber(rpcSleep.ID(noProvider), 1) })
}

// halfOpen keeps connections that say nothing. It attacks all services that listen on TCP.
func halfOpen(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 200, func(ctx context.Context, _ int) error {
		c, err := dialFrom(ctx, o.Local, hostPort(o.Server.Addr), 0)
		if err != nil {
			return err
		}
		ops.add(1)
		untilEnd(ctx, c)
		return nil
	})
}

// untilEnd reads until the connection ends, or ctx does.
func untilEnd(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	_, _ = io.Copy(io.Discard, c) // how it ends is of no interest
	stop()
	_ = c.Close()
}

// idle keeps connections that have identified themselves.
func idle(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 200, func(ctx context.Context, i int) error {
		p, err := dialRPC(ctx, o, ownPort(o, i), 0)
		if err != nil {
			return err
		}
		ops.add(1)
		untilEnd(ctx, p.stream())
		return nil
	})
}

// garbage sends random bytes, and messages with random fields.
func garbage(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 8, func(ctx context.Context, i int) error {
		if i%2 == 0 {
			return noise(ctx, o, ops)
		}
		p, err := dialOFI(ctx, o, ownPort(o, i), rand.Uint32(), 0)
		if err != nil {
			return err
		}
		defer p.close()
		go func() { _, _ = io.Copy(io.Discard, p.c) }() // ends with the connection
		for ctx.Err() == nil {
			if _, err := p.c.Write(p.randomMessage()); err != nil {
				return nil // the server is right to end such a connection
			}
			ops.add(1)
		}
		return nil
	})
}

// noise is a connection of random bytes.
func noise(ctx context.Context, o *order, ops *counter) error {
	c, err := dialFrom(ctx, o.Local, hostPort(o.Server.Addr), 0)
	if err != nil {
		return err
	}
	ops.add(1)
	_, _ = c.Write(randomBytes(1 + rand.IntN(5000))) // the server may be faster
	if rand.IntN(2) == 0 {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		untilEnd(ctx, c)
	}
	return c.Close()
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// randomMessage is a message that begins well.
func (p *ofiPeer) randomMessage() []byte {
	switch rand.IntN(6) {
	case 0: // a random header of a known operation
		b := randomBytes(16 + rand.IntN(105))
		b[0], b[1], b[6] = ofiVersion, byte(rand.IntN(6)), byte(16+8*rand.IntN(13))
		binary.LittleEndian.PutUint64(b[8:], uint64(len(b)))
		return b
	case 1: // a request with a random body
		return p.appendRequest(nil, append(mercuryHeader(rand.Uint64(), byte(rand.Uint32())), randomBytes(rand.IntN(4000))...))
	case 2: // a broken descriptor
		d := descriptor(rand.Uint64()>>rand.IntN(60), rand.Uint64())
		if rand.IntN(2) == 0 {
			d[rand.IntN(len(d))] ^= byte(1 + rand.IntN(255))
		}
		return p.appendRequest(nil, append(mercuryHeader(rpcEcho.ID(noProvider), flagMore), d...))
	case 3: // a response that nothing waits for
		b := make([]byte, ofiTaggedLen+rand.IntN(6000))
		ofiBase(b, ofiOpTagged, uint16(rand.IntN(16)), ofiTaggedLen, uint64(len(b)))
		binary.LittleEndian.PutUint64(b[16:], uint64(rand.IntN(100)))
		return b
	case 4: // a long one
		b := make([]byte, ofiTaggedLen+rand.IntN(100_000))
		ofiBase(b, ofiOpTagged, 0, ofiTaggedLen, uint64(len(b)))
		return b
	}
	return p.appendRequest(nil, call(rpcPull.ID(noProvider), descriptor(rand.Uint64()>>rand.IntN(64), rand.Uint64())...))
}

// guessKeys reads by a random key. Each costs the connection.
func guessKeys(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 4, func(ctx context.Context, i int) error {
		p, err := dialOFI(ctx, o, ownPort(o, i), rand.Uint32(), 0)
		if err != nil {
			return err
		}
		ops.add(1)
		if _, err := p.c.Write(readRequest(rand.Uint64(), 0, 8)); err != nil {
			p.close()
			return err
		}
		untilEnd(ctx, p.c)
		return nil
	})
}

// hijack connects as the innocent client.
func hijack(ctx context.Context, o *order, ops *counter) error {
	port := portOf(o.Innocent.Addr)
	if port == 0 {
		return fmt.Errorf("the innocent client's address %q has no port", o.Innocent.Addr)
	}
	return swarm(ctx, ops, 2, func(ctx context.Context, _ int) error {
		ops.add(1)
		p, err := dialRPC(ctx, o, port, 0)
		if err != nil {
			return err
		}
		untilEnd(ctx, p.stream())
		return nil
	})
}

// readSlowly reads the memory that the server exposes as slowly as a connection bears that does not count as stalled.
func readSlowly(ctx context.Context, o *order, ops *counter) error {
	return readSlowlyOn(ctx, o, ops, "ofi+tcp://127.0.0.1", nil)
}

// readSlowlyOn is readSlowly with an engine at own, which asks for the handles of the memory.
func readSlowlyOn(ctx context.Context, o *order, ops *counter, own string, cfg *cinnabar.Config) error {
	e, err := cinnabar.Open(ctx, own, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }() // the attack is over
	ep, err := e.Lookup(o.Server.Addr)
	if err != nil {
		return err
	}
	return swarm(ctx, ops, 4, func(ctx context.Context, i int) error {
		h, err := rpcShare.Call(ctx, ep, number{})
		if err != nil || h.B == (cinnabar.BulkHandle{}) {
			pause(ctx, time.Millisecond) // the memory is being closed
			return err
		}
		at, err := placeOf(h.B, i%lendSegments)
		if err != nil {
			return err
		}
		p, err := dialRPC(ctx, o, ownPort(o, i), 256<<10)
		if err != nil {
			return err
		}
		defer p.close()
		if err := p.readSegment(at); err != nil {
			return err
		}
		for b := make([]byte, 40<<10); ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
			ops.add(1)
			if _, err := io.ReadFull(p.stream(), b); err != nil {
				return nil // all was read, or the server has ended the connection
			}
		}
		return nil
	})
}

// segmentPlace is the beginning of a segment: its key, and its address, which peers over ofi+verbs name.
type segmentPlace struct{ key, addr uint64 }

// placeOf reads the place of a segment from a handle of several segments. A handle has a head, the address and length of each segment, the size of
// each segment's key, and then the keys.
func placeOf(h cinnabar.BulkHandle, segment int) (segmentPlace, error) {
	d, err := h.AppendBinary(nil)
	if err != nil {
		return segmentPlace{}, err
	}
	n := int(binary.LittleEndian.Uint32(d[8:]))
	at := 16 + 16*n + 8*n + 48*segment
	if n < 2 || at+48 > len(d) {
		return segmentPlace{}, fmt.Errorf("a handle of %d bytes and %d segments has no key of segment %d", len(d), n, segment)
	}
	return segmentPlace{binary.LittleEndian.Uint64(d[at:]), binary.LittleEndian.Uint64(d[at+32:])}, nil
}
