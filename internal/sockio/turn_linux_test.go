package sockio

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTurnComesBehindTheNetwork checks that a connection whose bytes have come is served before a Wait ends, although
// the waiting goroutine never leaves the scheduler without something to run. One turn in ten may be late, because the system may
// suspend the reader's thread in its system call, and the scheduler then runs the waiter. Without Wait all turns are late.
func TestTurnComesBehindTheNetwork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	x, y := tcpPair(t)
	turn, err := NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	turn.limit = time.Minute // the machine may be busy
	var read atomic.Int64
	counted := make(chan struct{}, 1) // after each byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1)
		for {
			if _, err := y.Read(buf); err != nil {
				return
			}
			read.Add(1)
			counted <- struct{}{}
		}
	}()
	var idle sync.WaitGroup
	idle.Go(runtime.Gosched) // the reader parks
	idle.Wait()
	const turns = 200
	late := 0
	for i := range int64(turns) {
		if _, err := x.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		turn.Wait()
		if read.Load() != i+1 {
			late++
		}
		<-counted
	}
	if late > turns/10 {
		t.Errorf("%d of %d turns ended before the connection was served", late, turns)
	}
	if err := turn.Close(); err != nil {
		t.Error(err)
	}
	turn.Wait()
	_ = x.Close()
	<-done
}

// TestTurnEnds checks that many goroutines can wait at a time, and that Close ends all waits.
func TestTurnEnds(t *testing.T) {
	turn, err := NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 4 {
				turn.Wait()
			}
		})
	}
	wg.Wait()
	for range 64 {
		wg.Go(turn.Wait)
	}
	if err := turn.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
