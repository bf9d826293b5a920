package iwarp_test

import (
	"sync"
	"testing"
	"time"

	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// TestDrippedMessageGivesSharedReceiveBack has a peer send a message byte by byte, which never ends: the receive of the
// shared queue that the message occupies comes back all the same.
func TestDrippedMessageGivesSharedReceiveBack(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	iwarp.SetSharedStall(s.dev, 200*time.Millisecond)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	const size = 16 << 10
	mr := s.region(t, size)
	if _, err := queue.PostRecv([]verbs.RecvWR{{ID: 7, SGL: []verbs.SGE{mr.SGE(0, size)}}}); err != nil {
		t.Fatal(err)
	}
	h := p.untagged(rdmap.OpSend)
	h.Last = false
	p.send(h, sixteen)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for h.MO = uint32(len(sixteen)); h.MO < size; h.MO++ {
			if _, err := p.tc.Write(p.fpdu(h, []byte{1})); err != nil {
				return // the connection has ended
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	s.want(t, 7, verbs.WCRecv, verbs.StatusWRFlushErr)
	close(stop)
	wg.Wait()
}
