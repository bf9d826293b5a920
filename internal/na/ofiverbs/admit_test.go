package ofiverbs

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// arrive connects n processes at the same time, from a host that also has directAnswers unanswered requests, and then calls meanwhile. It returns
// the numbers of processes that were accepted and refused.
func (f *faulty) arrive(t *testing.T, n int, meanwhile func()) (accepted, rejected int64) {
	t.Helper()
	account := f.e.peer(f.peer.ln.Addr()).account
	if err := account.Take(hostquota.Handshakes, directAnswers); err != nil {
		t.Fatal(err)
	}
	var yes, no atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		c := f.peer.queue(t)
		wg.Go(func() {
			r := f.peer.cmRequest()
			r.port += uint16(100 + i)
			_, err := verbs.Dial(t.Context(), c.qp, f.e.self, verbs.ConnParam{PrivateData: appendRequest(nil, r)})
			if _, refused := errors.AsType[*verbs.RejectedError](err); refused {
				no.Add(1)
			} else if err == nil {
				yes.Add(1)
			} else {
				t.Error(err)
			}
		})
	}
	meanwhile()
	wg.Wait()
	account.Give(hostquota.Handshakes, directAnswers)
	return yes.Load(), no.Load()
}

// TestArrivalsRest checks that the requests of a host with many of them are all answered, with pauses for the work of others.
func TestArrivalsRest(t *testing.T) {
	withFaults(t, Config{}, nil, func(t *testing.T, f *faulty) {
		const n = 64
		begin := time.Now()
		if yes, no := f.arrive(t, n, func() {}); yes != n {
			t.Errorf("%d requests were accepted and %d refused", yes, no)
		}
		turns := n / runtime.GOMAXPROCS(0)
		if took, least := time.Since(begin), time.Duration(turns-1)*answerRest; took < least {
			t.Errorf("%d answers took %v; the pauses between them have %v", n, took, least)
		}
	})
}

// TestCloseWithArrivals closes the endpoint while requests wait for their turn. They are refused, and nothing is counted for them.
func TestCloseWithArrivals(t *testing.T) {
	withFaults(t, Config{}, nil, func(t *testing.T, f *faulty) {
		const n = 64
		if yes, no := f.arrive(t, n, func() {
			time.Sleep(2 * answerRest) //nolint:forbidigo // simulated time
			closeEndpoint(t, f.e)
		}); yes+no != n || no == 0 {
			t.Errorf("%d requests were accepted and %d refused", yes, no)
		}
	})
}
