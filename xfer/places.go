package xfer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
)

// places are the places of a receiver for transfers. If a host holds its share of them, the host's oldest connection that has
// not named its file gives way to the host's newest connection, because one address may have several users, and a user that
// connects and sends nothing would keep the others out. Connections of other hosts, transfers that have begun, and their further lanes never give way.
type places struct {
	mu sync.Mutex
	// unnamed holds the places of the connections that have not named a file, the oldest first.
	// +checklocks:mu
	unnamed []*place
}

// place is one unit of [hostquota.Connections], which one connection holds.
type place struct {
	of      *places
	account *hostquota.Account
	after   *place        // the connection from which this one gets its place, when after.left is closed; nil: none
	left    chan struct{} // closed by leave if another connection gets the place

	// The mutex of places guards the following.
	cancel context.CancelCauseFunc // ends the transfer
	passes bool                    // another connection gets the place at leave
}

// errGaveWay is the error of a transfer that has lost its place to another connection of its host.
var errGaveWay = errors.New("this connection had not named its file when its host's share of connections was used up, and gave way to a newer one of the host: connect again, or raise Receiver.MaxConnections")

// enter counts a connection. The caller calls wait before it uses the place, and leave afterwards.
func (ps *places) enter(a *hostquota.Account) (*place, error) {
	p := &place{of: ps, account: a, left: make(chan struct{})}
	err := a.Take(hostquota.Connections, 1)
	if err == nil {
		return p, nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	i := slices.IndexFunc(ps.unnamed, func(o *place) bool { return o.account == a })
	if i < 0 {
		return nil, err
	}
	p.after = ps.unnamed[i]
	ps.unnamed = slices.Delete(ps.unnamed, i, i+1)
	p.after.passes = true
	p.after.cancel(failf(CodeBusy, "%w", errGaveWay))
	return p, nil
}

// enterLane counts a connection for a further lane of a transfer. No other connection gives way to it, and it does not take the last place that its host could have, because the
// transfer goes on without it.
func (ps *places) enterLane(a *hostquota.Account) (*place, error) {
	if !a.May(hostquota.Connections, 2) {
		return nil, failf(CodeBusy, "the place that is free is kept for a transfer, because this one goes on without a further lane; the receiver has more places with Receiver.MaxConnections")
	}
	if err := a.Take(hostquota.Connections, 1); err != nil {
		return nil, failf(CodeBusy, "%w", err)
	}
	return &place{of: ps, account: a, left: make(chan struct{})}, nil
}

// wait waits until the connection that gives way has left the place. That takes as long as the end of its cancelled transfer.
func (p *place) wait() {
	if p.after != nil {
		<-p.after.left
		p.after = nil
	}
}

// begin allows the connection to give way until named is called. If it gives way, enter calls cancel, which ends the transfer.
func (p *place) begin(cancel context.CancelCauseFunc) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.cancel = cancel
	p.of.unnamed = append(p.of.unnamed, p)
}

// named makes the connection keep its place, because its sender has named its file. It returns an error if the connection has
// given way already.
func (p *place) named() error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.passes {
		return failf(CodeBusy, "%w", errGaveWay)
	}
	p.of.removeLocked(p)
	return nil
}

// leave gives the place back, or to the connection for which this one gave way.
func (p *place) leave() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.passes {
		close(p.left)
		return
	}
	p.of.removeLocked(p)
	p.account.Give(hostquota.Connections, 1)
}

// +checklocks:ps.mu
func (ps *places) removeLocked(p *place) {
	if i := slices.Index(ps.unnamed, p); i >= 0 {
		ps.unnamed = slices.Delete(ps.unnamed, i, i+1)
	}
}

// first lets only one transfer of a receiver go on: the first one that has made its file. A nil *first lets all go on.
type first struct {
	stop context.CancelFunc // makes the receiver accept no more requests
	turn chan struct{}      // holds a value while a request makes its file; capacity 1

	mu sync.Mutex
	// the request of the first transfer; nil: no file was made yet
	// +checklocks:mu
	chosen *verbs.ConnRequest
	// the requests that are served, each with the function that cancels it
	// +checklocks:mu
	under map[*verbs.ConnRequest]context.CancelCauseFunc
	// result of the chosen request
	// +checklocks:mu
	res Result
	// +checklocks:mu
	err error
}

// errNotFirst returns the error of each transfer but the first.
func errNotFirst() error {
	return failf(CodeBusy, "this receiver takes one file, and another sender's has begun")
}

// serve serves a request until its end, or until another one is chosen.
func (f *first) serve(ctx context.Context, h *host, req *verbs.ConnRequest, p *place) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if isLane(req.PrivateData()) { // it ends with its transfer
		_, _ = h.serve(ctx, req, p) // the result is that of the transfer
		return
	}
	f.mu.Lock()
	late := f.chosen != nil
	if !late {
		f.under[req] = cancel
	}
	f.mu.Unlock()
	if late {
		_ = h.refuse(req, errNotFirst()) // Done receives the error
		return
	}
	res, err := h.serve(ctx, req, p)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.under, req)
	if f.chosen == req {
		f.res, f.err = res, err
		f.stop()
	}
}

// open calls do, which makes the file of a request. If do succeeds, open chooses the request and cancels the others. The receiver accepts further requests for the lanes of the
// chosen transfer only, if it has several. Requests make their files in turn. One whose ctx ends does not wait for its turn, because do of another one may block.
func (f *first) open(ctx context.Context, req *verbs.ConnRequest, lanes bool, do func() (File, error)) (File, error) {
	if f == nil {
		return do()
	}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if ctx.Err() != nil { // select takes either of two events
		return nil, context.Cause(ctx)
	}
	if f.hasChosen() {
		return nil, errNotFirst()
	}
	file, err := do()
	if err != nil || file == nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chosen = req
	if !lanes {
		f.stop()
	}
	for other, cancel := range f.under {
		if other != req {
			cancel(errNotFirst())
		}
	}
	return file, nil
}

// hasChosen reports whether a request is chosen.
func (f *first) hasChosen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chosen != nil
}

// is reports whether req is the chosen request.
func (f *first) is(req *verbs.ConnRequest) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chosen == req
}

// outcome returns the result of the chosen request, and false if none was chosen.
func (f *first) outcome() (Result, error, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.res, f.err, f.chosen != nil
}

// namesUnder are the names of the files that a receiver stores now. A transfer that has lost its sender holds its name until this side has noticed, so a sender that tries
// again at once would be refused because of its own transfer before.
type namesUnder struct {
	mu sync.Mutex
	// closed at the end of the transfer of a name
	// +checklocks:mu
	ends map[string]chan struct{}
}

// nameWait is the longest time for which a transfer waits for the end of another one of the same name.
const nameWait = time.Second

// open calls do, which makes the file of a name. If do fails because the file exists, and a transfer of this name is under way, open waits for its end, and calls do again. The
// caller calls end at the end of a transfer for which do has succeeded.
func (n *namesUnder) open(ctx context.Context, name string, do func() (File, error)) (f File, end func(), err error) {
	limit := time.NewTimer(nameWait)
	defer limit.Stop()
	for {
		f, err := do()
		if err == nil {
			return f, n.begin(name), nil
		}
		over := n.over(name)
		if over == nil || !errors.Is(err, CodeExists) {
			return nil, nil, err
		}
		select {
		case <-over:
		case <-limit.C:
			return nil, nil, err
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// begin notes that a transfer of the name is under way, and returns the function that ends that. A further one of the same name, which the receiver's policy may allow, takes its place.
func (n *namesUnder) begin(name string) (end func()) {
	over := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ends == nil {
		n.ends = map[string]chan struct{}{}
	}
	n.ends[name] = over
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.ends[name] == over {
			delete(n.ends, name)
		}
		close(over)
	}
}

// over returns the channel that is closed at the end of the transfer of a name; nil: there is none.
func (n *namesUnder) over(name string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ends[name]
}
