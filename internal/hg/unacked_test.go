package hg

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// debtor is a server whose answers are long, and raw peers that ask it.
type debtor struct {
	t      *testing.T
	net    *natest.Network
	server *node
	ended  chan error // how each Respond has ended
}

const longAnswer = 64 << 10

func newDebtor(t *testing.T) *debtor {
	d := &debtor{t: t, net: natest.New(natest.Config{}), ended: make(chan error, 1000)}
	d.server = open(t, d.net, Config{Dispatch: handler(func(r *Request) { d.ended <- r.Respond(context.Background(), make([]byte, longAnswer)) })})
	return d
}

// asker is a peer that asks, and pulls what it is told to pull.
type asker struct {
	*raw
	d       *debtor
	tag     uint32
	answers []*received // in the order of the requests
}

// received is one answer, once it has come.
type received struct {
	op  na.Op
	buf [1024]byte
	tag uint32
}

func (*received) Complete(*na.Op) {}

func (d *debtor) asker() *asker { return &asker{raw: openRaw(d.net), d: d} }

// ask sends requests, and waits until the server has answered or waits.
func (a *asker) ask(count int) {
	for range count {
		a.tag++
		got := &received{tag: a.tag}
		got.op.Done = got
		a.ep.RecvExpected(&got.op, a.d.server.ep.Addr(), a.tag, got.buf[:])
		a.answers = append(a.answers, got)
		msg := make([]byte, a.ep.Limits().RequestRoom+wire.FormShort.Size())
		wire.PutRequest(msg[a.ep.Limits().RequestRoom:], wire.Request{ID: 1})
		send := &na.Op{Done: a}
		a.ep.SendRequest(send, a.d.server.ep.Addr(), a.tag, msg)
	}
	synctest.Wait()
}

// answer reads an answer's header.
func (a *asker) answer(i int) wire.Response {
	a.d.t.Helper()
	got := a.answers[i]
	f, _, bad := wire.ParseResponse(got.buf[:got.op.N], wire.FormShort)
	if bad != nil {
		a.d.t.Fatalf("answer %d: %v", i, bad)
	}
	return f
}

// take pulls an answer and acknowledges it.
func (a *asker) take(i int) {
	a.d.t.Helper()
	got := a.answers[i]
	_, payload, bad := wire.ParseResponse(got.buf[:got.op.N], wire.FormShort)
	if bad != nil {
		a.d.t.Fatal(bad)
	}
	desc, _, err := DecodeProc(payload, OverNetwork)
	if err != nil {
		a.d.t.Fatal(err)
	}
	puller := New(Config{})
	puller.Attach(a.ep)
	x := puller.NewTransfer()
	x.Start(Pull, a.d.server.ep.Addr(), desc, 0, [][]byte{make([]byte, longAnswer)}, longAnswer)
	if n, err := x.Wait(a.d.t.Context()); err != nil || n != longAnswer {
		a.d.t.Errorf("answer %d: %d bytes pulled, %v", i, n, err)
	}
	x.Free()
	ack := &na.Op{Done: a}
	a.ep.SendExpected(ack, a.d.server.ep.Addr(), got.tag, make([]byte, a.ep.Limits().ResponseRoom+wire.AckSize))
	synctest.Wait()
}

// handlers checks how many of the server's handlers wait.
func (d *debtor) handlers(when string, want int64) {
	d.t.Helper()
	synctest.Wait()
	if got := d.server.Stats().RequestsActive; got != want {
		d.t.Errorf("%s: %d handlers wait, want %d", when, got, want)
	}
}

// wantEnded checks how the handlers that have ended did so: count and cause, perhaps several times.
func (d *debtor) wantEnded(when string, countAndCause ...any) {
	d.t.Helper()
	synctest.Wait()
	got, want := map[error]int{}, map[error]int{}
	for i := 0; i < len(countAndCause); i += 2 {
		cause, _ := countAndCause[i+1].(error) // nil for those that end well
		want[cause], _ = countAndCause[i].(int)
	}
	for range len(d.ended) {
		err := <-d.ended
		for _, cause := range []error{errStalled, errUnpulled, errUnacked} {
			if errors.Is(err, cause) {
				err = cause
			}
		}
		got[err]++
	}
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		d.t.Errorf("%s: handlers have ended otherwise:\n%s", when, diff)
	}
}

// TestPeerThatPullsNothing: one peer that asks for long answers and pulls none holds a few handlers only, and while it
// goes on so it is refused. Others are served.
// parity: Y12
func TestPeerThatPullsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDebtor(t)
		bad, other := d.asker(), d.asker()
		bad.ask(64)
		d.handlers("at once", 64)
		other.ask(1)
		elapse(patience(unackedTime, longAnswer))
		d.handlers("when nothing has been pulled for a while", unackedFree+1)
		d.wantEnded("of those that gave up", 64-unackedFree, errStalled)

		bad.ask(10)
		d.handlers("after further requests", unackedFree+1)
		d.wantEnded("the oldest, whose places were taken", unackedLeft-(64-unackedFree), errStalled, 10-unackedFree, errUnpulled)
		refused := 0
		for i := range 10 { // in any order: each has a goroutine
			if f := bad.answer(64 + i); f.Code == codes.Busy && f.Flags&wire.FlagMoreData == 0 {
				refused++
			}
		}
		if refused != 10-unackedFree {
			t.Errorf("%d further requests are refused, want %d", refused, 10-unackedFree)
		}
		other.take(0)
		d.wantEnded("the other peer's", 1, nil)

		elapse(patience(ackTime, longAnswer))
		d.handlers("in the end", 0)
		d.wantEnded("the last", unackedFree, errUnacked)
		elapse(patience(ackTime, longAnswer))
		if got := d.server.ep.Registered(); got != 0 {
			t.Errorf("%d answers are lent for ever", got)
		}
		bad.ask(10)
		d.handlers("a peer that has pulled nothing for two minutes", unackedFree)
		d.wantEnded("such a peer's", 10-unackedFree, errStalled)
	})
}

// TestPeerThatGivesUp: the answers of calls that a peer has given up, of which it cannot tell, do not stand in the way of
// those that it pulls.
func TestPeerThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDebtor(t)
		hasty := d.asker()
		hasty.ask(10) // and pulls none of these
		elapse(patience(unackedTime, longAnswer))
		d.wantEnded("of those given up", 10-unackedFree, errStalled)
		for i := range unackedLeft {
			hasty.ask(2)
			hasty.take(len(hasty.answers) - 1 - i%2)
			elapse(2 * time.Second)
		}
		refused := 0
		for i := range hasty.answers {
			if hasty.answer(i).Code == codes.Busy {
				refused++
			}
		}
		if refused > 0 {
			t.Errorf("%d of %d requests are refused", refused, len(hasty.answers))
		}
	})
}

// TestPeerThatPullsLate: what handlers wait for no longer can still be pulled, and a peer that has pulled something is
// like any other again.
// parity: Y12
func TestPeerThatPullsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDebtor(t)
		late := d.asker()
		late.ask(10)
		elapse(30 * time.Second)
		d.handlers("after half a minute", unackedFree)
		d.wantEnded("of those that gave up", 10-unackedFree, errStalled)
		for i := range 10 {
			late.take(i)
		}
		d.handlers("when all is pulled", 0)
		d.wantEnded("of those that were waited for", unackedFree, nil)
		elapse(10 * time.Second)
		late.ask(12)
		d.handlers("afterwards", 12)
		for i := range 12 { // most wait longer than unackedTime, but there is one every few seconds
			elapse(4 * time.Second)
			late.take(10 + i)
		}
		d.wantEnded("slowly, but one after the other", 12, nil)
		d.server.unacked.mu.Lock()
		defer d.server.unacked.mu.Unlock()
		if n := len(d.server.unacked.byHost); n != 0 {
			t.Errorf("%d peers are remembered, none owes anything", n)
		}
	})
}

// TestStalledPeersAreForgotten: what is remembered of peers that have stalled goes with their connections.
func TestStalledPeersAreForgotten(t *testing.T) {
	o := &unackedTable{byHost: map[hostquota.Host]*hostUnacked{}}
	for i := range 3 * minSweep {
		gone := make(chan struct{})
		a := &scriptAddr{name: time.Duration(i).String(), gone: gone, host: int32(i)}
		o.enter(a, 1).waited(errUnacked, false)
		close(gone)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if got := len(o.byHost); got > minSweep {
		t.Errorf("%d peers are remembered, none has a connection", got)
	}
}

// TestStalledAddressAnew: another process at the address of one that has stalled begins anew.
func TestStalledAddressAnew(t *testing.T) {
	o := &unackedTable{byHost: map[hostquota.Host]*hostUnacked{}}
	a := &scriptAddr{name: "peer", gone: make(chan struct{})}
	for range unackedFree {
		o.enter(a, 1).waited(errUnacked, false)
	}
	a.gone = make(chan struct{})
	for range 2 * unackedFree {
		if o.enter(a, 1) == nil {
			t.Fatal("the new process pays for the old one")
		}
	}
}

// TestHostOwesForAllItsPeers: a host that lets its answers lie is not served better by asking from further ports, and another
// host does not suffer for it.
func TestHostOwesForAllItsPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &unackedTable{byHost: map[hostquota.Host]*hostUnacked{}}
		port := func(n, host int) *scriptAddr {
			return &scriptAddr{name: fmt.Sprintf("%d of %d", n, host), gone: make(chan struct{}), host: int32(host)}
		}
		var waiting []*unackedResponse
		for n := range 3 * unackedFree {
			waiting = append(waiting, o.enter(port(n, 1), 1))
		}
		other := o.enter(port(0, 2), 1)
		elapse(patience(unackedTime, 1))
		held := 0
		for _, q := range waiting {
			if over, _ := q.overdue(); over {
				q.waited(errStalled, true)
			} else {
				held++
			}
		}
		if held != unackedFree {
			t.Errorf("one host holds %d handlers over %d connections, want %d", held, len(waiting), unackedFree)
		}
		if over, _ := other.overdue(); over {
			t.Error("the other host has to wait no longer")
		}
		refused := false
		for n := 0; n < 2*unackedLeft && !refused; n++ {
			refused = o.enter(port(100+n, 1), 1) == nil
		}
		if !refused {
			t.Error("a host that pulls nothing is served over ever new connections")
		}
		if o.enter(port(1, 2), 1) == nil {
			t.Error("the other host is refused")
		}
	})
}
