//go:build unix

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"cinnabar/rmem"
	"cinnabar/rmem/verbsrmem"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rstream"
)

// parkedPage is the size in bytes of the longer answers in BenchmarkParked.
const parkedPage = 4 << 10

// tcpEchoParked answers each request of pingSize bytes with as many bytes as the request's first four bytes say.
func tcpEchoParked() error {
	return acceptTCP(func(c *net.TCPConn) error { return echo(c) })
}

// echo returns nil when the client has gone.
func echo(c io.ReadWriter) error {
	buf := make([]byte, parkedPage)
	for {
		if _, err := io.ReadFull(c, buf[:pingSize]); err != nil {
			return nil
		}
		n := binary.BigEndian.Uint32(buf)
		if n > parkedPage {
			return fmt.Errorf("a request for %d bytes", n)
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return nil
		}
	}
}

func flowEcho() error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	l, err := flow.Listen(dev, loopback, flow.Config{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	return serveEach(l.Addr(), func() (*flow.Conn, error) { return l.Accept(ctx) }, func(c *flow.Conn) error {
		for {
			rec, err := c.Recv(ctx)
			if err != nil {
				return nil // the client has gone
			}
			if err := errors.Join(c.Send(ctx, rec.Bytes()), rec.Release()); err != nil {
				return err
			}
		}
	})
}

func rstreamEcho() error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	l, err := rstream.Listen(dev, loopback)
	if err != nil {
		return err
	}
	return serveEach(l.Addr(), l.Accept, func(c net.Conn) error { return echo(c) })
}

// rstreamSink is the server of BenchmarkStream. It reads and discards a client's stream, and then closes its own side of the connection.
func rstreamSink() error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	l, err := rstream.Listen(dev, loopback)
	if err != nil {
		return err
	}
	return serveEach(l.Addr(), l.Accept, func(c net.Conn) error {
		_, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, sinkBuffer))
		return errors.Join(err, c.(*rstream.Conn).CloseWrite())
	})
}

// serveEach prints the address of a listener, and serves one connection after the other.
func serveEach[C io.Closer](addr any, accept func() (C, error), serve func(C) error) error {
	fmt.Println(addr)
	for {
		c, err := accept()
		if err != nil {
			return err
		}
		if err := serve(c); err != nil {
			return err
		}
		_ = c.Close() // the client has gone
	}
}

func rmemServer() error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	s, err := verbsrmem.Listen(dev, loopback, rmem.Config{})
	if err != nil {
		return err
	}
	fmt.Println(s.Addr())
	select {}
}

// BenchmarkParked is a round trip of 64 bytes between two processes that block. Each path has the first one as its yardstick: an
// echo over TCP whose ends park in Read. The ends of wait block in CQ.Wait, those of flow and rstream in Recv and Read. A read of
// verbs or rmem is answered by the device of the target, whose program sleeps. With spin=0 Wait parks at once. The paths with
// size=4096 have an answer of 4 KiB.
func BenchmarkParked(b *testing.B) {
	b.Run("path=tcp", func(b *testing.B) { benchParkedTCP(b, pingSize) })
	b.Run("path=wait", func(b *testing.B) { benchParkedWait(b, -1) })
	b.Run("path=wait/spin=0", func(b *testing.B) { benchParkedWait(b, 0) })
	b.Run("path=read", func(b *testing.B) { benchParkedRead(b, -1) })
	b.Run("path=read/spin=0", func(b *testing.B) { benchParkedRead(b, 0) })
	b.Run("path=flow", benchParkedFlow)
	b.Run("path=rstream", benchParkedRstream)
	b.Run("path=rmem", func(b *testing.B) { benchParkedRmem(b, pingSize) })
	b.Run(fmt.Sprintf("path=tcp/size=%d", parkedPage), func(b *testing.B) { benchParkedTCP(b, parkedPage) })
	b.Run(fmt.Sprintf("path=rmem/size=%d", parkedPage), func(b *testing.B) { benchParkedRmem(b, parkedPage) })
}

// benchStream asks an echo for size bytes again and again.
func benchStream(b *testing.B, c io.ReadWriter, size int) {
	buf := make([]byte, max(size, pingSize))
	b.ReportAllocs()
	for b.Loop() {
		binary.BigEndian.PutUint32(buf, uint32(size))
		if _, err := c.Write(buf[:pingSize]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf[:size]); err != nil {
			b.Fatal(err)
		}
	}
}

func benchParkedTCP(b *testing.B, size int) {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(startPeer(b, "tcp-echo-parked")))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	benchStream(b, c, size)
}

// benchParkedWait is a ping-pong of messages. spin is the argument of SetSpin at this end, and -1 leaves the default.
func benchParkedWait(b *testing.B, spin time.Duration) {
	role := "verbs-echo-parked"
	if spin == 0 {
		role = "verbs-echo-parked/0"
	}
	e := dialVerbs(b, iwarp.Config{}, startPeer(b, role))
	if spin >= 0 {
		e.cq.SetSpin(spin)
	}
	p, err := newPing(e)
	if err != nil {
		b.Fatal(err)
	}
	defer e.close(b, p.mr)
	b.ReportAllocs()
	for b.Loop() {
		if err := errors.Join(p.post(), p.send(), p.awaitParked()); err != nil {
			b.Fatal(err)
		}
	}
}

func benchParkedRead(b *testing.B, spin time.Duration) {
	e := dialVerbs(b, iwarp.Config{}, startPeer(b, "verbs-target"))
	if spin >= 0 {
		e.cq.SetSpin(spin)
	}
	p := e.conn.PrivateData()
	remote := verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(p), RKey: binary.BigEndian.Uint32(p[8:])}
	mr, err := e.pd.AllocMR(pingSize, verbs.LocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	defer e.close(b, mr)
	wrs := []verbs.SendWR{{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, pingSize)}, Remote: remote}}
	var wc [1]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.qp.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		if _, err := e.cq.Wait(context.Background(), wc[:]); err != nil {
			b.Fatal(err)
		}
		if err := wc[0].Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// openDevice opens a device that is closed at the end.
func openDevice(b *testing.B) *verbs.Device {
	b.Helper()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := dev.Close(); err != nil {
			b.Error(err)
		}
	})
	return dev
}

func benchParkedFlow(b *testing.B) {
	ctx := context.Background()
	c, err := flow.Dial(ctx, openDevice(b), startPeer(b, "flow-echo"), flow.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}()
	msg := make([]byte, pingSize)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Send(ctx, msg); err != nil {
			b.Fatal(err)
		}
		rec, err := c.Recv(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := rec.Release(); err != nil {
			b.Fatal(err)
		}
	}
}

func benchParkedRstream(b *testing.B) {
	c, err := rstream.Dial(context.Background(), openDevice(b), startPeer(b, "rstream-echo"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}()
	benchStream(b, c, pingSize)
}

// sinkBuffer is the size in bytes of the reader's buffer in BenchmarkStream.
const sinkBuffer = 64 << 10

// BenchmarkStream measures writes of one size to a process that reads them.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{pingSize, 4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("path=rstream/size=%d", size), func(b *testing.B) { benchStreamTo(b, size) })
	}
}

func benchStreamTo(b *testing.B, size int) {
	c, err := rstream.Dial(context.Background(), openDevice(b), startPeer(b, "rstream-sink"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}()
	buf := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.CloseWrite(); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadAll(c); err != nil { // the peer closes the stream after it has read all
		b.Fatal(err)
	}
}

func benchParkedRmem(b *testing.B, size int) {
	ctx := context.Background()
	c, err := verbsrmem.Dial(ctx, openDevice(b), startPeer(b, "rmem-server"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}()
	r, err := c.Alloc(ctx, int64(size))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.ReadAt(buf, 0); err != nil {
			b.Fatal(err)
		}
	}
}
