package hg

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/rundown"
)

// peers is the table of the processes that this one calls, with their builds. Only Detect mode uses it.
type peers struct {
	mu invariants.Mutex
	// +checklocks:mu
	byAddr map[string]*peer // by the address in binary form
	// +checklocks:mu
	sweepAt int // at so many, those that are gone are forgotten
}

// minSweep is how many peers are known before the first sweep.
const minSweep = 1024

// addLocked enters a peer. When there are twice as many peers as after the last sweep, it deletes those with a lost connection, because
// their build has to be found out again in any case. So a process that calls ever new peers holds as much memory as it has connections.
//
// +checklocks:ps.mu
func (ps *peers) addLocked(addr []byte, p *peer) {
	if len(ps.byAddr) >= max(ps.sweepAt, minSweep) {
		maps.DeleteFunc(ps.byAddr, func(_ string, p *peer) bool { return p.build != nil && !p.build.valid() })
		ps.sweepAt = 2 * len(ps.byAddr)
	}
	ps.byAddr[string(addr)] = p
}

// peer is a process that this one calls. The mutex of peers guards it.
type peer struct {
	build   *peerBuild // nil until it is known
	form    wire.Form  // the form of the answer to probe, used when probe ends
	waiting []*Call    // the calls that wait for build; each has a hold while it waits
	probe   *Call      // the call that finds out build, nil if none is under way
}

// peerBuild states how the Mercury of a peer was built. It is also the annotation of the peer's address, because a call reads
// that without the mutex of peers.
type peerBuild struct {
	form  wire.Form
	gone  <-chan struct{} // closed when the connection of the probe is lost, because another process may then have the address
	stale atomic.Bool     // the peer has sent an answer in another form
}

// valid reports whether b is known and still holds.
func (b *peerBuild) valid() bool { return b != nil && !b.stale.Load() && !rundown.IsClosed(b.gone) }

// buildOf returns the build that the address of a peer is annotated with, nil if there is none.
func buildOf(a na.Addr) *peerBuild {
	n, ok := a.(na.Annotated)
	if !ok {
		return nil
	}
	b, _ := n.Annotation().Load().(*peerBuild)
	return b
}

// annotate makes b the annotation of the address of a peer.
func annotate(a na.Addr, b *peerBuild) {
	if n, ok := a.(na.Annotated); ok {
		n.Annotation().Store(b)
	}
}

// maxAddr is enough for the address of any transport; a longer one only costs an allocation.
const maxAddr = 64

// startDetect sends the request in the form of its peer, or has it wait until that is known. The caller holds the call.
func (k *Call) startDetect(payload []byte) {
	if b := buildOf(k.to); b.valid() {
		k.form = b.form
		k.launch(payload)
		return
	}
	ps := &k.c.peers
	addr := k.c.ep.AppendAddr(k.addr[:0], k.to)
	ps.mu.Lock()
	p := ps.byAddr[string(addr)]
	if p != nil && p.build != nil {
		if b := p.build; b.valid() {
			ps.mu.Unlock()
			annotate(k.to, b)
			k.form = b.form
			k.launch(payload)
			return
		}
		p = nil
	}
	first := p == nil
	if first {
		p = &peer{}
		ps.addLocked(addr, p)
	}
	waits := k.take(0, 1)
	if waits {
		k.held = payload
		p.waiting = append(p.waiting, k)
	}
	ps.mu.Unlock()
	if first {
		k.c.ask(p, k.to)
	}
}

// ask sends a probe to a peer, see [wire.PutProbe].
func (c *Class) ask(p *peer, to na.Addr) {
	q := c.NewCall()
	q.probe, q.to, q.via = p, to, to
	q.id = ID(rand.Uint64())
	q.opts = CallOptions{}
	q.Notify(probeDone{})
	c.peers.mu.Lock()
	p.probe = q
	c.peers.mu.Unlock()
	q.begin()
	if q.takeTag() {
		room := c.limits.RequestRoom
		msg := q.buf[:room+wire.ProbeSize]
		wire.PutProbe(msg[room:], uint64(q.id))
		q.transmit(msg, 0)
	}
	q.release(0)
}

// probed reads the answer to a probe.
func (c *Class) probed(q *Call, b []byte) {
	f, bad := wire.ParseProbeAnswer(b)
	if bad != nil {
		q.fail(bad.Code, bad)
		return
	}
	c.peers.mu.Lock()
	q.probe.form = f
	c.peers.mu.Unlock()
	q.succeed(nil)
}

// probeDone starts the calls that have waited for the answer to a probe, or fails them with the error of the probe.
type probeDone struct{}

// CallDone implements [Notifier].
func (probeDone) CallDone(q *Call) {
	c, p := q.c, q.probe
	err := q.Err()
	var room [maxAddr]byte
	addr := c.ep.AppendAddr(room[:0], q.to)
	c.peers.mu.Lock()
	waiting := p.waiting
	p.waiting, p.probe = nil, nil
	f := p.form
	if err == nil {
		p.build = &peerBuild{form: f, gone: q.to.Done()}
	} else if c.peers.byAddr[string(addr)] == p {
		delete(c.peers.byAddr, string(addr))
	}
	c.peers.mu.Unlock()
	q.Free()
	for _, k := range waiting {
		if err != nil {
			k.record(rewrap("call", k.to, err))
		} else {
			k.form = f
			k.launch(k.held)
		}
		k.release(0)
	}
}

// leave removes a cancelled call from the calls that wait for a probe. It cancels the probe if no other call waits for it.
func (ps *peers) leave(k *Call) {
	if k.c.cfg.Checksums != wire.Detect {
		return
	}
	var room [maxAddr]byte
	addr := k.c.ep.AppendAddr(room[:0], k.to)
	ps.mu.Lock()
	p := ps.byAddr[string(addr)]
	var i int
	if p == nil {
		i = -1
	} else {
		i = slices.Index(p.waiting, k)
	}
	if i < 0 {
		ps.mu.Unlock()
		return
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	var probe *Call
	if len(p.waiting) == 0 {
		delete(ps.byAddr, string(addr)) // the next call sends a new probe
		if p.probe != nil && p.probe.claimAbort(codes.Canceled, nil) {
			probe = p.probe
		}
	}
	ps.mu.Unlock()
	if probe != nil {
		probe.finishAbort()
	}
	k.release(0)
}

// forget makes the next call probe the peer again, because an answer of the peer had another form: another process may have its address.
func (ps *peers) forget(c *Class, a na.Addr) {
	if c.cfg.Checksums != wire.Detect {
		return
	}
	var room [maxAddr]byte
	addr := c.ep.AppendAddr(room[:0], a)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byAddr[string(addr)]; p != nil && p.build != nil {
		p.build.stale.Store(true)
		delete(ps.byAddr, string(addr))
	}
}
