//go:build unix

package bench

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func tcpEchoParked() error {
	return acceptTCP(func(c *net.TCPConn) error {
		buf := make([]byte, pingSize)
		var err error
		for err == nil {
			if _, err = io.ReadFull(c, buf); err == nil {
				_, err = c.Write(buf)
			}
		}
		return nil
	})
}

// BenchmarkParked is a round trip to a process that sleeps: an echo over TCP, and an RDMA
// read that is answered without the target's program. The caller waits in Wait,
// which spins a little before it parks.
func BenchmarkParked(b *testing.B) {
	b.Run("path=tcp", func(b *testing.B) {
		c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(startPeer(b, "tcp-echo-parked")))
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, pingSize)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("path=verbs-read", benchParkedRead)
}

func benchParkedRead(b *testing.B) {
	e := dialVerbs(b, iwarp.Config{}, startPeer(b, "verbs-target"))
	p := e.conn.PrivateData()
	remote := verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(p), RKey: binary.BigEndian.Uint32(p[8:])}
	mr, err := e.pd.AllocMR(pingSize, verbs.LocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	defer e.close(b, mr)
	wrs := []verbs.SendWR{{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, pingSize)}, Remote: remote}}
	var wc [1]verbs.WC
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
