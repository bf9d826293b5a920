package sockio

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// parkedReader is a connection with a goroutine in WaitRead, which counts what it reads in got.
func parkedReader(t *testing.T, p *Poller) (peer *Conn, got chan int) {
	t.Helper()
	a, b := connPair(t)
	a.Join(p)
	got = make(chan int, 100)
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = a.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := [][]byte{make([]byte, 10)}
		_ = a.WaitRead(func() bool {
			for {
				n, err := a.TryReadv(buf)
				if err != nil {
					return false
				}
				got <- n
			}
		})
	}()
	return b, got
}

// startPoller returns a Poller, and with wait a goroutine in Wait.
func startPoller(t *testing.T, wait bool) *Poller {
	t.Helper()
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for wait {
			if _, err := p.Wait(); err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Errorf("Wait: %v, want os.ErrClosed", err)
				}
				return
			}
		}
	}()
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil || p.Poll() != 0 {
				t.Errorf("after Close: %v", err)
			}
		}
		<-done
	})
	return p
}

// TestPoll has no goroutine in Wait: Poll alone finds the reader of the connection that is readable, and that one only.
func TestPoll(t *testing.T) {
	p := startPoller(t, false)
	_, _ = parkedReader(t, p)
	peer, got := parkedReader(t, p)
	for range 100 {
		if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
			t.Fatal(err)
		}
		for woken := 0; woken == 0; runtime.Gosched() {
			select {
			case <-got: // the reader was not parked yet
				woken = 1
			default:
				if woken = p.Poll(); woken > 1 {
					t.Errorf("%d readers were woken, and one has something to read", woken)
				} else if woken == 1 {
					<-got
				}
			}
		}
	}
	new(Conn).Join(nil)
	if (*Poller)(nil).Poll() != 0 {
		t.Error("a nil Poller finds something")
	}
}

// TestPollerWait has many connections: the goroutine in Wait wakes the readers of all that are readable, more than one system call
// returns, while another goroutine polls as well.
func TestPollerWait(t *testing.T) {
	p := startPoller(t, true)
	const conns = pollEvents + 10
	var peers [conns]*Conn
	var got [conns]chan int
	for i := range peers {
		peers[i], got[i] = parkedReader(t, p)
	}
	for range 20 {
		for _, peer := range peers {
			if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
				t.Fatal(err)
			}
		}
		p.Poll()
		for _, got := range got {
			<-got
		}
	}
	p.Settle()
}

// readThrice starts a goroutine in WaitRead that leaves at the third call of ready. Each call sends to calls, and the second one then
// calls second.
func readThrice(c *Conn, calls chan<- struct{}, second func()) <-chan error {
	done := make(chan error, 1)
	go func() {
		n := 0
		done <- c.WaitRead(func() bool {
			calls <- struct{}{}
			n++
			if n == 2 {
				second()
			}
			return n == 3
		})
	}()
	return done
}

// TestPollerWakeRead wakes a parked reader without bytes.
func TestPollerWakeRead(t *testing.T) {
	p := startPoller(t, true)
	a, _ := connPair(t)
	a.Join(p)
	calls := make(chan struct{})
	done := readThrice(a, calls, func() {})
	<-calls
	for range 2 {
		a.WakeRead()
		<-calls
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if a.s.member.isArmed() {
		t.Error("the socket is armed, and no goroutine waits")
	}
	_ = a.Close()
}

// TestSettleReady has a goroutine whose ready function takes long when bytes come: Settle does not wait for it.
func TestSettleReady(t *testing.T) {
	p := startPoller(t, false)
	a, peer := connPair(t)
	a.Join(p)
	calls := make(chan struct{})
	done := readThrice(a, calls, func() { calls <- struct{}{} })
	<-calls
	a.WakeRead()
	<-calls // ready runs, and the socket is armed
	if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	for p.Poll() == 0 {
		runtime.Gosched()
	}
	if n := p.pending.Load(); n != 0 {
		t.Errorf("Settle waits for %d goroutines, and none is parked", n)
	}
	<-calls
	<-calls // the event was not lost
	if err := <-done; err != nil {
		t.Error(err)
	}
	_ = a.Close()
}

// TestPollClosed closes connections that a Poller looks at, and makes others, which get the same descriptors.
func TestPollClosed(t *testing.T) {
	p := startPoller(t, true)
	for range 20 {
		a, b := connPair(t)
		a.Join(p)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = a.WaitRead(func() bool { return false })
		}()
		p.Poll()
		_ = a.Close()
		_ = b.Close()
		p.Poll()
		<-done
		p.mu.Lock()
		if n := len(p.members); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		p.mu.Unlock()
	}
}

// TestPollDescriptorZero has a connection with descriptor 0, as in a program that has closed its standard input: it stays in the set
// from one WaitRead to the next, and leaves the Poller when it is closed.
func TestPollDescriptorZero(t *testing.T) {
	p := startPoller(t, true)
	stdin, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Skipf("there is no descriptor 0: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Dup3(stdin, 0, 0); err != nil {
			t.Error(err)
		}
		_ = unix.Close(stdin)
	})
	if err := unix.Close(0); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		a, _ := connPair(t)
		a.Join(p)
		for range 2 {
			if err := a.WaitRead(func() bool { return true }); err != nil {
				t.Fatal(err)
			}
			if a.s.member.poller == nil {
				t.Errorf("the connection with descriptor %d left the Poller at its second WaitRead", a.s.member.fd)
			}
		}
		p.mu.Lock()
		_, zero := p.members[0]
		p.mu.Unlock()
		_ = a.Close()
		p.mu.Lock()
		if n := len(p.members); n != 0 {
			t.Errorf("%d closed connections are left", n)
		}
		p.mu.Unlock()
		if zero {
			return
		}
	}
	t.Skip("no connection got descriptor 0")
}

// TestPollRefused has a Poller whose set takes no sockets. The connection waits by itself.
func TestPollRefused(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	p := &Poller{file: os.NewFile(uintptr(fd), "eventfd"), fd: fd, members: map[int32]*member{}}
	peer, got := parkedReader(t, p)
	if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	<-got
	if n := p.Poll(); n != 0 {
		t.Errorf("%d readers were woken by a set without any", n)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// isArmed returns armed.
func (m *member) isArmed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.armed
}

// isStanding returns standing.
func (m *member) isStanding() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.standing
}

// TestStand checks that a standing connection stays armed in the kernel from one message to the next, that bytes which come while no
// goroutine is in WaitRead are reported to the next one, and that Stand with false ends it, also while the goroutine is parked.
func TestStand(t *testing.T) {
	p := startPoller(t, true)
	a, peer := connPair(t)
	a.Join(p)
	a.Stand(true)
	buf := [][]byte{make([]byte, 10)}
	read := func() {
		t.Helper()
		if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
			t.Fatal(err)
		}
		parked := false
		if err := a.WaitRead(func() bool {
			if !parked { // as a caller does that knows of no bytes
				parked = true
				return false
			}
			_, err := a.TryReadv(buf)
			return err == nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		read() // the byte comes before, in or after WaitRead
	}
	if !a.s.member.isStanding() || a.s.member.isArmed() {
		t.Error("the connection does not stand between two messages")
	}
	a.Stand(false)
	if a.s.member.isStanding() {
		t.Error("the connection stands")
	}
	read()
	if a.s.member.isStanding() {
		t.Error("the connection stands again")
	}
	a.Stand(true)
	calls, got := make(chan struct{}), make(chan error, 1)
	go func() {
		got <- a.WaitRead(func() bool {
			calls <- struct{}{}
			_, err := a.TryReadv(buf)
			return err == nil
		})
	}()
	<-calls
	for !a.s.member.isStanding() {
		runtime.Gosched()
	}
	a.Stand(false)
	if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case <-calls:
			continue
		case err := <-got:
			if err != nil {
				t.Error(err)
			}
		}
		break
	}
	_ = a.Close()
}

// TestStandFault: the kernel ends a read before memory that it cannot write, so bytes stay in the socket. After Doubt the next WaitRead calls ready again
// without a further event, and the read of ready returns EFAULT.
func TestStandFault(t *testing.T) {
	const good, sent = 80 << 10, 100 << 10 // the kernel copies no part of the segment with the fault, and segments are shorter than good
	mem, err := unix.Mmap(-1, 0, good+sent, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	if err := unix.Mprotect(mem[good:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	p := startPoller(t, true)
	a, peer := connPair(t)
	a.Join(p)
	a.Stand(true)
	if err := a.s.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8*sent) }); err != nil {
		t.Fatal(err)
	}
	for left := sent; left > 0; {
		if err := peer.WaitWrite(func() bool {
			n, err := peer.TryWritev([][]byte{make([]byte, left)})
			left -= n
			return err == nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for have := 0; have < sent; { // all bytes come before the first read, so that no later one wakes the reader
		if err := a.s.control(func(fd int) (err error) {
			have, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	got := 0
	read := func() (failed error) {
		first := true
		if err := a.WaitRead(func() bool {
			if first { // as a caller does that knows of no bytes
				first = false
				return false
			}
			var n int
			n, failed = a.TryReadv([][]byte{mem[got:]})
			got += n
			a.Doubt()
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return failed
	}
	if err := read(); err != nil || got > good {
		t.Errorf("%d bytes were read, %v, want at most %d", got, err, good)
	}
	if err := read(); !errors.Is(err, unix.EFAULT) {
		t.Errorf("the read after %d bytes: %v, want EFAULT", got, err)
	}
}

// TestStandAfterClose calls Stand(false) for a closed connection, while another connection has the number of its descriptor. The Poller must
// still wake the reader of the other connection.
func TestStandAfterClose(t *testing.T) {
	p := startPoller(t, true)
	a, peer := connPair(t)
	a.Join(p)
	a.Stand(true)
	if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitRead(func() bool { return a.s.member.isStanding() }); err != nil {
		t.Fatal(err)
	}
	fd := a.s.member.fd
	_ = a.Close()
	for range 100 {
		b, peer := connPair(t)
		b.Join(p)
		woken := make(chan error, 1)
		go func() {
			woken <- b.WaitRead(func() bool {
				_, err := b.TryReadv([][]byte{make([]byte, 10)})
				return err == nil
			})
		}()
		for !b.s.member.isArmed() {
			runtime.Gosched()
		}
		if b.s.member.fd != fd {
			continue // the end of the test closes it
		}
		a.Stand(false)
		if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
			t.Fatal(err)
		}
		limit := time.NewTimer(10 * time.Second)
		defer limit.Stop()
		select {
		case err := <-woken:
			if err != nil {
				t.Error(err)
			}
		case <-limit.C:
			t.Error("a connection was disarmed by one that is closed")
		}
		return
	}
	t.Skip("the kernel gave the descriptor of the closed connection to none of the new ones, because tests beside this one took it")
}

// TestStandRandom has two goroutines that take turns at reading a connection, as those of package ofitcp do: one in WaitRead, and one
// without it. They read into buffers of random lengths, leave bytes unread, and change Stand at random. All bytes arrive, and the end of the stream.
func TestStandRandom(t *testing.T) {
	for seed := range uint64(20) {
		standRandom(t, seed)
	}
}

func standRandom(t *testing.T, seed uint64) {
	const total = 2_000
	p := startPoller(t, true)
	a, peer := connPair(t)
	a.Join(p)
	var role atomic.Bool // a goroutine reads
	take := func() {
		for !role.CompareAndSwap(false, true) {
			runtime.Gosched()
		}
	}
	var got atomic.Int64
	var ended atomic.Bool // the end of the stream has been read
	read := func(r *rand.Rand) (full bool) {
		b := make([]byte, 1+r.IntN(40))
		n, err := a.TryReadv([][]byte{b})
		got.Add(int64(n))
		if errors.Is(err, io.EOF) {
			ended.Store(true)
		}
		return n == len(b)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(1, seed))
		for !ended.Load() {
			first := r.IntN(2) == 0
			if err := a.WaitRead(func() bool {
				if a.Stand(r.IntN(8) > 0); first {
					first = false
					return false
				}
				if !role.CompareAndSwap(false, true) {
					return true
				}
				defer role.Store(false)
				for full := true; full; {
					if full = read(r); full && r.IntN(4) == 0 {
						return true // with bytes unread
					}
				}
				return ended.Load() || r.IntN(4) == 0
			}); err != nil {
				return
			}
			take() // waits for the other goroutine
			role.Store(false)
		}
	})
	wg.Go(func() {
		r := rand.New(rand.NewPCG(2, seed))
		for got.Load() < total {
			take()
			a.Stand(r.IntN(4) > 0)
			for range r.IntN(20) {
				read(r)
			}
			role.Store(false)
			for range r.IntN(50) {
				runtime.Gosched()
			}
			if r.IntN(4) > 0 { // the other goroutine reads alone for a while
				for until := got.Load() + int64(r.IntN(200)); got.Load() < min(until, total); runtime.Gosched() {
				}
			}
		}
	})
	r := rand.New(rand.NewPCG(3, seed))
	for sent := 0; sent < total; {
		n, err := peer.TryWritev([][]byte{make([]byte, min(total-sent, 1+r.IntN(100)))})
		if err != nil && !errors.Is(err, ErrWouldBlock) {
			t.Fatal(err)
		}
		for sent += n; r.IntN(2) == 0 && got.Load() < int64(sent); {
			runtime.Gosched()
		}
	}
	if err := peer.CloseWrite(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if got.Load() != total || !ended.Load() {
		t.Errorf("%d bytes have come, want %d, and the end", got.Load(), total)
	}
	_ = a.Close()
}
