package sockio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
)

// TestFragmentation sends a stream cut into odd pieces, empty ones and more than
// one call takes among them, and receives it cut differently.
func TestFragmentation(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		rng := rand.New(rand.NewPCG(1, 2))
		sent := make([]byte, 3<<20)
		for i := range sent {
			sent[i] = byte(rng.Uint32())
		}
		got := make([]byte, len(sent))
		out, in := shred(rng, sent), shred(rng, got)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := writeAll(a, out...); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		if err := readFull(b, in...); err != nil {
			t.Errorf("read: %v", err)
		}
		wg.Wait()
		if !bytes.Equal(got, sent) {
			t.Error("received bytes differ from those sent")
		}
	})
}

// shred cuts b into pieces of 0 to some thousand bytes, small ones in runs.
func shred(rng *rand.Rand, b []byte) [][]byte {
	var pieces [][]byte
	for len(b) > 0 {
		limit := []int{1, 3, 100, 9000}[rng.IntN(4)]
		for range rng.IntN(100) {
			n := min(rng.IntN(limit+1), len(b))
			pieces = append(pieces, b[:n])
			b = b[n:]
		}
	}
	return pieces
}

// TestGatherOrder: several buffers of one call arrive in their order, and fill
// several buffers in theirs.
func TestGatherOrder(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		if err := writeAll(a, []byte("ab"), nil, []byte("c"), []byte{}, []byte("defg")); err != nil {
			t.Fatal(err)
		}
		x, y, z := make([]byte, 1), make([]byte, 4), make([]byte, 2)
		if err := readFull(b, x, nil, y, z); err != nil {
			t.Fatal(err)
		}
		if got := string(x) + "|" + string(y) + "|" + string(z); got != "a|bcde|fg" {
			t.Errorf("got %q, want %q", got, "a|bcde|fg")
		}
	})
}

func TestEmptyRequests(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		for _, bufs := range [][][]byte{nil, {}, {nil}, {{}, {}}} {
			if n, err := a.tryReadv(bufs); n != 0 || err != nil {
				t.Errorf("tryReadv of nothing = %d, %v", n, err)
			}
			if n, err := a.tryWritev(bufs); n != 0 || err != nil {
				t.Errorf("tryWritev of nothing = %d, %v", n, err)
			}
		}
	})
}

func TestReadWouldBlock(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		if n, err := a.tryReadv([][]byte{make([]byte, 10)}); n != 0 || !errors.Is(err, ErrWouldBlock) {
			t.Errorf("tryReadv with nothing arrived = %d, %v, want 0, %v", n, err, ErrWouldBlock)
		}
	})
}

// TestWriteWouldBlock: a full send buffer is reported, and room for it again.
func TestWriteWouldBlock(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		var wg sync.WaitGroup
		full := make(chan struct{})
		wg.Go(func() {
			filled := false
			err := a.waitWrite(func() bool {
				again := filled
				if err := fill(a); !errors.Is(err, ErrWouldBlock) {
					t.Errorf("fill: %v, want %v", err, ErrWouldBlock)
				}
				if !filled {
					filled = true
					close(full)
				}
				return again
			})
			if err != nil {
				t.Errorf("waitWrite: %v", err)
			}
			if err := a.closeWrite(); err != nil {
				t.Errorf("closeWrite: %v", err)
			}
		})
		<-full
		n, err := readError(t, b)
		if n == 0 || !errors.Is(err, io.EOF) {
			t.Errorf("read %d bytes, then %v, want some, then EOF", n, err)
		}
		wg.Wait()
	})
}

func TestEOF(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		if err := writeAll(a, []byte("last words")); err != nil {
			t.Fatal(err)
		}
		if err := a.closeWrite(); err != nil {
			t.Fatal(err)
		}
		n, err := readError(t, b)
		if n != len("last words") || !errors.Is(err, io.EOF) {
			t.Errorf("read %d bytes, then %v, want %d, then EOF", n, err, len("last words"))
		}
		if _, err := b.tryReadv([][]byte{make([]byte, 1)}); !errors.Is(err, io.EOF) {
			t.Errorf("tryReadv after EOF: %v, want EOF again", err)
		}
		// The other direction is still open.
		if err := writeAll(b, []byte("x")); err != nil {
			t.Errorf("write after the peer's EOF: %v", err)
		}
		if err := readFull(a, make([]byte, 1)); err != nil {
			t.Errorf("read after own closeWrite: %v", err)
		}
	})
}

// TestCloseWriteInsideReady: the end of the stream comes behind what the same
// ready function wrote.
func TestCloseWriteInsideReady(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		var sent int
		err := a.waitWrite(func() bool {
			n, err := a.tryWritev([][]byte{make([]byte, 1000)})
			if err != nil {
				t.Errorf("tryWritev: %v", err)
			}
			if err := a.closeWrite(); err != nil {
				t.Errorf("closeWrite: %v", err)
			}
			sent = n
			return true
		})
		if err != nil {
			t.Errorf("waitWrite: %v", err)
		}
		if n, err := readError(t, b); n != sent || !errors.Is(err, io.EOF) {
			t.Errorf("read %d bytes, then %v, want %d, then EOF", n, err, sent)
		}
	})
}

// TestReset: an aborted connection is an error, and stays one: it never turns
// into an end of stream.
func TestReset(t *testing.T) {
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			ca, cb := tcpPair(t)
			s := mustOpen(t, open, ca)
			abort(t, cb)
			_, err := readError(t, s)
			for range 3 {
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("read error %v, want ECONNRESET", err)
				}
				_, err = s.tryReadv([][]byte{make([]byte, 1)})
			}
		})
	}
}

// abort closes c with a reset.
func abort(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if err := c.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBothDirectionsUnderOneLock: two ends send more than the buffers between
// them hold and receive under the same lock, as a device does whose responses
// are written by whoever reads. Were a try call to block, both would for ever.
func TestBothDirectionsUnderOneLock(t *testing.T) {
	const size = 16 << 20
	eachPair(t, func(t *testing.T, a, b stream) {
		var wg sync.WaitGroup
		for _, s := range []stream{a, b} {
			var mu sync.Mutex
			locked := func(f func() bool) func() bool {
				return func() bool {
					mu.Lock()
					defer mu.Unlock()
					return f()
				}
			}
			wg.Go(func() {
				if err := s.waitWrite(locked(moveAll(t, s.tryWritev, size))); err != nil {
					t.Errorf("waitWrite: %v", err)
				}
			})
			wg.Go(func() {
				if err := s.waitRead(locked(moveAll(t, s.tryReadv, size))); err != nil {
					t.Errorf("waitRead: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

// moveAll returns a ready function that calls try until size bytes have moved.
func moveAll(t *testing.T, try func([][]byte) (int, error), size int) func() bool {
	buf := make([]byte, 256<<10)
	return func() bool {
		for size > 0 {
			n, err := try([][]byte{buf[:min(len(buf), size)]})
			if errors.Is(err, ErrWouldBlock) {
				return false
			}
			if err != nil {
				t.Errorf("after %d bytes to go: %v", size, err)
				return true
			}
			size -= n
		}
		return true
	}
}

// TestMessagesOrderMemory: under the race detector, a write orders the memory of
// two goroutines of one process as it does with package net.
func TestMessagesOrderMemory(t *testing.T) {
	eachPair(t, func(t *testing.T, a, b stream) {
		shared := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			shared = 7
			if err := writeAll(a, []byte("go")); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		if err := readFull(b, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		if shared != 7 {
			t.Errorf("shared = %d, want 7", shared)
		}
		wg.Wait()
	})
}
