package sm

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// ownMemories are the memories of this process's endpoints. The kernel lets every process reach its own memory, so that
// a handle which a peer has made up, together with an address that is bound to it, would have this process do to itself
// what the peer may not: such transfers reach what is registered, and nothing else.
var ownMemories ownTable

type ownTable struct {
	mu sync.RWMutex
	// +checklocks:mu
	of map[identity]*memories
}

// add makes the memories of an endpoint known, unless they are closed.
func (o *ownTable) add(who identity, t *memories) {
	if o.get(who) == t {
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
	o.of[who] = t
}

// remove forgets an endpoint's.
func (o *ownTable) remove(t *memories) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for who, m := range o.of {
		if m == t {
			delete(o.of, who)
		}
	}
}

func (o *ownTable) get(who identity) *memories {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.of[who]
}

// inProcess tells whether a is an address of the process pid, this one. The kernel also takes the number of any of its
// threads for it, which only somebody who makes addresses up uses. A peer whose process has been opened is none of them.
func (a *Addr) inProcess(pid int32) bool {
	if a.who.pid == pid {
		return true
	}
	if c := a.last.Load(); c != nil && c.pidfd >= 0 {
		return false
	}
	return unix.Access("/proc/self/task/"+strconv.Itoa(int(a.who.pid)), unix.F_OK) == nil
}

// checkOwn returns an error unless all remote memory of frags is registered by the endpoint who of this process.
func checkOwn(who identity, frags []na.Fragment, access na.Access) error {
	t := ownMemories.get(who)
	if t == nil {
		return &na.Error{Kind: na.Unreachable, Err: errors.New("this process has no endpoint of that number whose memory is registered")}
	}
	for i := range frags {
		f := &frags[i]
		r, _ := f.Remote.(*remote) // the caller has checked
		for off, end := f.Offset, f.Offset+uint64(len(f.Local)); off < end; {
			seg, skip := r.find(off)
			n := min(r.segs[seg].len-skip, end-off)
			if err := t.allows(r.segs[seg].addr+skip, n, access); err != nil {
				return &na.Error{Kind: na.Denied, Err: fmt.Errorf("fragment %d: %w", i, err)}
			}
			off += n
		}
	}
	return nil
}
