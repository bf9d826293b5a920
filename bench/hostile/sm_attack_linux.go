package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar"
)

// swarmSM runs f again and again on n goroutines, each with a client of its own.
func swarmSM(ctx context.Context, o *order, ops *counter, n int, f func(ctx context.Context, c *smClient, i int) error) error {
	return swarm(ctx, ops, n, func(ctx context.Context, i int) error {
		c, err := openSM(o)
		if err != nil {
			return err
		}
		defer c.close()
		for ctx.Err() == nil {
			if err := f(ctx, c, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// connected runs f with a connection, and releases it.
func connected(ctx context.Context, c *smClient, id int, f func(p *smPeer) error) error {
	p, err := c.connect(ctx, id)
	if err != nil {
		return err
	}
	err = f(p)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, p.leave(leaving))
}

// floodSM takes places, and gives them back after a moment.
func floodSM(ctx context.Context, o *order, ops *counter) error {
	return swarmSM(ctx, o, ops, 25, func(ctx context.Context, c *smClient, i int) error {
		return connected(ctx, c, i, func(*smPeer) error {
			ops.add(1)
			pause(ctx, 50*time.Millisecond)
			return nil
		})
	})
}

// garbageCommands sends commands of random bytes, of other processes and pairs, with descriptors that are no eventfds.
func garbageCommands(ctx context.Context, o *order, ops *counter) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	return swarmSM(ctx, o, ops, 2, func(ctx context.Context, c *smClient, _ int) error {
		b := command(os.Getpid(), rand.IntN(256), rand.IntN(256), rand.IntN(4))
		switch rand.IntN(4) {
		case 0:
			b = randomBytes(rand.IntN(64))
		case 1:
			binary.LittleEndian.PutUint32(b, rand.Uint32()) // another process
		}
		var fds []int
		for range rand.IntN(4) {
			fds = append(fds, pipe[rand.IntN(2)])
		}
		ops.add(1)
		return c.datagram(ctx, b, fds...)
	})
}

// garbageRings writes random descriptors and positions into the rings of a connection.
func garbageRings(ctx context.Context, o *order, ops *counter) error {
	return swarmSM(ctx, o, ops, 2, func(ctx context.Context, c *smClient, i int) error {
		return connected(ctx, c, i, func(p *smPeer) error {
			for range 200 {
				if ctx.Err() != nil || !p.alive() {
					return nil
				}
				ops.add(1)
				switch rand.IntN(8) {
				case 0:
					p.word(smPairReply*rand.IntN(2), 4*rand.IntN(smSlots/4)).Store(rand.Uint32())
				case 1:
					p.at = rand.Uint32() % smSlotCount
				default:
					for !p.push(rand.Uint64()>>rand.IntN(64)) && ctx.Err() == nil && p.alive() {
						pause(ctx, 100*time.Microsecond)
						p.at = p.word(0, smConsumerTail).Load() % smSlotCount
					}
				}
			}
			return nil
		})
	})
}

// fillEventfd fills the eventfd that the server signals, and makes it block. Then it makes the server signal.
func fillEventfd(ctx context.Context, o *order, ops *counter) error {
	return swarmSM(ctx, o, ops, 1, func(ctx context.Context, c *smClient, i int) error {
		return connected(ctx, c, i, func(p *smPeer) error {
			if err := unix.SetNonblock(p.fromServer, true); err != nil {
				return err
			}
			for n := uint64(1) << 63; n > 0; n >>= 1 {
				ring(p.fromServer, n)
				ring(p.fromServer, n)
			}
			for k := range uint32(20) {
				// The server has checked that the eventfd does not block: the flag is that of the open file, which is shared.
				if err := unix.SetNonblock(p.fromServer, false); err != nil {
					return err
				}
				if p.request(k+1, call(rpcEcho.ID(noProvider), 0, 0, 0, 0)) {
					ops.add(1)
				}
				pause(ctx, 20*time.Millisecond)
			}
			return nil
		})
	})
}

// leaveResponsesSM sends requests as fast as the rings allow, and takes no response. Responses wait in copy buffers, which
// all clients share.
func leaveResponsesSM(ctx context.Context, o *order, ops *counter) error {
	return swarmSM(ctx, o, ops, 2, func(ctx context.Context, c *smClient, i int) error {
		return connected(ctx, c, i, func(p *smPeer) error {
			body := callNumber(rpcLong.ID(noProvider), 3900)
			begun := time.Now()
			for tag := uint32(1); ctx.Err() == nil && p.alive() && time.Since(begun) < time.Second; {
				if p.request(tag, body) {
					ops.add(1)
					tag++
				} else {
					pause(ctx, 100*time.Microsecond)
				}
			}
			return nil
		})
	})
}

// callAll keeps n calls under way, by a proper client.
func callAll(ctx context.Context, o *order, ops *counter, n int, f func(ctx context.Context, ep *cinnabar.Endpoint) error) error {
	e, err := cinnabar.Open(ctx, "na+sm://", nil)
	if err != nil {
		return err
	}
	ep, err := e.Lookup(o.Server.Addr)
	if err != nil {
		return errors.Join(err, e.Close())
	}
	err = swarm(ctx, ops, n, func(ctx context.Context, _ int) error {
		ops.add(1)
		return f(ctx, ep)
	})
	return errors.Join(err, e.Close())
}

// holdBySleep keeps handlers for a second each.
func holdBySleep(ctx context.Context, o *order, ops *counter) error {
	return callAll(ctx, o, ops, 500, func(ctx context.Context, ep *cinnabar.Endpoint) error {
		_, err := rpcSleep.Call(ctx, ep, number{1000})
		return err
	})
}

// manyCalls keeps calls of all kinds under way.
func manyCalls(ctx context.Context, o *order, ops *counter) error {
	return callAll(ctx, o, ops, 32, func(ctx context.Context, ep *cinnabar.Endpoint) error {
		return echo(ctx, ep, 1<<rand.IntN(14))
	})
}
