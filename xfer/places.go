package xfer

import (
	"context"
	"errors"
	"slices"
	"sync"

	"cinnabar/internal/hostquota"
)

// places are the places of a receiver for transfers. If a host holds its share of them, the host's oldest connection that has
// not named its file gives way to the host's newest connection, because one address may have several users, and a user that
// connects and sends nothing would keep the others out. Connections of other hosts, and transfers that have begun, never give way.
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
