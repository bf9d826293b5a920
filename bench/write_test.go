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

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

const (
	maxWrite    = 1 << 20
	writeWindow = 16 // signaled writes outstanding
)

// tcpSink reads in pieces of 1 MiB and answers the end of the stream with a byte.
func tcpSink() error {
	l, err := listenTCP()
	if err != nil {
		return err
	}
	buf := make([]byte, maxWrite)
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return err
		}
		for err == nil {
			_, err = c.Read(buf)
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
}

// verbsTarget exposes 1 MiB and does nothing.
func verbsTarget(cfg iwarp.Config) error {
	return serveVerbs(cfg, func(e *end, accept func([]byte) error) error {
		mr, err := e.pd.AllocMR(maxWrite, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
		if err != nil {
			return err
		}
		r := mr.Remote()
		if err := accept(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, r.Addr), r.RKey)); err != nil {
			return err
		}
		<-e.conn.Done()
		return mr.Close()
	})
}

// BenchmarkWrite moves messages of one size to another process: over TCP with
// Write and Read, and by RDMA writes. The time includes the proof that all has arrived.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%d/path=tcp", size), func(b *testing.B) { benchTCPWrite(b, size) })
		b.Run(fmt.Sprintf("size=%d/path=verbs-nocrc", size), func(b *testing.B) {
			benchVerbsWrite(b, "verbs-target/nocrc", iwarp.Config{NoCRC: true}, size)
		})
		b.Run(fmt.Sprintf("size=%d/path=verbs-crc", size), func(b *testing.B) {
			benchVerbsWrite(b, "verbs-target", iwarp.Config{}, size)
		})
	}
}

func benchTCPWrite(b *testing.B, size int) {
	addr := startPeer(b, "tcp-sink")
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
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
	if _, err := io.ReadFull(c, buf[:1]); err != nil {
		b.Fatal(err)
	}
}

func benchVerbsWrite(b *testing.B, role string, cfg iwarp.Config, size int) {
	e := dialVerbs(b, cfg, startPeer(b, role))
	p := e.conn.PrivateData()
	remote := verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(p), RKey: binary.BigEndian.Uint32(p[8:])}
	mr, err := e.pd.AllocMR(size, verbs.LocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	defer e.close(b, mr)
	wrs := []verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, size)}, Remote: remote}}
	var wc [writeWindow]verbs.WC
	out := 0
	reap := func(atLeast int) {
		for atLeast > 0 {
			n, err := e.cq.Wait(context.Background(), wc[:])
			if err != nil {
				b.Fatal(err)
			}
			for i := range n {
				if err := wc[i].Err(); err != nil {
					b.Fatal(err)
				}
			}
			out -= n
			atLeast -= n
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if out == writeWindow {
			reap(1)
		}
		if _, err := e.qp.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		out++
	}
	reap(out)
	wrs[0].Op, wrs[0].SGL = verbs.OpRead, []verbs.SGE{mr.SGE(0, 1)}
	if _, err := e.qp.PostSend(wrs); err != nil {
		b.Fatal(err)
	}
	out++
	reap(1)
}
