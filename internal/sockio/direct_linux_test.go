package sockio

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	implementations["direct"] = func(c *net.TCPConn) (stream, error) {
		d := new(direct)
		return d, d.init(c)
	}
}

// directPair is two direct ends of a loopback connection.
func directPair(t testing.TB) (a, b stream) {
	t.Helper()
	ca, cb := tcpPair(t)
	return mustOpen(t, implementations["direct"], ca), mustOpen(t, implementations["direct"], cb)
}

// spinRead reads until one byte at least has come.
func spinRead(t testing.TB, s stream, bufs [][]byte) int {
	for {
		n, err := s.tryReadv(bufs)
		if err == nil {
			return n
		}
		if !errors.Is(err, ErrWouldBlock) {
			t.Fatal(err)
		}
	}
}

// TestMoreBuffersThanOneCallTakes: the first 64 go, the others are the next
// call's; empty buffers do not count.
func TestMoreBuffersThanOneCallTakes(t *testing.T) {
	a, b := directPair(t)
	var bufs [][]byte
	for i := range 100 {
		bufs = append(bufs, nil, []byte{byte(i)})
	}
	if n, err := a.tryWritev(bufs); n != maxIovecs || err != nil {
		t.Fatalf("tryWritev of 100 buffers = %d, %v, want %d, nil", n, err, maxIovecs)
	}
	if err := writeAll(a, bufs[2*maxIovecs:]...); err != nil {
		t.Fatal(err)
	}
	var in [][]byte
	for range 100 {
		in = append(in, make([]byte, 1))
	}
	if err := readFull(b, append([][]byte(nil), in...)...); err != nil {
		t.Fatal(err)
	}
	for i, p := range in {
		if p[0] != byte(i) {
			t.Fatalf("byte %d is %d", i, p[0])
		}
	}
}

// TestResetMetByWriter: the kernel tells of a reset once; when the writer has
// been told, a reader must still not see an end of stream.
func TestResetMetByWriter(t *testing.T) {
	ca, cb := tcpPair(t)
	s := mustOpen(t, implementations["direct"], ca)
	calls := 0
	err := s.waitRead(func() bool {
		if calls++; calls == 1 {
			abort(t, cb) // its event calls ready again
		}
		return calls == 2
	})
	if err != nil {
		t.Fatal(err)
	}
	one := [][]byte{make([]byte, 1)}
	if _, err := s.tryWritev(one); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("tryWritev after reset: %v, want ECONNRESET", err)
	}
	if _, err := s.tryReadv(one); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("tryReadv after the writer met the reset: %v, want ECONNRESET", err)
	}
}

// TestBrokenPipe: writing to a connection whose peer is gone raises no SIGPIPE,
// and this end's own CloseWrite does not spoil reading.
func TestBrokenPipe(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGPIPE, syscall.SIGWINCH)
	defer signal.Stop(signals)
	a, b := directPair(t)
	if err := a.closeWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.tryWritev([][]byte{{1}}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after closeWrite: %v, want EPIPE", err)
	}
	// Signals come in the order of their numbers at the latest: behind this
	// one, a SIGPIPE would have been seen.
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if got := <-signals; got != syscall.SIGWINCH {
		t.Errorf("got %v", got)
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	if n, err := readError(t, a); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, then %v, want 0, then EOF", n, err)
	}
}

// TestCloseWhileWakeIsHandled: a close that falls between a waiter's wake and its
// clearing of the deadline is not cleared away with it.
func TestCloseWhileWakeIsHandled(t *testing.T) {
	for range 200 {
		ca, _ := tcpPair(t)
		d := new(direct)
		if err := d.init(ca); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		called := make(chan struct{}, 16)
		go func() {
			done <- d.waitRead(func() bool {
				select {
				case called <- struct{}{}:
				default:
				}
				return false
			})
		}()
		<-called
		go d.wakeRead()
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Fatalf("waitRead: %v, want net.ErrClosed", err)
		}
	}
}

// TestDescriptorsReleased: however it is closed, a connection's descriptor is
// gone when Close and the waiters have returned.
func TestDescriptorsReleased(t *testing.T) {
	before := openDescriptors(t)
	for i := range 10 {
		a, b := directPair(t)
		var wg sync.WaitGroup
		if i%2 == 0 {
			wg.Go(func() { _ = a.waitRead(func() bool { return false }) })
			wg.Go(func() { _ = a.waitWrite(func() bool { return false }) })
		}
		_, _ = a.close(), b.close()
		wg.Wait()
	}
	// Descriptors that the poller or /proc needed for the first time may stay.
	if after := openDescriptors(t); after > before+3 {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestBuffersAreNotRetained: when a try call has returned, the connection keeps
// no reference to the caller's memory.
func TestBuffersAreNotRetained(t *testing.T) {
	a, b := directPair(t)
	gone := make(chan struct{}, 4)
	watched := func() []byte {
		p := make([]byte, 4096)
		runtime.AddCleanup(&p[0], func(c chan struct{}) { c <- struct{}{} }, gone)
		return p
	}
	if _, err := a.tryWritev([][]byte{watched(), watched()}); err != nil {
		t.Fatal(err)
	}
	spinRead(t, b, [][]byte{watched()})
	spinRead(t, b, [][]byte{watched()})
	runtime.GC()
	for range 4 {
		<-gone // a reference left behind would let the test time out
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

func TestTryCallsDoNotAllocate(t *testing.T) {
	a, b := directPair(t)
	one := [][]byte{make([]byte, 64)}
	many := [][]byte{make([]byte, 14), make([]byte, 20), make([]byte, 30)}
	for name, f := range map[string]func(){
		"would block": func() {
			if _, err := b.tryReadv(one); !errors.Is(err, ErrWouldBlock) {
				t.Errorf("tryReadv: %v", err)
			}
		},
		"one buffer":    func() { exchange(t, a, b, one) },
		"three buffers": func() { exchange(t, a, b, many) },
		"wait": func() {
			if err := b.waitRead(alwaysReady); err != nil {
				t.Error(err)
			}
			if err := b.waitWrite(alwaysReady); err != nil {
				t.Error(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
	if err := fill(a); !errors.Is(err, ErrWouldBlock) {
		t.Fatal(err)
	}
	full := testing.AllocsPerRun(200, func() {
		if _, err := a.tryWritev(many); !errors.Is(err, ErrWouldBlock) {
			t.Errorf("tryWritev: %v", err)
		}
	})
	if full != 0 {
		t.Errorf("full send buffer: %v allocations, want 0", full)
	}
}

func alwaysReady() bool { return true }

// exchange sends bufs, 64 bytes in all, and receives them in the same buffers.
func exchange(t *testing.T, from, to stream, bufs [][]byte) {
	if _, err := from.tryWritev(bufs); err != nil {
		t.Error(err)
		return
	}
	for got := 0; got < 64; {
		got += spinRead(t, to, bufs)
	}
}

// TestLeavePacing opens loopback connections of which the system's choice is BBR or CUBIC.
func TestLeavePacing(t *testing.T) {
	for _, tc := range []struct{ system, want string }{{"bbr", "reno"}, {"cubic", "cubic"}, {"reno", "reno"}} {
		t.Run(tc.system, func(t *testing.T) {
			ca, cb := tcpPair(t)
			defer func() { _ = cb.Close() }()
			raw, err := ca.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var set error
			if err := raw.Control(func(fd uintptr) {
				set = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, tc.system)
			}); err != nil {
				t.Fatal(err)
			}
			if set != nil {
				t.Skipf("the system has no congestion control %q for this process: %v", tc.system, set)
			}
			d := new(direct)
			if err := d.init(ca); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.close() }()
			var got string
			if err := d.control(func(fd int) (err error) {
				got, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("the congestion control is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSameHost(t *testing.T) {
	for _, tc := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", true},
		{"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"127.0.0.1", "192.0.2.2", false},
	} {
		if got := sameHost(netip.MustParseAddr(tc.local), netip.MustParseAddr(tc.remote)); got != tc.want {
			t.Errorf("sameHost(%s, %s) = %v, want %v", tc.local, tc.remote, got, tc.want)
		}
	}
	if sameHost(netip.Addr{}, netip.Addr{}) {
		t.Error("two unknown addresses count as one host")
	}
}
