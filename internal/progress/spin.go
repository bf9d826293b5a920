package progress

import (
	"sync/atomic"
	"time"
)

// Kind is the kind of looks at a [Source], which differ in their cost. A look is one check of a waiter for a message.
type Kind uint8

// The kinds of looks.
const (
	Memory Kind = iota // a look loads from memory, which takes some tens of nanoseconds with the waiter's pause
	Socket             // a look is a system call, which takes about half a microsecond
)

// kinds are the constants of each kind. A yield in which no other thread runs takes 0.3 µs, and sometimes more than 1 µs. A yield in which a peer runs and
// sends a message by a socket takes 4 to 5 µs.
var kinds = [...]struct {
	looks      int32 // looks between two readings of the clock; a power of 2
	yieldAfter int64 // time in vain before the first yield
	together   int64 // duration of a yield above which another thread may have run in it
}{
	Memory: {looks: 16, yieldAfter: int64(2 * time.Microsecond), together: int64(time.Microsecond)},
	Socket: {looks: 4, yieldAfter: int64(20 * time.Microsecond), together: int64(3 * time.Microsecond)},
}

const (
	missesToRest = 3  // misses in a row after which the source rests: its waiters park at once, except for probes
	restLongest  = 16 // largest number of waits that park between two probes: each probe that misses doubles it up to here
	probeFactor  = 2  // length of a probe in budgets: the peer's wake-up and the waiter's own, twice
	nearFactor   = 3  // length of a spin in budgets after a near miss
	withinFactor = 4  // length of a spin in budgets after a part of a message has come
	// runAfter is the time without a message after which a waiter calls runtime.Gosched, if goroutines spin on all threads.
	runAfter = int64(2 * time.Microsecond)
	// stallGap is the time between two readings of the clock above which another thread has had the processor.
	stallGap = int64(20 * time.Microsecond)
	// spinLimit bounds a spin with its stalls, because the waiter may have a deadline. A policy of NewFixed has no such limit.
	spinLimit = int64(20 * time.Millisecond)
)

// Whether spins of a source are longer, because messages come soon after the end of a usual one.
const (
	notNear  = iota
	nearly   // a message has come soon after its waiter had parked: spins last for nearFactor budgets
	nearVain // the last spin of that length was in vain, so the message after it proves nothing
)

// Source remembers whether spinning has paid at one place that messages come from. Its methods are safe for concurrent use. A Source
// must not be copied after Init.
type Source struct {
	policy  *Policy
	kind    Kind
	watcher *Watcher // the argument of Relieve; nil: Relieve was not called

	misses atomic.Int32 // in a row, up to missesToRest
	rest   atomic.Int32 // number of waits that park between probes, when resting
	skips  atomic.Int32 // number of further waits that park before the next probe
	near   atomic.Int32 // one of the constants of nearly
	parked atomic.Int64 // time at which a waiter parked, 0 if none has since the last message
}

// Init sets the policy and the kind of s. It must be called once, before all other methods.
func (s *Source) Init(p *Policy, kind Kind) { s.policy, s.kind = p, kind }

// Relieve makes waiters of s do the work of w while they spin. [Spin.Vain] may look at the objects of w, so its caller must hold no lock that the
// Look method of an object takes. Relieve must be called before the first wait on s, and before [Watcher.Add].
func (s *Source) Relieve(w *Watcher) {
	s.watcher = w
	w.relieved.Store(true)
}

// attempt returns the length of the next spin in budgets; 0: the waiter parks at once.
func (s *Source) attempt() int64 {
	if s.misses.Load() < missesToRest {
		if s.near.Load() == nearly {
			return nearFactor
		}
		return 1
	}
	if s.skips.Load() > 0 {
		s.skips.Add(-1)
		return 0
	}
	return probeFactor
}

// hit records that spinning has found a message or would have, and ends the rest of the source, so that its next waiters spin.
func (s *Source) hit() {
	if s.misses.Load() != 0 {
		s.misses.Store(0)
		s.rest.Store(0)
		s.skips.Store(0)
	}
}

// miss records a whole budget without a message and without a stall.
func (s *Source) miss() {
	if s.policy.mode == Latency {
		return
	}
	if s.near.Load() == nearly {
		s.near.Store(nearVain)
	} else {
		s.near.Store(notNear)
	}
	if s.misses.Load() < missesToRest && s.misses.Add(1) < missesToRest {
		return
	}
	rest := min(max(2*s.rest.Load(), 1), restLongest)
	s.rest.Store(rest)
	s.skips.Store(rest)
}

// Park records the time, because a waiter of the source is about to park. [Source.Answered] compares it with the time of the next message.
func (s *Source) Park() {
	if s.policy.MaySpin() {
		s.parked.Store(s.policy.proc.now())
	}
}

// Answered records that a message has come. It counts as a hit if the waiter has parked less than a budget and a price before.
func (s *Source) Answered() {
	if s.parked.Load() == 0 {
		return
	}
	at := s.parked.Swap(0)
	if at == 0 {
		return
	}
	budget := int64(s.policy.Budget())
	if s.policy.proc.now()-at < budget+budget/2 {
		s.hit()
		s.near.CompareAndSwap(notNear, nearly)
	}
}

// Spin is one wait on a source. The zero Spin is not usable: see [Source.Spin]. Its methods are for one goroutine.
//
//	s := source.Spin(true)
//	defer s.End()
//	for {
//		if look() {
//			s.Found()
//			...
//		} else if !s.Vain() {
//			park()
//		}
//	}
type Spin struct {
	// Within says that a part of a message has come; the waiter sets it. A wait that begins then spins even if the source rests, and
	// for withinFactor budgets, because the rest of the message usually follows soon.
	Within bool

	src     *Source
	proc    *process
	driver  bool
	on      bool // counted in process.drivers or process.pollers
	over    bool // the time is up
	stall   bool // another thread has had the processor during the spin
	others  bool // another thread ran in the yield before the last look
	factor  int64
	threads int   // that run goroutines; 0: not known yet
	looks   int32 // in vain
	looked  int64 // last reading of the clock; 0: none yet
	until   int64
	start   int64
}

// Spin returns a wait on s. If driver is true, the waiter waits for the result of its own call, and gets the right to spin before other
// waiters.
func (s *Source) Spin(driver bool) Spin { return Spin{src: s, proc: s.policy.proc, driver: driver} }

// Begin takes the right to spin, which [Spin.End] gives back, and reports whether the waiter has it. A waiter without the right
// parks. Begin reads no clock. [Spin.Vain] calls Begin if the waiter has not called it.
func (s *Spin) Begin() bool {
	if s.on {
		return true
	}
	if !s.src.policy.MaySpin() || s.proc.crowded() {
		return false
	}
	s.factor = 1
	if !s.Within {
		if s.factor = s.src.attempt(); s.factor == 0 {
			return false
		}
	}
	n := s.count().Add(1)
	s.on = true
	if s.driver && n > 1 || !s.driver && n+s.proc.drivers.Load() > s.proc.limit() {
		s.End()
	}
	return s.on
}

// count returns the number of spinning goroutines of the waiter's kind.
func (s *Spin) count() *atomic.Int32 {
	if s.driver {
		return &s.proc.drivers
	}
	return &s.proc.pollers
}

// End gives back the right to spin.
func (s *Spin) End() {
	if s.on {
		s.on = false
		s.count().Add(-1)
		s.reset()
	}
}

// Found records that a look has found a message. The time of the spin begins anew with the next vain look.
func (s *Spin) Found() {
	if s.looks == 0 {
		return
	}
	if !s.over {
		s.src.hit()
	}
	s.proc.found(s.others)
	s.factor = 1
	s.reset()
}

func (s *Spin) reset() {
	s.looks, s.looked, s.start = 0, 0, 0
	s.over, s.stall, s.others = false, false, false
}

// Vain records a look without result, and reports whether the waiter looks again. It reads the clock at every sixteenth call only, or
// every fourth on sockets, so that a message that comes within these looks costs no reading.
func (s *Spin) Vain() bool {
	switch {
	case !s.on && !s.Begin(), s.over:
		return false
	case !s.driver && s.proc.drivers.Load()+s.proc.pollers.Load() > s.proc.limit():
		return false // a driver has come
	}
	if s.looks == 0 {
		s.src.policy.spins.Add(1)
	}
	s.looks++
	if s.looks&(kinds[s.src.kind].looks-1) == 0 || s.looks == 1 && s.proc.yieldsEarly() {
		s.check()
	}
	return true
}

// check reads the clock, and ends the spin by setting s.over or yields. Vain lets the waiter look once more after the end, because a
// message may have come meanwhile.
func (s *Spin) check() {
	now := s.proc.now()
	if w := s.src.watcher; w != nil {
		w.relieve(now)
	}
	switch {
	case s.looked == 0:
		factor := s.factor
		if s.Within {
			factor = withinFactor
		}
		s.start, s.until = now, now+factor*int64(s.src.policy.Budget())
	case now-s.looked > stallGap:
		s.stalled(now - s.looked)
	}
	s.looked, s.others = now, false
	switch {
	case s.stall && now-s.start > spinLimit && s.src.policy.fixed == 0:
		s.over = true
	case now > s.until:
		s.over = true
		if !s.stall {
			s.src.miss()
		}
	case s.parts() && s.proc.partNow():
		s.over = true
	default:
		early := s.proc.yieldsEarly()
		if (early || now-s.start >= runAfter) && s.full() {
			s.proc.run()
			s.looked = s.proc.now() // because other goroutines have run, not other threads
		}
		if early || now-s.start >= kinds[s.src.kind].yieldAfter {
			s.giveProcessor()
		}
	}
}

// parts reports whether the waiter parks to leave a processor that it shares with its peer. A driver on sockets does not: the background
// goroutine would read on the same processor, and the peer, whose poller waits for the next call, parks anyway.
func (s *Spin) parts() bool {
	return s.src.policy.mode != Latency && (s.src.kind == Memory || !s.driver)
}

// full reports whether goroutines spin on all threads that run goroutines. Other goroutines can then run only if a spinning one calls
// runtime.Gosched.
func (s *Spin) full() bool {
	if s.threads == 0 {
		s.threads = s.proc.threads()
	}
	return int(s.proc.drivers.Load()+s.proc.pollers.Load()) >= s.threads
}

// stalled moves the end of the spin by gap, a time in which another thread had the processor, because the waiter could not look then.
func (s *Spin) stalled(gap int64) {
	s.stall = true
	s.until += gap
}

// giveProcessor lets other threads run on the processor of the waiter, unless mayYield forbids it. A waiter that may not yield the only processor of
// the process ends its spin.
func (s *Spin) giveProcessor() {
	if !s.proc.mayYield(s.looked) {
		s.over = s.proc.single()
		return
	}
	s.src.policy.yields.Add(1)
	s.proc.yield()
	now := s.proc.now()
	took := now - s.looked
	s.proc.yielded(now, took)
	s.others = took > kinds[s.src.kind].together
	if took > stallGap {
		s.stalled(took)
	}
	s.looked = now
}

// Yield gives the processor to other threads, as a spinning waiter does, and counts and limits such yields by the same rules. A goroutine that
// works for many connections without spinning calls it between two pieces of work, because the kernel would otherwise preempt it in the middle
// of one. Yield does nothing if waiters of p do not spin.
func (p *Policy) Yield() {
	if !p.MaySpin() {
		return
	}
	now := p.proc.now()
	if !p.proc.mayYield(now) {
		return
	}
	p.yields.Add(1)
	p.proc.yield()
	end := p.proc.now()
	p.proc.yielded(end, end-now)
}
