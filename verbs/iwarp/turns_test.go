package iwarp

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/sockio"
)

// TestHostsHaveTurns has one host with many requests, and two with one or two that come later: these wait for one request of each
// other host before each of theirs.
func TestHostsHaveTurns(t *testing.T) {
	var turns hostTurns
	hosts := map[chan struct{}]byte{}
	add := func(host byte, n int) {
		for range n {
			c := make(chan struct{})
			hosts[c] = host
			turns.addLocked(hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, host})), c)
		}
	}
	add(1, 5)
	add(2, 1)
	add(3, 2)
	var got []byte
	for c := turns.nextLocked(); c != nil; c = turns.nextLocked() {
		got = append(got, hosts[c])
		delete(hosts, c)
	}
	if want := []byte{1, 2, 3, 1, 3, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("the turns are of hosts %v, want %v", got, want)
	}
	if len(turns.waiting) != 0 || len(turns.order) != 0 {
		t.Errorf("%v and %v are left", turns.waiting, turns.order)
	}
}

// TestTurnsEnd has many requests wait, also when the turns end.
func TestTurnsEnd(t *testing.T) {
	turn, err := sockio.NewTurn()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	turns := hostTurns{turn: turn, wg: &wg}
	for i := range byte(64) {
		wg.Go(func() { turns.wait(hostquota.HostOf(netip.AddrFrom4([4]byte{192, 0, 2, i % 3}))) })
	}
	if err := turn.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
