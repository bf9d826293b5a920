package iwarp_test

import (
	"bytes"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestGivePagesOfDomain gives the pages of a region back, which is listed twice. It gives none if a region of another device is listed too,
// because that device may have pinned its pages.
func TestGivePagesOfDomain(t *testing.T) {
	const size = 64 << 10
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	own, other := a.region(t, size), b.region(t, size)
	fill(own.Bytes(), 1)
	fill(other.Bytes(), 2)
	ownBytes, otherBytes := bytes.Clone(own.Bytes()), bytes.Clone(other.Bytes())
	if a.qp.GivePages(0, 0, own, other) {
		t.Error("pages were given back although a region is of another device")
	}
	if !bytes.Equal(own.Bytes(), ownBytes) || !bytes.Equal(other.Bytes(), otherBytes) {
		t.Error("bytes have changed although nothing was given back")
	}
	if !a.qp.GivePages(0, 0, own, own) {
		t.Error("the pages of a region that is listed twice were not given back")
	}
	if !bytes.Equal(own.Bytes(), make([]byte, size)) {
		t.Error("bytes have stayed although their pages were given back")
	}
}

// TestGivePagesShrinksQueues gives the pages of a region back after many requests were in use at once. The queues then have memory for few
// entries, and work for as many requests as before.
func TestGivePagesShrinksQueues(t *testing.T) {
	const writes, size = 24, 64
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	own, other := a.region(t, 64<<10), b.region(t, writes*size)
	for round := range 3 {
		fill(own.Bytes(), uint64(round))
		var wrs []verbs.SendWR
		for i := range writes {
			to := other.Remote()
			to.Addr += uint64(i * size)
			wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{own.SGE(i*size, size)}, Remote: to})
		}
		a.send(t, wrs...)
		if send, completion := iwarp.Entries(a.dev); send < writes || completion < writes/2 {
			t.Errorf("%d requests have made queues of %d and %d entries", writes, send, completion)
		}
		for i := range writes {
			a.want(t, uint64(i), verbs.WCWrite, verbs.StatusSuccess)
		}
		to := b.region(t, size).Remote() // a read behind the writes shows that they are complete
		a.send(t, verbs.SendWR{ID: writes, Op: verbs.OpRead, SGL: []verbs.SGE{own.SGE(32<<10, size)}, Flags: verbs.Signaled, Remote: to})
		a.want(t, writes, verbs.WCRead, verbs.StatusSuccess)
		if !bytes.Equal(other.Bytes(), own.Bytes()[:writes*size]) {
			t.Error("the peer has other bytes")
		}
		for end := time.Now().Add(20 * time.Second); ; {
			if !a.qp.GivePages(0, 0, own) {
				t.Fatal("no pages were given back")
			}
			send, completion := iwarp.Entries(a.dev)
			if send < 8 && completion < 8 {
				break
			}
			if time.Now().After(end) { // a poller may have the lock of the sender for a moment
				t.Fatalf("the quiet queues have %d and %d entries", send, completion)
			}
		}
	}
}
