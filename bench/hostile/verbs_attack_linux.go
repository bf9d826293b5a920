package main

import (
	"context"
	"io"
	"math/rand/v2"
	"time"

	"cinnabar"
	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs/auto"
)

// swarmVerbs calls f with connections of n ports, again and again.
func swarmVerbs(ctx context.Context, o *order, ops *counter, n int, flow byte, f func(ctx context.Context, p *verbsPeer) error) error {
	return swarm(ctx, ops, n, func(ctx context.Context, i int) error {
		p, err := dialVerbs(ctx, o, ownPort(o, i), flow, 0)
		if err != nil {
			return err
		}
		defer p.close()
		ops.add(1)
		return f(ctx, p)
	})
}

// withholdCredits sends as many requests as the server has room for, and gives it no credit for the responses.
func withholdCredits(ctx context.Context, o *order, ops *counter) error {
	return swarmVerbs(ctx, o, ops, 16, rxmCredits, func(ctx context.Context, p *verbsPeer) error {
		for range rxmFirstGrant {
			if err := p.send(rdmap.OpSend, 0, p.request(callNumber(rpcLong.ID(noProvider), 3900))); err != nil {
				return err
			}
			ops.add(1)
		}
		untilEnd(ctx, p.c)
		return nil
	})
}

// grantTooMuch grants credits until the server ends the connection.
func grantTooMuch(ctx context.Context, o *order, ops *counter) error {
	return swarmVerbs(ctx, o, ops, 8, rxmCredits, func(ctx context.Context, p *verbsPeer) error {
		for _, n := range []uint64{1, 1<<16 - 3, 1, 1, 1 << 63, ^uint64(0)} {
			if err := p.grant(n); err != nil {
				return err
			}
		}
		untilEnd(ctx, p.c)
		return nil
	})
}

// connectSlowly sends valid connection requests, one byte at a time.
func connectSlowly(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 200, func(ctx context.Context, i int) error {
		b, err := mpaRequest(rxmRequest(ownPort(o, i), rxmCredits))
		if err != nil {
			return err
		}
		c, err := dialFrom(ctx, o.Local, hostPort(o.Server.Addr), 0)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // the attacker has nothing to lose
		for ; len(b) > 0 && ctx.Err() == nil; b = b[1:] {
			if _, err := c.Write(b[:1]); err != nil {
				return err
			}
			ops.add(1)
			pause(ctx, 20*time.Millisecond)
		}
		return nil
	})
}

// floodVerbs makes connections and gives them up, some before the server has answered.
func floodVerbs(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 25, func(ctx context.Context, i int) error {
		if rand.IntN(2) == 0 {
			p, err := dialVerbs(ctx, o, ownPort(o, i), rxmCredits, 0)
			if err == nil {
				ops.add(1)
				p.close()
			}
			return err
		}
		b, err := mpaRequest(rxmRequest(ownPort(o, i), rxmCredits))
		if err != nil {
			return err
		}
		c, err := dialFrom(ctx, o.Local, hostPort(o.Server.Addr), 0)
		if err != nil {
			return err
		}
		ops.add(1)
		_, _ = c.Write(b) // the server may have ended the connection
		return c.Close()
	})
}

// neverFinish begins messages and does not end them.
func neverFinish(ctx context.Context, o *order, ops *counter) error {
	return swarmVerbs(ctx, o, ops, 100, rxmCredits, func(ctx context.Context, p *verbsPeer) error {
		h := ddp.Header{Version: ddp.Version, ULP: rdmap.Control(rdmap.OpSend), QN: ddp.QNSend, MSN: 1}
		b := p.request(make([]byte, 4000))
		if _, err := p.c.Write(appendFPDU(nil, append(ddp.AppendHeader(nil, h), b[:maxSegment]...))); err != nil {
			return err
		}
		untilEnd(ctx, p.c)
		return nil
	})
}

// garbageVerbs sends random bytes in each layer of the protocol.
func garbageVerbs(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 8, func(ctx context.Context, i int) error {
		switch i % 4 {
		case 0:
			return noise(ctx, o, ops)
		case 1: // a connection request
			private := rxmRequest(ownPort(o, i), rxmCredits)
			private[rand.IntN(len(private))] ^= byte(1 + rand.IntN(255))
			p, err := dialIWARP(ctx, o, private)
			ops.add(1)
			if err == nil {
				p.close()
			} else if isRejected(err) {
				return nil // the server is right to refuse it
			}
			return err
		}
		p, err := dialVerbs(ctx, o, ownPort(o, i), rxmCredits, 0)
		if err != nil {
			return err
		}
		defer p.close()
		go func() { _, _ = io.Copy(io.Discard, p.c) }() // ends with the connection
		for ctx.Err() == nil {
			ops.add(1)
			if i%4 == 2 {
				_, err = p.c.Write(appendFPDU(nil, randomBytes(ddp.Header{}.Len()+rand.IntN(200))))
			} else {
				err = p.send(rdmap.OpSend, 0, p.randomPacket())
			}
			if err != nil {
				return nil // the server is right to end such a connection
			}
		}
		return nil
	})
}

// randomPacket is a packet that begins well.
func (p *verbsPeer) randomPacket() []byte {
	switch rand.IntN(4) {
	case 0: // a random header
		b := p.request(randomBytes(rand.IntN(3000)))
		b[rand.IntN(rxmHeader)] ^= byte(1 + rand.IntN(255))
		return b
	case 1: // a request with a random body
		return p.request(append(mercuryHeader(rand.Uint64(), byte(rand.Uint32())), randomBytes(rand.IntN(3900))...))
	case 2: // a broken descriptor
		d := descriptor(rand.Uint64()>>rand.IntN(60), rand.Uint64()>>rand.IntN(64))
		if rand.IntN(2) == 0 {
			d[rand.IntN(len(d))] ^= byte(1 + rand.IntN(255))
		}
		return p.request(append(mercuryHeader(rpcEcho.ID(noProvider), flagMore), d...))
	}
	return p.packet(0, rxmTagged, randomBytes(rand.IntN(3000))) // a response that nothing waits for
}

// guessRegions reads and writes by random keys. Each costs the connection.
func guessRegions(ctx context.Context, o *order, ops *counter) error {
	return swarmVerbs(ctx, o, ops, 4, rxmCredits, func(ctx context.Context, p *verbsPeer) (err error) {
		if rand.IntN(2) == 0 {
			err = p.read(rand.Uint32(), rand.Uint64(), 8)
		} else {
			err = p.write(rand.Uint32(), rand.Uint64(), make([]byte, 64))
		}
		if err == nil {
			untilEnd(ctx, p.c)
		}
		return err
	})
}

// readRegionSlowly is readSlowly over ofi+verbs.
func readRegionSlowly(ctx context.Context, o *order, ops *counter) error {
	dev, err := softwareDevice(nil)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the attack is over
	return readSlowlyOn(ctx, o, ops, "ofi+verbs://127.0.0.1", &cinnabar.Config{Device: auto.Use(dev)})
}
