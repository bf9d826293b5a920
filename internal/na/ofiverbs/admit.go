package ofiverbs

import (
	"log/slog"
	"runtime"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

const (
	// directAnswers is the number of connection requests of one host that are answered at once. Further ones wait for their turn.
	directAnswers = 4
	// answerRest is the pause behind as many answers as the process has processors. An answer takes up to half a millisecond of a processor,
	// because it makes the queues and registers the memory of a connection.
	answerRest = time.Millisecond
)

// arrivals holds connection requests that wait for their turn. The mutex of the endpoint guards it.
type arrivals struct {
	queue     hostquota.Queue[arrival]
	answering bool // a goroutine runs answerArrivals
}

// arrival is a connection request. account counts its handshake.
type arrival struct {
	req     *verbs.ConnRequest
	account *hostquota.Account
}

// admit answers a connection request on a goroutine of its own, because the answer may wait for the peer. If the host of the request has
// directAnswers unanswered requests, the request waits for its turn, so that a host with many connections takes little of the processors and
// the requests of other hosts do not wait behind its own.
func (e *Endpoint) admit(req *verbs.ConnRequest) {
	a := arrival{req, e.cfg.Quota.Account(hostquota.HostOf(req.RemoteAddr().Addr()))}
	if err := a.account.Take(hostquota.Handshakes, 1); err != nil {
		e.cfg.Audit.Record(audit.Refused, causeHandshakes, a.account.Host(), slog.String(keyPeer, req.RemoteAddr().String()), errorAttr(err))
		if !e.spawn(a.refuse) {
			a.refuse()
		}
		return
	}
	if a.account.Used(hostquota.Handshakes) <= directAnswers {
		e.startAnswer(a)
		return
	}
	e.mu.Lock()
	e.arrivals.queue.Push(a.account, a)
	start := !e.arrivals.answering
	e.arrivals.answering = true
	e.mu.Unlock()
	if start && !e.spawn(e.answerArrivals) {
		e.answerArrivals() // refuses the requests, because the endpoint is closed
	}
}

// answerArrivals starts the answers to the requests that wait, until there are none. It pauses before it returns, so that the
// next request does not start it again before the pause is over.
func (e *Endpoint) answerArrivals() {
	for n, rested := 0, true; ; {
		e.mu.Lock()
		a, ok := e.arrivals.queue.Next()
		e.arrivals.answering = ok || !rested
		e.mu.Unlock()
		if ok {
			e.startAnswer(a)
			rested = false
			if n++; n%runtime.GOMAXPROCS(0) != 0 {
				continue
			}
		} else if rested {
			return
		}
		timer := time.NewTimer(answerRest)
		select {
		case <-timer.C:
		case <-e.ctx.Done():
		}
		timer.Stop()
		rested = true
	}
}

// startAnswer starts a goroutine that answers a request, or refuses the request if the endpoint is closed.
func (e *Endpoint) startAnswer(a arrival) {
	if !e.spawn(func() {
		e.answer(a.req, a.account)
		a.account.Give(hostquota.Handshakes, 1)
	}) {
		a.account.Give(hostquota.Handshakes, 1)
		a.refuse()
	}
}

func (a arrival) refuse() {
	_ = a.req.Reject(appendReject(nil, rejectRefused)) // the peer may be gone
}
