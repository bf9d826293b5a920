package sockio

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
)

// BenchmarkPingPong sends 64 bytes to and fro over loopback. Ends that spin on a
// try call are compared with ends that spin through RawConn.Read, which takes the
// descriptor's read lock, and with ends parked in the poller.
func BenchmarkPingPong(b *testing.B) {
	const size = 64
	b.Run("TryReadv", func(b *testing.B) {
		x, y := directPair(b)
		pingPong(b, size, spinner(x), spinner(y))
	})
	b.Run("RawConn", func(b *testing.B) {
		x, y := tcpPair(b)
		pingPong(b, size, rawSpinner(b, x), rawSpinner(b, y))
	})
	b.Run("Parked", func(b *testing.B) {
		x, y := tcpPair(b)
		pingPong(b, size, parker(x), parker(y))
	})
}

// end is one side of a ping-pong: write sends p, read fills it.
type end struct{ write, read func(p []byte) error }

func pingPong(b *testing.B, size int, x, y end) {
	var wg sync.WaitGroup
	stop := byte(1)
	wg.Go(func() {
		buf := make([]byte, size)
		for buf[0] != stop {
			if y.read(buf) != nil || y.write(buf) != nil {
				b.Error("echo failed")
				return
			}
		}
	})
	buf := make([]byte, size)
	round := func() {
		if x.write(buf) != nil || x.read(buf) != nil {
			b.Fatal("ping failed")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
	buf[0] = stop
	round()
	wg.Wait()
}

func spinner(s stream) end {
	wv, rv := make([][]byte, 1), make([][]byte, 1)
	return end{
		write: func(p []byte) error {
			wv[0] = p
			_, err := s.tryWritev(wv)
			return err
		},
		read: func(p []byte) error {
			for got := 0; got < len(p); {
				rv[0] = p[got:]
				n, err := s.tryReadv(rv)
				if err != nil && !errors.Is(err, ErrWouldBlock) {
					return err
				}
				got += n
			}
			return nil
		},
	}
}

func rawSpinner(b *testing.B, c *net.TCPConn) end {
	raw, err := c.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	var p []byte
	var n int
	var failed error
	step := func(fd uintptr) bool {
		n, failed = syscall.Read(int(fd), p)
		return true
	}
	return end{
		write: func(p []byte) error {
			_, err := c.Write(p)
			return err
		},
		read: func(buf []byte) error {
			for p = buf; len(p) > 0; {
				if err := raw.Read(step); err != nil {
					return err
				}
				if failed != nil && !errors.Is(failed, syscall.EAGAIN) {
					return failed
				}
				p = p[max(n, 0):]
			}
			return nil
		},
	}
}

func parker(c *net.TCPConn) end {
	return end{
		write: func(p []byte) error { _, err := c.Write(p); return err },
		read:  func(p []byte) error { _, err := io.ReadFull(c, p); return err },
	}
}

// BenchmarkWrite sends 1 MiB from 1 and from 32 buffers, against net.Buffers.
func BenchmarkWrite(b *testing.B) {
	const size = 1 << 20
	for _, count := range []int{1, 32} {
		whole := make([]byte, size)
		var bufs [][]byte
		for i := range count {
			bufs = append(bufs, whole[i*size/count:(i+1)*size/count])
		}
		work := make([][]byte, count)
		b.Run(fmt.Sprintf("TryWritev/%d", count), func(b *testing.B) {
			x, y := tcpPair(b)
			s := mustOpen(b, implementations["direct"], x)
			rest, failed := work, error(nil)
			ready := func() bool {
				for len(rest) > 0 {
					n, err := s.tryWritev(rest)
					if err != nil {
						failed = err
						return !errors.Is(err, ErrWouldBlock)
					}
					rest = advance(rest, n)
				}
				failed = nil
				return true
			}
			sendTo(b, y, size, func() error {
				copy(work, bufs)
				rest = work
				if err := s.waitWrite(ready); err != nil {
					return err
				}
				return failed
			}, func() { _ = s.close() })
		})
		b.Run(fmt.Sprintf("NetBuffers/%d", count), func(b *testing.B) {
			x, y := tcpPair(b)
			sendTo(b, y, size, func() error {
				copy(work, bufs)
				v := net.Buffers(work)
				_, err := v.WriteTo(x)
				return err
			}, func() { _ = x.Close() })
		})
	}
}

// sendTo measures send, whose bytes sink reads and drops.
func sendTo(b *testing.B, sink *net.TCPConn, size int, send func() error, hangUp func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 1<<20)
		for {
			if _, err := sink.Read(buf); err != nil {
				return
			}
		}
	})
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if err := send(); err != nil {
			b.Fatal(err)
		}
	}
	hangUp()
	wg.Wait()
}

// BenchmarkWouldBlock is what one vain look at a silent connection costs. The
// request sizes lie on both sides of the one from which on the scheduler is told
// of the system call.
func BenchmarkWouldBlock(b *testing.B) {
	for _, size := range []int{64, rawBelow - 1, rawBelow} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, _ := directPair(b)
			bufs := [][]byte{make([]byte, size)}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.tryReadv(bufs); !errors.Is(err, ErrWouldBlock) {
					b.Fatal(err)
				}
			}
		})
	}
}
