//go:build linux

package rdmacore

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"cinnabar/internal/rundown"
	"cinnabar/verbs"
)

// Limits of the fields of a path to a peer.
const (
	maxServiceLevel = 15
	maxFlowLabel    = 1<<20 - 1
)

// ah is an address handle.
type ah struct {
	pd    *pd
	h     ahHandle
	users rundown.Guard // counts the datagrams that were posted with it and have not completed; closed by Close
}

// Close implements verbs.AddressHandle. The device may look at the handle until
// a datagram is done, so it is refused before that.
func (a *ah) Close() error {
	const op = "close address handle"
	if d := a.pd.dev; d.removal.isGone() { // nothing is on its way any more
		if !a.users.Close() {
			return nil
		}
	} else if !a.users.CloseIdle() {
		if a.users.Closed() {
			return nil
		}
		return verbs.Errorf(op, verbs.ErrBusy, "%d datagrams are on their way to it; poll their completions, or one of a later request", a.users.Users())
	}
	if err := a.pd.dev.released(destroyAH(a.h)); err != nil {
		a.users.Reopen()
		return &verbs.Error{Op: op, Err: err}
	}
	a.pd.children.Add(-1)
	return nil
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AddressHandle, error) {
	const op = "create address handle"
	if !slices.Contains(p.dev.attr.QPTypes, verbs.UD) {
		return nil, verbs.Unsupported(op, "device %s has no unreliable datagrams, only queue pairs of type %v", p.dev.name, p.dev.attr.QPTypes)
	}
	if !p.adopt() { // unlike the other objects of a domain, verbs.PD does not count it
		return nil, verbs.Errorf(op, verbs.ErrClosed, "the protection domain is closed")
	}
	attr.PortNum = max(attr.PortNum, 1)
	if err := p.dev.checkPath(op, &attr); err != nil {
		p.children.Add(-1)
		return nil, err
	}
	h, err := createAH(p.h, &attr, p.dev.sourceGID(&attr))
	if err != nil {
		p.children.Add(-1)
		return nil, pathError(op, &attr, err)
	}
	return &ah{pd: p, h: h}, nil
}

// checkPath refuses attributes that cannot describe a path to a peer.
func (d *device) checkPath(op string, a *verbs.AHAttr) error {
	switch {
	case int(a.PortNum) > d.ports:
		return verbs.Errorf(op, verbs.ErrInvalid, "PortNum is %d, device %s has %d", a.PortNum, d.name, d.ports)
	case a.SL > maxServiceLevel:
		return verbs.Errorf(op, verbs.ErrInvalid, "SL is %d; 0 to %d are possible", a.SL, maxServiceLevel)
	case a.FlowLabel > maxFlowLabel:
		return verbs.Errorf(op, verbs.ErrInvalid, "FlowLabel is %#x; 0 to %#x are possible", a.FlowLabel, maxFlowLabel)
	case a.GID != [16]byte{}:
		return nil
	}
	p, err := queryPort(d.ctx, int(a.PortNum))
	if err != nil {
		return &verbs.Error{Op: op, Detail: d.name, Err: err}
	}
	if p.LinkLayer == linkEthernet {
		return verbs.Errorf(op, verbs.ErrInvalid, "the GID is zero; on Ethernet it is the only address")
	}
	return nil
}

// pathError adds the destination and the port to the error of a path that the driver refuses.
func pathError(op string, a *verbs.AHAttr, err error) error {
	e := verbs.Errorf(op, nil, "to GID %v, LID %#x from port %d", netip.AddrFrom16(a.GID), a.DLID, a.PortNum)
	e.Err = err
	if errors.Is(err, syscall.EINVAL) {
		e.Kind = verbs.ErrInvalid
		e.Detail += "; source and destination must be of one kind, IPv4, IPv6 or link-local"
	}
	return e
}

// sourceGID returns the index, in the port's table, of the source GID of packets on the path a.
func (d *device) sourceGID(a *verbs.AHAttr) int {
	if a.HasSGIDIndex {
		return int(a.SGIDIndex)
	}
	table := d.port(int(max(a.PortNum, 1))).GIDs
	i := chooseSource(table, a.GID)
	if i < 0 {
		return 0
	}
	return table[i].Index
}

// destinations holds the address handle of each datagram in a send queue, at the
// position that the queue has its id at. It is nil for queues without datagrams.
// The goroutine that swaps a handle for nil releases it, so that no handle is
// released twice.
type destinations []atomic.Pointer[ah]

// take stores the address handle of wr, which has been checked, at position pos, and returns the handle of its object.
func (d destinations) take(pos uint32, wr *verbs.SendWR) (h ahHandle, err error) {
	if d == nil {
		return h, nil
	}
	a := wr.AH.(*ah)
	if !a.users.Acquire() {
		return h, verbs.Errorf("post send", verbs.ErrClosed, "the address handle is closed")
	}
	d[pos&uint32(len(d)-1)].Store(a)
	return a.h, nil
}

// drop releases the handles at the positions from first to end, without end.
func (d destinations) drop(first, end uint32) {
	if d == nil {
		return
	}
	for ; int32(end-first) > 0; first++ {
		if a := d[first&uint32(len(d)-1)].Swap(nil); a != nil {
			a.users.Release()
		}
	}
}

// dropAll releases all handles, because the queue is emptied.
func (d destinations) dropAll() { d.drop(0, uint32(len(d))) }
