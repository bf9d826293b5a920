package cinnabar

import (
	"math/rand/v2"
	"time"

	"cinnabar/internal/hg"
	"cinnabar/internal/invariants"
	"cinnabar/internal/sched"
)

// opRecord is an operation of the program that is under way: a call, a one-way request, a transfer.
type opRecord struct {
	op       string // as in Error.Op
	proc     *procedure
	provider uint16
	ep       *Endpoint
	bytes    int64         // of a transfer
	within   *service      // the handler's that has begun it, nil if none has
	pending  pendingOp     // the Pending that stands for it, nil if a goroutine waits in Call, Pull or Push
	began    time.Duration // by the clock of the opTable
	bounded  bool          // its context ends it in time, so it is not watched
	call     *hg.Call      // not nil for a call, and not freed while the operation is recorded
	transfer *hg.Transfer  // likewise for a transfer

	// Of a transfer that is watched. The watch alone uses them, with the shard's lock.
	progress int64
	moved    time.Duration // when progress was last seen to change, or when the operation began

	shard      *shard
	prev, next *opRecord
}

// pendingOp is a [Pending] of any type.
type pendingOp interface{ ignored() bool }

// label names the procedure of a call, and is empty for a transfer.
func (d *opRecord) label() string {
	if d.proc == nil {
		return ""
	}
	return d.proc.label(d.provider)
}

// opTable is the table of an engine's operations in flight. An operation enters and leaves at the price of an uncontended lock each, and
// allocates nothing in the long run.
type opTable struct {
	clock  *sched.Clock
	watch  stallWatch
	shards [8]shard
}

// shard is a part of them, so that goroutines seldom meet at a lock.
type shard struct {
	mu invariants.Mutex
	// +checklocks:mu
	first *opRecord // under way, the newest first
	// +checklocks:mu
	last *opRecord // the oldest
	// +checklocks:mu
	calls, transfers int // how many of each
	// +checklocks:mu
	free *opRecord // to be used again, linked by next
	// +checklocks:mu
	spare int      // how many those are
	_     [64]byte // so that shards do not share a cache line
}

// maxSpare is the number of records that a shard keeps for reuse.
const maxSpare = 1024

func (ds *opTable) init() { ds.clock = sched.NewClock() }

// begin records a copy of op and returns the copy. It sets the shard and the times of op first.
func (ds *opTable) begin(op *opRecord) *opRecord {
	sh := &ds.shards[rand.Uint32()%uint32(len(ds.shards))]
	op.shard, op.began = sh, ds.clock.Now()
	op.moved = op.began
	if !op.bounded {
		defer ds.watch.arm() // after d is entered, because the timer runs no longer once it has found nothing
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.free
	if d == nil {
		d = new(opRecord)
	} else {
		sh.free = d.next
		sh.spare--
	}
	*d = *op
	d.next = sh.first
	if sh.first != nil {
		sh.first.prev = d
	} else {
		sh.last = d
	}
	sh.first = d
	*sh.countLocked(d)++
	return d
}

// end says that the operation is over; d must not be used any more.
func (d *opRecord) end() { d.shard.drop(d) }

func (sh *shard) drop(d *opRecord) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if d.prev == nil {
		sh.first = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		sh.last = d.prev
	}
	*sh.countLocked(d)--
	*d = opRecord{}
	if sh.spare < maxSpare {
		d.next = sh.free
		sh.free = d
		sh.spare++
	}
}

// all returns copies of the operations in flight.
func (ds *opTable) all() (list []opRecord) {
	for i := range ds.shards {
		sh := &ds.shards[i]
		sh.mu.Lock()
		for d := sh.first; d != nil; d = d.next {
			list = append(list, *d)
		}
		sh.mu.Unlock()
	}
	return list
}

// countLocked returns the counter of the operations of d's kind.
//
// +checklocks:sh.mu
func (sh *shard) countLocked(d *opRecord) *int {
	if d.proc != nil {
		return &sh.calls
	}
	return &sh.transfers
}

// maxVisited is the number of records that each part of a bounded [Engine.State] looks at, because it holds a lock meanwhile.
const maxVisited = 1 << 13

// oldest returns copies of the operations that began first, at most limit calls and limit transfers, and the numbers of all. It
// looks at no more than look operations of each shard.
func (ds *opTable) oldest(limit, look int) (list []opRecord, calls, transfers int) {
	for i := range ds.shards {
		sh := &ds.shards[i]
		sh.mu.Lock()
		c, t := limit, limit
		calls, transfers = calls+sh.calls, transfers+sh.transfers
		for d, visited := sh.last, 0; d != nil && visited < look && max(c, t) > 0; d, visited = d.prev, visited+1 {
			room := &t
			if d.proc != nil {
				room = &c
			}
			if *room > 0 {
				*room--
				list = append(list, *d)
			}
		}
		sh.mu.Unlock()
	}
	return list, calls, transfers
}
