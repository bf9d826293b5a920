package sockio

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestTurnComesBehindTheNetwork checks that a connection whose bytes have come is served before a Wait ends, although
// the waiting goroutine never leaves the scheduler without something to run.
func TestTurnComesBehindTheNetwork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	x, y := tcpPair(t)
	turn, err := NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	turn.limit = time.Minute // the machine may be busy
	var mu sync.Mutex        // guards read
	read := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1)
		for {
			if _, err := y.Read(buf); err != nil {
				return
			}
			mu.Lock()
			read++
			mu.Unlock()
		}
	}()
	var idle sync.WaitGroup
	idle.Go(runtime.Gosched) // the reader parks
	idle.Wait()
	for i := range 200 {
		if _, err := x.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		turn.Wait()
		mu.Lock()
		got := read
		mu.Unlock()
		if got != i+1 {
			t.Fatalf("after turn %d the reader has %d bytes, want %d", i, got, i+1)
		}
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
