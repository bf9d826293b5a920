package hg

import (
	"errors"
	"fmt"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
)

// A payload is pulled in parts, into memory that grows with the bytes that have come, because an announcement costs the peer a hundred
// bytes only, and must not cost this process much more.
const (
	// pullFirst is the size of the first part of a request's input, in bytes: until the peer has sent something, its
	// announcement is all that there is.
	pullFirst = 16 << 10
	// pullLeast is that size for a host with more than pullMany pulls under way, so that ten thousand announcements, which one
	// host can make in a moment, need 52 MiB and not 160 MiB. The system would take so long to provide those that other hosts wait.
	pullLeast = 4 << 10
	pullMany  = 1024
	// pullOpening is the size of the first part for a host with at most pullFew pulls under way, while pulled payloads hold no more than one
	// part in pullPlenty of the budget. So most payloads come in one part, and the announcements of one host
	// take 8 MiB at most in this way.
	pullOpening = 1 << 20
	pullFew     = 8
	// pullSecond is the size that the memory has at least after that, and at once for the response of a call, unless pulled
	// payloads hold more than one part in pullPlenty of the budget: then the memory grows slower.
	pullSecond = 8 << 20
	pullPlenty = 16
	// pullGrowth is the factor by which the memory grows when it is full. The bytes that have come are copied then, a third of the
	// payload at most. After a first part of pullOpening bytes the factor is pullLeap, because a copy of fewer bytes costs little.
	pullGrowth = 4
	pullLeap   = 16
	// pullRest joins a short rest to a part: if fewer bytes than the memory's new size divided by pullRest would remain, the memory gets room for them
	// too. An example is a payload of 16 MiB with its envelope, which would otherwise need a further part for the last bytes.
	pullRest = 8
	// pullTime is how long a part may take, plus its size at the slowest rate. C's processes serve their memory only
	// while they make progress, and may compute for a while. It is less than ackTime, so that the acknowledgement of a failed pull comes
	// before the peer's time is over.
	pullTime = 50 * time.Second
	// descCost is the most bytes of memory that each byte of a descriptor takes while the descriptor is read and used.
	descCost = 4
)

var (
	errShortPull = errors.New("peer has sent less of the payload than it has announced")
	errSlowPull  = errors.New("peer does not serve the payload that it has announced")
)

// pull fetches the payload of an overflow. It ends once; cancel may come at any time.
type pull struct {
	c       *Class
	op      string // for errors
	from    na.Addr
	desc    *Desc
	charged *charge // of the owner
	owner   puller

	keep  bool      // the owner probably keeps the payload: if it is large, its memory is not used for others later
	buf   []byte    // the bytes that have come and, at the end, the part under way
	mem   *scratch  // the memory of buf; nil: buf is not scratch memory
	asked int       // the size of that part
	step  *Transfer // of one part after the other; not pooled, because a late abort must not reach another transfer

	mu invariants.Mutex
	// +checklocks:mu
	part int // counts them
	// +checklocks:mu
	timer *time.Timer // of the part under way
	// +checklocks:mu
	failure *Error // why there will be no further part
}

// puller is called at the end of a pull. The payload is the pull's buf if err is nil, and the puller releases the pull's mem after its use.
type puller interface{ pulled(p *pull, err *Error) }

// newPull prepares for the pull of the memory of d, which was checked.
func (c *Class) newPull(op string, from na.Addr, d *Desc, charged *charge, owner puller, keep bool) *pull {
	p := &pull{c: c, op: op, from: from, desc: d, charged: charged, owner: owner, keep: keep, step: c.makeTransfer()}
	p.step.again()
	p.step.Notify(p)
	return p
}

// next asks for the next part, or ends the pull.
func (p *pull) next() {
	have := len(p.buf)
	if uint64(have) == p.desc.Len() {
		p.owner.pulled(p, nil)
		return
	}
	if err := p.grow(); err != nil {
		p.owner.pulled(p, err)
		return
	}
	part := p.buf[have:]
	if err := p.arm(len(part)); err != nil {
		p.owner.pulled(p, err)
		return
	}
	p.asked = len(part)
	p.step.Start(Pull, p.from, p.desc, uint64(have), [][]byte{part}, uint64(len(part)))
	p.mu.Lock()
	failure := p.failure
	p.mu.Unlock()
	if failure != nil { // perhaps before Start, and missed
		p.step.abort(failure.Code, failure.Err)
	}
}

// grow makes room for the next part, within the budget.
func (p *pull) grow() *Error {
	have, total := int64(len(p.buf)), int64(p.desc.Len())
	size := p.c.nextPart(have, p.op == opInput, p.from.Account())
	if total-size < size/pullRest {
		size = total
	}
	if err := p.c.charge(p.charged, p.from, size-have); err != nil {
		return newError(p.op, p.from, codes.Again, err)
	}
	var buf []byte
	var mem *scratch
	if !p.keep || size < total {
		mem = takeScratch(int(size))
	}
	if mem != nil {
		buf = mem.b[:size]
	} else {
		buf = hostmem.Uncleared(int(size)) // each byte is written before it is read, because a short part ends the pull
	}
	copy(buf, p.buf)
	p.mem.release()
	p.buf, p.mem = buf, mem
	return nil
}

// arm starts the clock for a part of n bytes. It refuses when the pull is given up.
func (p *pull) arm(n int) *Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure != nil {
		return p.failure
	}
	p.part++
	part := p.part
	p.timer = time.AfterFunc(patience(pullTime, n), func() { p.expire(part) })
	return nil
}

// expire runs when a part has taken too long. Close waits for it, if there is anything to do.
func (p *pull) expire(part int) {
	p.c.tasks.Add()
	defer p.c.tasks.Done()
	p.mu.Lock()
	late := p.part == part && p.timer != nil
	p.mu.Unlock()
	if late {
		p.giveUp(codes.Timeout, errSlowPull)
	}
}

// cancel has the pull end soon.
func (p *pull) cancel() { p.giveUp(codes.Canceled, nil) }

func (p *pull) giveUp(code codes.Code, cause error) {
	p.mu.Lock()
	if p.failure == nil {
		p.failure = newError(p.op, p.from, code, cause)
	}
	p.mu.Unlock()
	p.step.abort(code, cause)
}

// TransferDone implements [TransferNotifier] for a part.
func (p *pull) TransferDone(t *Transfer) {
	p.mu.Lock()
	p.timer.Stop()
	p.timer = nil // an expire that has begun finds nothing to do
	p.mu.Unlock()
	err := t.Err()
	if err == nil && t.N() != int64(p.asked) {
		err = newError(p.op, p.from, codes.ProtocolError, errShortPull)
	}
	if err != nil {
		p.owner.pulled(p, rewrap(p.op, p.from, err))
		return
	}
	t.again()
	if p.desc.Len() > pullSecond { // growing and checksums take their time, and this goroutine makes progress
		p.c.tasks.Go(p.next)
		return
	}
	p.next()
}

// owned reports whether the pulled payload is memory of its own, which nothing else uses later.
func (p *pull) owned() bool { return p.mem == nil && len(p.buf) >= LargePayload }

// nextPart returns the size to which the memory of a pull from host a grows from have bytes.
func (c *Class) nextPart(have int64, input bool, a *hostquota.Account) int64 {
	plenty := c.count.budget.Load() <= c.cfg.OverflowBudget/pullPlenty
	switch first := have == 0 && input; {
	case first && plenty && a.Used(hostquota.Pulls) <= pullFew:
		return pullOpening
	case first && a.Used(hostquota.Pulls) > pullMany:
		return pullLeast
	case first || !plenty:
		return max(pullFirst, have*pullGrowth)
	case have <= pullOpening:
		return max(pullSecond, have*pullLeap)
	}
	return have * pullGrowth
}

// charge is memory that is counted for a host.
type charge struct {
	bytes   int64
	account *hostquota.Account // nil if there is none
}

// charge counts n bytes for a payload that a peer has announced.
func (c *Class) charge(to *charge, peer na.Addr, n int64) error {
	if c.count.budget.Add(n) > c.cfg.OverflowBudget {
		c.count.budget.Add(-n)
		return fmt.Errorf("no room for %d bytes more of a payload: all payloads together may have %d (Config.OverflowBudget); try again later, or use a bulk transfer",
			n, c.cfg.OverflowBudget)
	}
	account := peer.Account()
	if err := account.Take(hostquota.Memory, n); err != nil {
		c.count.budget.Add(-n)
		return fmt.Errorf("no room for %d bytes more of a payload: %w (Config.MaxMemory); try again later, or use a bulk transfer", n, err)
	}
	to.account = account
	to.bytes += n
	return nil
}

// refund gives back the bytes that charge has counted.
func (c *Class) refund(of *charge) {
	if of.account != nil {
		c.count.budget.Add(-of.bytes)
		of.account.Give(hostquota.Memory, of.bytes)
		*of = charge{}
	}
}
