package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/rmem"
	"cinnabar/rmem/verbsrmem"
	"cinnabar/verbs/iwarp"
)

// memoryQuota is the number of bytes that the server of remote memory lends in all.
const memoryQuota = 128 << 20

// serveMemory lends memory over verbs.
func serveMemory(_ *attack, log io.Writer) (*server, error) {
	logger := slog.New(slog.NewTextHandler(log, nil))
	dev, err := iwarp.Open(iwarp.Config{Logger: logger})
	if err != nil {
		return nil, err
	}
	s, err := verbsrmem.Listen(dev, loopback, rmem.Config{Quota: memoryQuota, Logger: logger})
	if err != nil {
		return nil, err
	}
	return &server{notice{Addr: s.Addr().String()}, func() time.Duration {
		_ = s.Close() // the process ends
		return 0
	}}, nil
}

// slots is how many steady calls can be under way without sharing memory, and slotSize the number of bytes of each.
const (
	slots    = 1024
	slotSize = 512
)

// memoryClient writes and reads back 512 bytes each time. All that it holds is less than the part of the quota that each host is sure of. The attackers know the handle of its first region.
func memoryClient(ctx context.Context, at notice) (*client, error) {
	addr, err := netip.ParseAddrPort(at.Addr)
	if err != nil {
		return nil, err
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return nil, err
	}
	c, err := verbsrmem.Dial(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	known, err := c.Alloc(ctx, 4096)
	if err != nil {
		return nil, err
	}
	own, err := c.Alloc(ctx, slots*slotSize)
	if err != nil {
		return nil, err
	}
	var turn atomic.Uint64
	return &client{
		notice: notice{Handle: known.Handle().String()},
		steady: func(ctx context.Context) error {
			if err := writeAndRead(ctx, own, turn.Add(1)); err != nil {
				return err
			}
			_, err := known.ReadAtContext(ctx, make([]byte, 16), 0)
			return err
		},
		newcomer: func(ctx context.Context) error { return borrow(ctx, addr) },
		close:    func() { _ = errors.Join(c.Close(), dev.Close()) },
	}, nil
}

// borrow connects, allocates memory, uses it, gives it back, and leaves.
func borrow(ctx context.Context, addr netip.AddrPort) error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the call's result is at hand
	c, err := verbsrmem.Dial(ctx, dev, addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	r, err := c.Alloc(ctx, slotSize)
	if err != nil {
		return err
	}
	if err := writeAndRead(ctx, r, 0); err != nil {
		return err
	}
	return r.Free(ctx)
}

// writeAndRead uses slot n of r.
func writeAndRead(ctx context.Context, r *rmem.Region, n uint64) error {
	at := int64(n % slots * slotSize)
	out := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, n), slotSize/8)
	if _, err := r.WriteAtContext(ctx, out, at); err != nil {
		return err
	}
	in := make([]byte, len(out))
	if _, err := r.ReadAtContext(ctx, in, at); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return errors.New("read other bytes than were written")
	}
	return nil
}

// flowHello is the private data of a client of rmem.
func flowHello() []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, 0x63666C77)
	b = append(b, 1, 0)
	b = be.AppendUint16(b, 16)
	b = be.AppendUint32(b, 2048)
	b = be.AppendUint32(b, 4096)
	return append(b, make([]byte, 12)...) // a ring that nothing is written to
}

// writeImmediate writes the whole ring that the server has lent, with immediate data. Before, it uses up all receives but
// the last by messages that are in order.
func writeImmediate(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 4, func(ctx context.Context, i int) error {
		p, err := dialIWARP(ctx, o, flowHello())
		if err != nil {
			return err
		}
		defer p.close()
		if len(p.private) < 28 {
			return fmt.Errorf("the server's hello has %d bytes", len(p.private))
		}
		be := binary.BigEndian
		size, key, at := be.Uint32(p.private[12:]), be.Uint32(p.private[16:]), be.Uint64(p.private[20:])
		go func() { _, _ = io.Copy(io.Discard, p.c) }() // ends with the connection
		control := make([]byte, 24)
		control[0] = 2
		for range (i % 3) * 10 {
			if err := p.send(rdmap.OpSend, 0, control); err != nil {
				return nil // the server is right to end such a connection
			}
		}
		ops.add(1)
		if err := p.write(key, at, make([]byte, min(size, 1<<20))); err != nil {
			return nil // as above
		}
		if err := p.send(rdmap.OpImmediate, 0, make([]byte, rdmap.ImmediateLen)); err != nil {
			return nil // as above
		}
		lingering, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		<-lingering.Done()
		return nil
	})
}

// place is where remote memory is.
type place struct {
	stag uint32
	to   uint64
}

// invalidateForeign opens the region that the innocent client has allocated, learns its key, and invalidates it and reads by it over
// another connection.
func invalidateForeign(ctx context.Context, o *order, ops *counter) error {
	at, err := learn(ctx, o)
	if err != nil {
		return err
	}
	return swarm(ctx, ops, 4, func(ctx context.Context, i int) error {
		p, err := dialIWARP(ctx, o, flowHello())
		if err != nil {
			return err
		}
		ops.add(1)
		if i%2 == 0 {
			err = p.send(rdmap.OpSendInvalidate, at.stag, make([]byte, 24))
		} else {
			err = p.read(at.stag, at.to, 16)
		}
		if err != nil {
			p.close()
			return err
		}
		ending, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		untilEnd(ending, p.c)
		return nil
	})
}

// learn opens the innocent client's region as a holder of the handle, and sees its place in the read request. The
// connection lasts until ctx ends.
func learn(ctx context.Context, o *order) (place, error) {
	var seen atomic.Pointer[place]
	r, err := newRelay(ctx, o, func(h ddp.Header, payload []byte) {
		if !h.Tagged && h.QN == ddp.QNReadRequest && len(payload) == rdmap.ReadRequestLen {
			if q, _ := rdmap.ParseReadRequest(payload); q.Size == learnSize {
				seen.Store(&place{q.SourceSTag, q.SourceTO})
			}
		}
	})
	if err != nil {
		return place{}, err
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return place{}, err
	}
	c, err := verbsrmem.Dial(ctx, dev, r.addr())
	if err != nil {
		return place{}, err
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	h, err := rmem.ParseHandle(o.Innocent.Handle)
	if err != nil {
		return place{}, err
	}
	h.Server = strings.Replace(h.Server, o.Server.Addr, r.addr().String(), 1)
	g, err := c.Open(ctx, h)
	if err != nil {
		return place{}, err
	}
	if _, err := g.ReadAtContext(ctx, make([]byte, learnSize), 0); err != nil {
		return place{}, err
	}
	if at := seen.Load(); at != nil {
		return *at, nil
	}
	return place{}, errors.New("the read of the region was not seen")
}

// learnSize is the length by which the read request of [learn] is known.
const learnSize = 1237

// guessSTags writes one byte by a random key, with a new connection for each guess.
func guessSTags(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 8, func(ctx context.Context, _ int) error {
		p, err := dialIWARP(ctx, o, flowHello())
		if err != nil {
			return err
		}
		ops.add(1)
		if err := p.write(rand.Uint32(), 1<<62, []byte{0}); err != nil {
			p.close()
			return err
		}
		untilEnd(ctx, p.c)
		return nil
	})
}

// allocAll allocates until the server has nothing left for it, frees all, and begins again.
func allocAll(ctx context.Context, o *order, ops *counter) error {
	r, err := newRelay(ctx, o, nil)
	if err != nil {
		return err
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	return swarm(ctx, ops, 1, func(ctx context.Context, _ int) error {
		c, err := verbsrmem.Dial(ctx, dev, r.addr())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // frees all
		for size := int64(1 << 20); size >= 4096 && ctx.Err() == nil; {
			ops.add(1)
			if _, err := c.Alloc(ctx, size); err != nil {
				size /= 4
			}
		}
		pause(ctx, 500*time.Millisecond)
		return nil
	})
}

// silentSessions keeps connections that are silent after their hello.
func silentSessions(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 50, func(ctx context.Context, _ int) error {
		p, err := dialIWARP(ctx, o, flowHello())
		if err != nil {
			return err
		}
		ops.add(1)
		untilEnd(ctx, p.c)
		return nil
	})
}
