package sockio

import (
	"errors"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream is what both implementations offer behind Conn.
type stream interface {
	tryReadv(bufs [][]byte) (int, error)
	tryWritev(bufs [][]byte) (int, error)
	waitRead(ready func() bool) error
	waitWrite(ready func() bool) error
	wakeRead()
	wakeWrite()
	closeWrite() error
	close() error
}

// implementations are the ones that this system can run, by name.
var implementations = map[string]func(*net.TCPConn) (stream, error){
	"staged": func(c *net.TCPConn) (stream, error) {
		s := new(staged)
		return s, s.init(c)
	},
}

// eachPair runs f on the two ends of a loopback connection, once for every
// implementation.
func eachPair(t *testing.T, f func(t *testing.T, a, b stream)) {
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			ca, cb := tcpPair(t)
			f(t, mustOpen(t, open, ca), mustOpen(t, open, cb))
		})
	}
}

func mustOpen(t testing.TB, open func(*net.TCPConn) (stream, error), c *net.TCPConn) stream {
	t.Helper()
	s, err := open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() }) // most tests have closed it
	return s
}

// tcpPair returns the ends of a connection over loopback, which the test closes.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, b = dialed.(*net.TCPConn), accepted.(*net.TCPConn)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// advance drops the first n bytes of bufs.
func advance(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if len(bufs) > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}

// writeAll writes bufs, which it consumes, and waits as often as it takes.
func writeAll(s stream, bufs ...[]byte) error { return finishAll(s.waitWrite, s.tryWritev, bufs) }

// readFull fills bufs, which it consumes, and waits as often as it takes.
func readFull(s stream, bufs ...[]byte) error { return finishAll(s.waitRead, s.tryReadv, bufs) }

// finishAll calls try until it has moved all bytes of bufs or fails, and wait to wait.
func finishAll(wait func(func() bool) error, try func([][]byte) (int, error), bufs [][]byte) error {
	var failed error
	err := wait(func() bool {
		for len(bufs) > 0 {
			n, err := try(bufs)
			if errors.Is(err, ErrWouldBlock) {
				return false
			}
			if err != nil {
				failed = err
				return true
			}
			bufs = advance(bufs, n)
		}
		return true
	})
	return errors.Join(err, failed)
}

// readError waits until tryReadv fails and returns how many bytes came before.
func readError(t *testing.T, s stream) (int, error) {
	t.Helper()
	total, failed := 0, error(nil)
	bufs := [][]byte{make([]byte, 4096)}
	err := s.waitRead(func() bool {
		for {
			n, err := s.tryReadv(bufs)
			if errors.Is(err, ErrWouldBlock) {
				return false
			}
			total += n
			if err != nil {
				failed = err
				return true
			}
		}
	})
	if err != nil {
		t.Fatalf("waitRead: %v", err)
	}
	return total, failed
}

// fill writes until the send buffer is full. It must run with a waiter in
// waitWrite if the implementation needs one.
func fill(s stream) error {
	bufs := [][]byte{make([]byte, 64<<10)}
	for {
		if _, err := s.tryWritev(bufs); err != nil {
			return err
		}
	}
}
