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
	"os"
	"strings"
	"time"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// loopback is where services over verbs listen.
var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// serveFiles takes files into a directory of its own.
func serveFiles(_ *attack, log io.Writer) (*server, error) {
	logger := slog.New(slog.NewTextHandler(log, nil))
	dev, err := iwarp.Open(iwarp.Config{Logger: logger})
	if err != nil {
		return nil, err
	}
	l, err := verbs.Listen(dev, loopback)
	if err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp("", "cinnabar-hostile-")
	if err != nil {
		return nil, err
	}
	dir, err := xfer.OpenDir(context.Background(), path, xfer.DirOptions{Overwrite: true})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r := xfer.Receiver{Open: dir.Open, Logger: logger}
	go func() {
		_ = r.Serve(ctx, l) // ends with ctx
		close(done)
	}()
	return &server{notice{Addr: l.Addr().String()}, func() time.Duration {
		cancel()
		<-done
		_ = errors.Join(l.Close(), dir.Close(), os.RemoveAll(path)) // the process ends
		return 0
	}}, nil
}

// fileEvery is the time between two files.
const fileEvery = 100 * time.Millisecond

// fileClient sends a file of 64 KiB each time. Each sending connects, and there is one at a time, because a receiver has few places
// and may keep all but one of a host's for other hosts.
func fileClient(_ context.Context, at notice) (*client, error) {
	addr, err := netip.ParseAddrPort(at.Addr)
	if err != nil {
		return nil, err
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return nil, err
	}
	data := randomBytes(64 << 10)
	turn := make(chan struct{}, 1) // held by the sending that is under way
	return &client{
		every: fileEvery,
		newcomer: func(ctx context.Context) error {
			select {
			case turn <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			defer func() { <-turn }()
			var s xfer.Sender
			res, err := s.Send(ctx, dev, addr, xfer.Source{Name: "innocent", Data: bytes.NewReader(data), Size: int64(len(data))})
			return equal(err, uint64(res.Size), uint64(len(data)))
		},
		close: func() { _ = dev.Close() },
	}, nil
}

// fileHello is the private data of a sender that wants the fast protocol.
func fileHello(size uint64) []byte {
	le := binary.LittleEndian
	b := append([]byte("cnxf"), 1, 2, 1, 0) // version, fast, write with immediate data, SHA-256
	b = le.AppendUint32(b, 1<<20)
	b = le.AppendUint16(b, 16)
	b = append(b, 0, 0)
	b = le.AppendUint64(b, size)
	return append(b, make([]byte, 16)...)
}

// takePlaces connects as a sender of a large file, and sends nothing.
func takePlaces(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 64, func(ctx context.Context, _ int) error {
		p, err := dialIWARP(ctx, o, fileHello(1<<40))
		ops.add(1)
		if err != nil {
			return err
		}
		untilEnd(ctx, p.c)
		return nil
	})
}

// hostileNames are names that no receiver may store a file under, and some others.
var hostileNames = []string{
	"a", "b", "../x", "/etc/passwd", "..", ".", "x/y", "a\\b", "\x00", strings.Repeat("n", 255), strings.Repeat("n", 300), ".bash_aliases",
	".cinnabar-0000000000000000.part", "con", "\u202etxt.exe", "",
}

// hostileHellos says random hellos, opens files by hostile names, and sends random messages.
func hostileHellos(ctx context.Context, o *order, ops *counter) error {
	return swarm(ctx, ops, 6, func(ctx context.Context, _ int) error {
		size := uint64(rand.IntN(1 << rand.IntN(22)))
		hello := fileHello(size)
		switch rand.IntN(4) {
		case 0:
			hello[rand.IntN(len(hello))] = byte(rand.Uint32())
		case 1:
			copy(hello[4:], randomBytes(len(hello)-4))
		case 2:
			hello = nil // as the paper's program
		}
		ops.add(1)
		p, err := dialIWARP(ctx, o, hello)
		if errors.Is(err, errRejected) {
			return nil
		}
		if err != nil {
			return err
		}
		defer p.close()
		go func() { _, _ = io.Copy(io.Discard, p.c) }() // ends with the connection
		name := hostileNames[rand.IntN(len(hostileNames))]
		err = p.send(rdmap.OpSend, 0, fileMessage(1, uint32(len(name)), 0, name))
		for i := 0; i < 40 && err == nil; i++ {
			ops.add(1)
			err = p.randomFileMessage(uint64(i), size)
		}
		return nil // the receiver is right to end such a connection
	})
}

// fileMessage is a message of the fast protocol.
func fileMessage(kind uint16, length uint32, number uint64, tail string) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(kind))
	b = le.AppendUint32(b, length)
	b = le.AppendUint64(b, number)
	b = le.AppendUint32(b, rand.Uint32())
	b = le.AppendUint32(b, rand.Uint32())
	return append(b, tail...)
}

// randomFileMessage sends a message of a sender. Its numbers are random at times.
func (p *iwarpPeer) randomFileMessage(i, size uint64) error {
	switch rand.IntN(10) {
	case 0:
		return p.send(rdmap.OpSend, 0, fileMessage(uint16(rand.IntN(9)), rand.Uint32()>>rand.IntN(32), rand.Uint64()>>rand.IntN(64), ""))
	case 1:
		return p.send(rdmap.OpSend, 0, fileMessage(5, 32, size, string(make([]byte, 32))))
	case 2:
		return p.send(rdmap.OpImmediate, 0, randomBytes(rdmap.ImmediateLen))
	case 3:
		return p.send(rdmap.OpSendInvalidate, rand.Uint32(), fileMessage(3, 4096, i, ""))
	}
	return p.send(rdmap.OpSend, 0, fileMessage(3, 4096, i, ""))
}

// sendSlowly sends files that are read slowly, because each transfer keeps its place and its buffers until its end.
func sendSlowly(ctx context.Context, o *order, ops *counter) error {
	r, err := newRelay(ctx, o, nil)
	if err != nil {
		return err
	}
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the attack is over
	return swarm(ctx, ops, 10, func(ctx context.Context, i int) error {
		s := xfer.Sender{Protocol: xfer.Fast, Chunk: 4096, Window: 64}
		_, err := s.Send(ctx, dev, r.addr(), xfer.Source{Name: fmt.Sprintf("slow-%d-%d", o.Index, i), Data: &slowFile{ctx, ops}, Size: 1 << 30})
		return err
	})
}

// slowFile is a file with slow reads.
type slowFile struct {
	ctx context.Context
	ops *counter
}

// ReadAt implements [io.ReaderAt].
func (f *slowFile) ReadAt(p []byte, _ int64) (int, error) {
	pause(f.ctx, 200*time.Millisecond)
	f.ops.add(1)
	return len(p), f.ctx.Err()
}
