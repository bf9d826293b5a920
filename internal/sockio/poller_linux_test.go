package sockio

import (
	"runtime"
	"testing"

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

// TestPoll lets the only processor of the scheduler do nothing but write and poll. Poll finds the reader before the scheduler
// has looked at the network.
func TestPoll(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	quiet, _ := parkedReader(t, p)
	_ = quiet
	peer, got := parkedReader(t, p)
	for tries := 1; ; tries++ {
		if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
			t.Fatal(err)
		}
		woken := p.Poll()
		if woken > 1 {
			t.Errorf("%d readers were woken, and one has something to read", woken)
		}
		<-got
		if woken == 1 {
			break
		}
		if tries == 1000 { // the scheduler was faster, or the reader was not parked yet
			t.Fatal("Poll has never found the reader")
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil || p.Poll() != 0 {
		t.Errorf("after Close: %v", err)
	}
	if _, err := peer.TryWritev([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	<-got // through Go's poller
	new(Conn).Join(nil)
	if (*Poller)(nil).Poll() != 0 {
		t.Error("a nil Poller finds something")
	}
}

// TestPollClosed closes connections that a Poller looks at, and makes others, which get the same descriptors.
func TestPollClosed(t *testing.T) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
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
		if n := len(p.waiters); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		p.mu.Unlock()
	}
}

// TestPollRefused has a Poller whose set takes no descriptors. The connection works without it.
func TestPollRefused(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	p := &Poller{set: fd, waiters: map[int32]*waiter{}}
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
