//go:build unix

package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rstream"
)

const (
	idleConns = 400             // number of streams of BenchmarkIdleStream
	idleBytes = 4 << 20         // bytes in each direction over each stream with traffic
	idleQuiet = 3 * time.Second // time without traffic before the server measures its memory; package flow frees it within one second
)

// residentKiB returns the resident set of this process in KiB, without the memory that the kernel uses for the process. Before that it forces
// three collections and returns free memory to the system, because the runtime of an idle process makes three collections in some minutes,
// and each collection halves the stacks of goroutines that use little of them.
func residentKiB() (int64, error) {
	for range 3 {
		debug.FreeOSMemory()
	}
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident int64
	_, err = fmt.Sscan(string(b), &size, &resident)
	return resident * int64(os.Getpagesize()) >> 10, err
}

// rstreamIdle is the server of BenchmarkIdleStream: it prints its address and serves each stream by serveIdle.
func rstreamIdle() error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	l, err := rstream.Listen(dev, loopback)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go serveIdle(c)
	}
}

// serveIdle serves a stream until its end. A request is a number of bytes; 0 asks for the resident set.
func serveIdle(c net.Conn) {
	defer c.Close()
	for {
		var n uint64
		if binary.Read(c, binary.BigEndian, &n) != nil {
			return
		}
		if n == 0 {
			rss, err := residentKiB()
			if err != nil || binary.Write(c, binary.BigEndian, rss) != nil {
				return
			}
			continue
		}
		buf := make([]byte, n)
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

// BenchmarkIdleStream reports the growth of the resident set of a server for each idle stream: of streams that have carried only a few
// bytes, and of streams that have carried idleBytes each way and then nothing for idleQuiet.
func BenchmarkIdleStream(b *testing.B) {
	b.Run("before=nothing", func(b *testing.B) { benchIdle(b, 8) })
	b.Run("before=traffic", func(b *testing.B) { benchIdle(b, idleBytes) })
}

func benchIdle(b *testing.B, traffic int) {
	for b.Loop() {
		addr, dev := startPeer(b, "rstream-idle"), openDevice(b)
		conns := make([]net.Conn, 0, idleConns+1)
		open := func() net.Conn {
			c, err := rstream.Dial(context.Background(), dev, addr)
			if err != nil {
				b.Fatal(err)
			}
			conns = append(conns, c)
			passBytes(b, c, traffic)
			return c
		}
		first := open()
		before := askResident(b, first)
		for range idleConns {
			open()
		}
		quiet := time.NewTimer(idleQuiet)
		<-quiet.C
		b.ReportMetric(float64(askResident(b, first)-before)/idleConns, "KiB/stream")
		for _, c := range conns {
			if err := c.Close(); err != nil {
				b.Error(err)
			}
		}
	}
}

// askResident returns the resident set of the server.
func askResident(b *testing.B, c net.Conn) int64 {
	b.Helper()
	var rss int64
	if err := binary.Write(c, binary.BigEndian, uint64(0)); err != nil {
		b.Fatal(err)
	}
	if err := binary.Read(c, binary.BigEndian, &rss); err != nil {
		b.Fatal(err)
	}
	return rss
}

// passBytes sends n bytes to the server, and receives n bytes from it.
func passBytes(b *testing.B, c net.Conn, n int) {
	b.Helper()
	if err := binary.Write(c, binary.BigEndian, uint64(n)); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, n)
	if _, err := c.Write(buf); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		b.Fatal(err)
	}
}
