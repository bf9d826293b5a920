package sockio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// stagedPair is two staged ends of a loopback connection.
func stagedPair(t *testing.T) (a, b stream) {
	t.Helper()
	ca, cb := tcpPair(t)
	return mustOpen(t, implementations["staged"], ca), mustOpen(t, implementations["staged"], cb)
}

// TestStagedNeedsWaiters: without a waiter nothing is taken, lest it lie in the
// staging buffer for ever, and nothing arrives.
func TestStagedNeedsWaiters(t *testing.T) {
	a, b := stagedPair(t)
	one := [][]byte{{1}}
	if n, err := a.tryWritev(one); n != 0 || !errors.Is(err, ErrWouldBlock) {
		t.Errorf("tryWritev without waiter = %d, %v, want 0, %v", n, err, ErrWouldBlock)
	}
	if err := writeAll(a, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if n, err := a.tryWritev(one); n != 0 || !errors.Is(err, ErrWouldBlock) {
		t.Errorf("tryWritev after waitWrite = %d, %v, want 0, %v", n, err, ErrWouldBlock)
	}
	if n, err := b.tryReadv(one); n != 0 || !errors.Is(err, ErrWouldBlock) {
		t.Errorf("tryReadv without waiter = %d, %v, want 0, %v", n, err, ErrWouldBlock)
	}
}

// TestStagedSendsForOthers: while a waiter is parked, what another goroutine
// writes is sent.
func TestStagedSendsForOthers(t *testing.T) {
	a, b := stagedPair(t)
	var wg sync.WaitGroup
	waiting := make(chan struct{})
	wg.Go(func() {
		var once sync.Once
		err := a.waitWrite(func() bool {
			once.Do(func() { close(waiting) })
			return false
		})
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("waitWrite: %v, want net.ErrClosed", err)
		}
	})
	<-waiting
	if n, err := a.tryWritev([][]byte{[]byte("ab"), []byte("c")}); n != 3 || err != nil {
		t.Fatalf("tryWritev = %d, %v, want 3, nil", n, err)
	}
	got := make([]byte, 3)
	if err := readFull(b, got); err != nil || string(got) != "abc" {
		t.Errorf("received %q, %v", got, err)
	}
	_ = a.close()
	wg.Wait()
}

// TestStagedTakesNoMoreThanItHolds: one call takes a staging buffer's worth.
func TestStagedTakesNoMoreThanItHolds(t *testing.T) {
	a, b := stagedPair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 2*stageSize/16)
	err := a.waitWrite(func() bool {
		bufs := [][]byte{sent[:stageSize-3], sent[stageSize-3:]}
		if n, err := a.tryWritev(bufs); n != stageSize || err != nil {
			t.Errorf("tryWritev = %d, %v, want %d, nil", n, err, stageSize)
		}
		if n, err := a.tryWritev(bufs); n != 0 || !errors.Is(err, ErrWouldBlock) {
			t.Errorf("tryWritev into a full buffer = %d, %v, want 0, %v", n, err, ErrWouldBlock)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.closeWrite(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, stageSize)
	if err := readFull(b, got); err != nil || !bytes.Equal(got, sent[:stageSize]) {
		t.Errorf("received bytes differ from those sent, or %v", err)
	}
	if n, err := readError(t, b); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d more bytes, then %v, want 0, then EOF", n, err)
	}
}
