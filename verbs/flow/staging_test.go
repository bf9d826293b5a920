package flow

import (
	"errors"
	"sync"
	"testing"
)

// The memory for copies of long records is freed when no long record has been sent for a while and none waits for the peer. The next long
// record allocates it again.
func TestStagingIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, a, p *Conn) {
		long := make([]byte, a.MaxRecord()/2)
		for range 3 {
			must(t, a.Send(t.Context(), long))
			if a.staging.Load() == nil {
				t.Fatal("a long record was sent without a copy")
			}
			must(t, recv(t, p).Release())
			elapse(3 * stagingQuiet)
			a.stagingMu.Lock()
			given := a.staging.Load() == nil && a.stageMR == nil
			a.stagingMu.Unlock()
			if !given {
				t.Error("a quiet connection holds memory for copies")
			}
		}
	})
}

// Senders of long records succeed although unstage frees the memory for copies at the same time.
func TestStagingRaces(t *testing.T) {
	a, p := pair(t, Config{}, Config{})
	const records = 300
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			long := make([]byte, a.MaxRecord()/8)
			for range records {
				if err := a.Send(t.Context(), long); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 * records {
		must(t, recv(t, p).Release())
		a.unstage()
	}
	wg.Wait()
	must(t, a.Close())
	if err := a.Send(t.Context(), make([]byte, a.MaxRecord()/8)); !errors.Is(err, ErrClosed) {
		t.Errorf("a long record after Close: %v", err)
	}
}
