package sm

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// ownMemories holds the memories of this process's endpoints. The kernel lets every process access its own memory. A peer could
// therefore send a made-up handle together with the address of an endpoint of this process, and make this process access memory that
// the peer may not. Such transfers access only registered memory.
var ownMemories ownTable

type ownTable struct {
	mu sync.RWMutex
	// +checklocks:mu
	of map[identity]*memories
}

// add adds the memories of an endpoint, unless they are closed.
func (o *ownTable) add(ident identity, t *memories) {
	if o.get(ident) == t {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed { // and has been removed, or is about to be
		return
	}
	if o.of == nil {
		o.of = make(map[identity]*memories)
	}
	o.of[ident] = t
}

// remove removes the memories of an endpoint.
func (o *ownTable) remove(t *memories) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ident, m := range o.of {
		if m == t {
			delete(o.of, ident)
		}
	}
}

func (o *ownTable) get(ident identity) *memories {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.of[ident]
}

// inProcess reports whether a is an address of the process pid, which is this one. For system calls the kernel also accepts the number
// of any thread as that of its process, and only made-up addresses have one. An address of a peer with an open pidfd is of another
// process.
func (a *Addr) inProcess(pid int32) bool {
	if a.ident.pid == pid {
		return true
	}
	if c := a.last.Load(); c != nil && c.pidfd >= 0 {
		return false
	}
	return unix.Access("/proc/self/task/"+strconv.Itoa(int(a.ident.pid)), unix.F_OK) == nil
}

// checkOwn returns an error unless all remote memory of frags is registered by the endpoint ident of this process.
func checkOwn(ident identity, frags []na.Fragment, access na.Access) error {
	t := ownMemories.get(ident)
	if t == nil {
		return &na.Error{Kind: na.Unreachable, Err: errors.New("this process has no endpoint of that number with registered memory")}
	}
	at := cursor{frags: frags} // the caller has checked their type
	for local, addr := at.next(math.MaxUint64); local != nil; local, addr = at.next(math.MaxUint64) {
		if err := t.allows(addr, uint64(len(local)), access); err != nil {
			return &na.Error{Kind: na.Denied, Err: fmt.Errorf("fragment %d: %w", at.frag, err)}
		}
		at.advance(len(local))
	}
	return nil
}
