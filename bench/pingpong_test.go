//go:build unix

package bench

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

const pingSize = 64

// spinConn reads without blocking and without parking.
type spinConn struct {
	c   *net.TCPConn
	raw syscall.RawConn
	buf []byte
	n   int
	err error
	f   func(fd uintptr) bool
}

func newSpinConn(c *net.TCPConn) (*spinConn, error) {
	raw, err := c.SyscallConn()
	s := &spinConn{c: c, raw: raw}
	s.f = func(fd uintptr) bool {
		s.n, s.err = syscall.Read(int(fd), s.buf)
		return true
	}
	return s, err
}

// read fills b, spinning.
func (s *spinConn) read(b []byte) error {
	for len(b) > 0 {
		s.buf = b
		if err := s.raw.Read(s.f); err != nil {
			return err
		}
		switch {
		case errors.Is(s.err, syscall.EAGAIN), errors.Is(s.err, syscall.EINTR):
		case s.err != nil:
			return s.err
		case s.n == 0:
			return net.ErrClosed
		default:
			b = b[s.n:]
		}
	}
	return nil
}

// acceptTCP calls serve with one connection after the other, and closes each when serve returns.
func acceptTCP(serve func(c *net.TCPConn) error) error {
	l, err := listenTCP()
	if err != nil {
		return err
	}
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return err
		}
		if err := serve(c); err != nil {
			return err
		}
		_ = c.Close() // the client has gone
	}
}

func tcpEcho() error {
	return acceptTCP(func(c *net.TCPConn) error {
		s, err := newSpinConn(c)
		if err != nil {
			return err
		}
		buf := make([]byte, pingSize)
		for s.read(buf) == nil {
			if _, err := c.Write(buf); err != nil {
				break
			}
		}
		return nil
	})
}

func verbsEcho(cfg iwarp.Config) error { return verbsEchoBy(cfg, (*ping).await) }

// verbsEchoBy answers messages, each of which the process awaits by calling await.
func verbsEchoBy(cfg iwarp.Config, await func(*ping) error) error {
	return serveVerbs(cfg, func(e *end, accept func([]byte) error) error {
		p, err := newPing(e)
		if err != nil {
			return err
		}
		if err := p.post(); err != nil {
			return err
		}
		if err := accept(nil); err != nil {
			return err
		}
		for {
			if err := await(p); err != nil {
				<-e.conn.Done() // the client has gone
				return p.mr.Close()
			}
			if err := p.post(); err != nil {
				return err
			}
			if err := p.send(); err != nil {
				return err
			}
		}
	})
}

// ping is one end of the ping-pong: a receive always posted, one send at a time.
type ping struct {
	e     *end
	mr    *verbs.MR
	sends []verbs.SendWR
	recvs []verbs.RecvWR
	wc    [4]verbs.WC
}

func newPing(e *end) (*ping, error) {
	mr, err := e.pd.AllocMR(2*pingSize, verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	return &ping{e: e, mr: mr,
		sends: []verbs.SendWR{{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, pingSize)}}},
		recvs: []verbs.RecvWR{{ID: 2, SGL: []verbs.SGE{mr.SGE(pingSize, pingSize)}}}}, nil
}

func (p *ping) post() error {
	_, err := p.e.qp.PostRecv(p.recvs)
	return err
}

func (p *ping) send() error {
	_, err := p.e.qp.PostSend(p.sends)
	return err
}

// await polls until a message has come.
func (p *ping) await() error { return p.awaitBy(p.e.cq.Poll) }

// awaitParked waits in Wait until a message has come.
func (p *ping) awaitParked() error {
	return p.awaitBy(func(wc []verbs.WC) (int, error) { return p.e.cq.Wait(context.Background(), wc) })
}

func (p *ping) awaitBy(next func([]verbs.WC) (int, error)) error {
	for {
		n, err := next(p.wc[:])
		if err != nil {
			return err
		}
		got := false
		for i := range n {
			if err := p.wc[i].Err(); err != nil {
				return err
			}
			got = got || p.wc[i].Op == verbs.WCRecv
		}
		if got {
			return nil
		}
	}
}

// BenchmarkPingPong is the round trip of 64 bytes between two processes that
// spin: on a non-blocking read, and on completion queues.
func BenchmarkPingPong(b *testing.B) {
	b.Run("path=tcp", benchTCPPing)
	b.Run("path=verbs-nocrc", func(b *testing.B) { benchVerbsPing(b, "verbs-echo/nocrc", iwarp.Config{NoCRC: true}) })
	b.Run("path=verbs-crc", func(b *testing.B) { benchVerbsPing(b, "verbs-echo", iwarp.Config{}) })
}

func benchTCPPing(b *testing.B) {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(startPeer(b, "tcp-echo")))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s, err := newSpinConn(c)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, pingSize)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if err := s.read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func benchVerbsPing(b *testing.B, role string, cfg iwarp.Config) {
	e := dialVerbs(b, cfg, startPeer(b, role))
	p, err := newPing(e)
	if err != nil {
		b.Fatal(err)
	}
	defer e.close(b, p.mr)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.post(); err != nil {
			b.Fatal(err)
		}
		if err := p.send(); err != nil {
			b.Fatal(err)
		}
		if err := p.await(); err != nil {
			b.Fatal(err)
		}
	}
}
