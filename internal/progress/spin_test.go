package progress

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bench is a process with a clock that the test moves, and yields that take the time that the test says.
type bench struct {
	proc  *process
	pol   *Policy
	clock int64
	took  time.Duration // of a yield
	calls int           // of yield
}

func twoThreads() int { return 2 }

func newBench(m Mode) *bench {
	b := &bench{clock: 1, took: 300 * time.Nanosecond}
	b.proc = newProcess(2, twoThreads, func() int64 { return b.clock }, func() {
		b.calls++
		b.clock += int64(b.took)
	})
	b.pol = &Policy{mode: m, proc: b.proc}
	return b
}

func (b *bench) source(k Kind) *Source {
	s := new(Source)
	s.Init(b.pol, k)
	return s
}

// waste looks in vain, for step each time, until the spin ends, and returns the time that it took and the number of looks.
func (b *bench) waste(s *Spin, step time.Duration) (d time.Duration, looks int) {
	from := b.clock
	for s.Vain() {
		b.clock += int64(step)
		looks++
	}
	s.End()
	return time.Duration(b.clock - from), looks
}

// A vain spin lasts for a budget. The last look comes after the decision to stop.
func TestBudget(t *testing.T) {
	b := newBench(Balanced)
	s := b.source(Memory).Spin(true)
	d, _ := b.waste(&s, 60*time.Nanosecond)
	if budget := b.pol.Budget(); budget != 2*initialPrice || d < budget || d > budget+5*time.Microsecond {
		t.Errorf("a vain spin took %v with a budget of %v, want about %v", d, budget, 2*initialPrice)
	}
	if c := b.pol.Counters(); c.Spins != 1 || c.Yields == 0 || c.Yields != uint64(b.calls) {
		t.Errorf("counters %+v after one vain spin with %d yields", c, b.calls)
	}
}

// TestSpinRelieves checks that a spin looks at the objects of the watcher to which Relieve has bound its source, about once in each interval.
func TestSpinRelieves(t *testing.T) {
	b := newBench(Latency)
	var w Watcher
	o := newWatchedObject()
	o.again.Store(1000)
	o.watch.on.Store(true)
	w.mu.Lock()
	w.list, w.alarm, w.running = []*Watch{&o.watch}, newTicks(), true
	w.mu.Unlock()
	w.swept.Store(b.clock)
	src := b.source(Socket)
	src.Relieve(&w)
	s := src.Spin(true)
	d, _ := b.waste(&s, time.Microsecond)
	if n := int64(o.looks.Load()); n > int64(d)/relieveAfter || n < int64(d/WatchInterval) {
		t.Errorf("%d looks of the watcher in a spin of %v", n, d)
	}
	w.Close()
}

// A message in the first looks costs no reading of the clock.
func TestNoClock(t *testing.T) {
	b := newBench(Balanced)
	b.proc.now = func() int64 { t.Fatal("the clock was read"); return 0 }
	s := b.source(Memory).Spin(true)
	defer s.End()
	for range 100 {
		for range kinds[Memory].looks - 1 {
			if !s.Vain() {
				t.Fatal("the spin ended")
			}
		}
		s.Found()
	}
}

// A source rests after missesToRest vain spins. Then 1, 2, 4 waits park between probes, and restLongest at most; a probe is two
// budgets long, and one that finds a message ends the rest.
// parity: G75
func TestRest(t *testing.T) {
	b := newBench(Balanced)
	src := b.source(Memory)
	spins := func() (d time.Duration) {
		s := src.Spin(true)
		d, _ = b.waste(&s, time.Microsecond)
		return d
	}
	for range missesToRest {
		if spins() < b.pol.Budget() {
			t.Fatal("an eager source did not spin")
		}
	}
	for _, want := range []int{1, 2, 4, 8, 16, 16, 16} {
		parks := 0
		d := spins()
		for ; d == 0; d = spins() {
			parks++
		}
		if parks != want {
			t.Errorf("%d waits parked before the next probe, want %d", parks, want)
		}
		if d < probeFactor*b.pol.Budget() {
			t.Errorf("a probe of %v, want two budgets of %v", d, b.pol.Budget())
		}
	}
	for range restLongest {
		if spins() != 0 {
			t.Fatal("a wait of a resting source spun")
		}
	}
	s := src.Spin(true)
	if !s.Vain() {
		t.Fatal("no probe")
	}
	s.Found()
	s.End()
	for range missesToRest {
		if d := spins(); d < b.pol.Budget() || d >= probeFactor*b.pol.Budget() {
			t.Errorf("a spin of %v after a probe that found a message, want about %v", d, b.pol.Budget())
		}
	}
}

// A message that comes soon after a waiter has parked counts as a hit; one that comes late does not.
func TestAnswered(t *testing.T) {
	b := newBench(Balanced)
	for _, c := range []struct {
		after time.Duration
		eager bool
	}{{b.pol.Budget() + b.pol.Budget()/2 - 1, true}, {b.pol.Budget() * 2, false}} {
		src := b.source(Memory)
		for range missesToRest {
			s := src.Spin(true)
			b.waste(&s, time.Microsecond)
		}
		src.Park()
		b.clock += int64(c.after)
		src.Answered()
		s := src.Spin(true)
		if got := s.Begin(); got != c.eager {
			t.Errorf("a message %v after parking: the next wait spins: %v, want %v", c.after, got, c.eager)
		}
		s.End()
		src.Answered() // there is nothing to record
	}
}

// Messages that come soon after the end of a usual spin lengthen the spins, until such a spin is in vain. If messages come too late for the
// longer spins, the usual ones return.
func TestNearMiss(t *testing.T) {
	b := newBench(Balanced)
	src := b.source(Memory)
	// wait waits for a message that comes after d, and returns the time for which it has spun.
	wait := func(d time.Duration) time.Duration {
		s := src.Spin(true)
		defer s.End()
		from, comes := b.clock, b.clock+int64(d)
		for s.Vain() {
			if b.clock += 100; b.clock >= comes {
				s.Found()
				return time.Duration(b.clock - from)
			}
		}
		spun := time.Duration(b.clock - from)
		src.Park()
		b.clock = comes
		src.Answered()
		return spun
	}
	budget := b.pol.Budget()
	for i, c := range []struct{ comes, spins time.Duration }{
		{2 * budget, budget}, {2 * budget, 2 * budget}, {budget / 2, budget / 2}, {2 * budget, 2 * budget},
		{10 * budget, nearFactor * budget}, {2 * budget, budget}, {2 * budget, 2 * budget},
		{4 * budget, nearFactor * budget}, {4 * budget, budget}, {4 * budget, budget},
	} {
		if d := wait(c.comes); d < c.spins || d > c.spins+5*time.Microsecond {
			t.Errorf("wait %d, for a message after %v, spun for %v, want %v", i, c.comes, d, c.spins)
		}
	}
}

// A stall is taken out of the budget and is no miss, but the spin has an end.
func TestStall(t *testing.T) {
	b := newBench(Balanced)
	b.proc.yield = nil
	src := b.source(Memory)
	for range 2 * missesToRest {
		s := src.Spin(true)
		from := b.clock
		for i := 0; s.Vain(); i++ {
			b.clock += int64(100 * time.Nanosecond)
			if i == 100 {
				b.clock += int64(2 * time.Millisecond)
			}
		}
		s.End()
		if d, least := time.Duration(b.clock-from), b.pol.Budget()+2*time.Millisecond; d < least {
			t.Errorf("a spin with a stall took %v, want at least %v", d, least)
		}
	}
	if n := src.misses.Load(); n != 0 {
		t.Errorf("%d misses after spins with stalls, want 0", n)
	}
	for _, m := range []Mode{Balanced, Latency} {
		b := newBench(m)
		b.proc.yield = nil
		s := b.source(Memory).Spin(true)
		if d, _ := b.waste(&s, 300*time.Microsecond); d < time.Duration(spinLimit) || d > 2*time.Duration(spinLimit) {
			t.Errorf("%v: a spin of stalls took %v, want about %v", m, d, time.Duration(spinLimit))
		}
	}
}

// Yields begin after a time in vain, which is longer on sockets.
func TestYieldAfter(t *testing.T) {
	for kind, least := range map[Kind]time.Duration{Memory: 2 * time.Microsecond, Socket: 20 * time.Microsecond} {
		b := newBench(Balanced)
		s := b.source(kind).Spin(true)
		from := b.clock
		for b.calls == 0 && s.Vain() {
			b.clock += 100
		}
		if d := time.Duration(b.clock - from); d < least || d > least+5*time.Microsecond {
			t.Errorf("the first yield on kind %d after %v, want %v", kind, d, least)
		}
		s.End()
	}
}

// After a yield in which another thread ran and a message that follows it, waiters yield at their first vain look, for 8 messages.
func TestYieldEarly(t *testing.T) {
	b := newBench(Balanced)
	b.took = 5 * time.Microsecond
	s := b.source(Memory).Spin(true)
	defer s.End()
	for b.calls == 0 && s.Vain() {
		b.clock += 100
	}
	s.Found()
	b.took = 300 * time.Nanosecond
	for i := range earlyMessages {
		b.calls = 0
		if s.Vain(); b.calls != 1 {
			t.Fatalf("message %d: %d yields at the first vain look, want 1", i, b.calls)
		}
		s.Found()
	}
	b.calls = 0
	if s.Vain(); b.calls != 0 {
		t.Errorf("a yield at the first look after %d messages", earlyMessages)
	}
}

// A yield for which another program's slice was paid stops all yields of the process, for longer each time.
func TestYieldHogged(t *testing.T) {
	b := newBench(Balanced)
	b.took = 3 * time.Millisecond
	src := b.source(Memory)
	for _, pause := range []time.Duration{50, 100, 200, 400, 800, 800} {
		pause *= time.Millisecond
		b.calls = 0
		s := src.Spin(true)
		b.waste(&s, 100*time.Nanosecond)
		if b.calls != 1 {
			t.Fatalf("%d yields, want the one that was hogged", b.calls)
		}
		b.clock += int64(pause - 10*time.Millisecond)
		if b.proc.mayYield(b.clock) {
			t.Errorf("yields are allowed %v before the end of a pause of %v", 10*time.Millisecond, pause)
		}
		b.clock += int64(10 * time.Millisecond)
		if !b.proc.mayYield(b.clock) {
			t.Errorf("no yields after a pause of %v", pause)
		}
	}
	b.proc.found(true)
	if b.proc.hogged.Load() != 0 {
		t.Error("a yield that helped did not undo the doubling")
	}
}

// A waiter parks once after 16 messages for which the peer had to run on the waiter's processor, without a miss. The number doubles up to 512
// while the peer stays, and is 16 again after 64 messages without the peer.
func TestPart(t *testing.T) {
	for _, kind := range []Kind{Memory, Socket} {
		for _, driver := range []bool{true, false} {
			testPart(t, kind, driver)
		}
	}
}

func testPart(t *testing.T, kind Kind, driver bool) {
	b := newBench(Balanced)
	src := b.source(kind)
	s := src.Spin(driver)
	defer s.End()
	b.took = 5 * time.Microsecond
	// together delivers messages, each right after a yield to another thread, until the waiter parks, and returns their number.
	together := func() (n int) {
		for ; n <= 2*partMost; n++ {
			for calls := b.calls; b.calls == calls; b.clock += int64(100 * time.Nanosecond) {
				if !s.Vain() {
					s.End()
					return n
				}
			}
			s.Found()
		}
		return n
	}
	if n := together(); kind == Socket && driver { // a warm-up, after which waiters yield from the first look on
		if n <= 2*partMost {
			t.Errorf("a driver on a socket parked after %d messages", n)
		}
		return
	}
	b.proc.part.Store(0)
	for _, want := range []int{16, 32, 64, 128, 256, 512, 512} {
		if got := together(); got != want {
			t.Fatalf("a waiter parked after %d messages, want %d", got, want)
		}
	}
	if n := src.misses.Load(); n != 0 {
		t.Errorf("parking on a shared processor counted as %d misses", n)
	}
	for range partAlone {
		b.proc.found(false)
	}
	if got := together(); got != partLeast {
		t.Errorf("a waiter parked after %d messages although the peer had left, want %d", got, partLeast)
	}
	b.pol.mode = Latency
	if got := together(); got <= 2*partMost {
		t.Errorf("a waiter of mode Latency parked after %d messages", got)
	}
}

// One goroutine of a process spins at a time, and a driver comes before a poller. A pair within the process may spin on both ends.
func TestOneSpinner(t *testing.T) {
	b := newBench(Balanced)
	poller, driver, other := b.source(Memory).Spin(false), b.source(Memory).Spin(true), b.source(Memory).Spin(true)
	if !poller.Begin() || !driver.Begin() {
		t.Fatal("neither the poller nor the driver after it may spin")
	}
	if other.Begin() {
		t.Error("two drivers spin")
	}
	if poller.Vain() {
		t.Error("a poller spins beside a driver")
	}
	poller.End()
	if poller.Begin() {
		t.Error("a poller begins beside a driver")
	}
	b.pol.AddPair()
	if !poller.Begin() || !poller.Vain() || !driver.Vain() {
		t.Error("the two ends of a pair do not both spin")
	}
	if other.Begin() {
		t.Error("three goroutines spin")
	}
	b.pol.RemovePair()
	if poller.Vain() {
		t.Error("the poller spins on without the pair")
	}
	poller.End()
	driver.End()
	if n := b.proc.drivers.Load() + b.proc.pollers.Load(); n != 0 {
		t.Errorf("%d goroutines spin after all have ended", n)
	}
}

// The modes.
func TestModes(t *testing.T) {
	for m, want := range map[Mode]time.Duration{Balanced: 2 * initialPrice, Latency: latencyBudget, Economy: 0} {
		b := newBench(m)
		if got := b.pol.Budget(); got != want || b.pol.Mode() != m {
			t.Errorf("%v: budget %v, want %v", m, got, want)
		}
		src := b.source(Memory)
		for range 2 * missesToRest {
			s := src.Spin(true)
			if d, _ := b.waste(&s, time.Microsecond); m == Latency && d < want || m == Economy && d != 0 {
				t.Errorf("%v: a vain spin of %v", m, d)
			}
		}
		src.Park()
		src.Answered()
	}
	for _, c := range []struct {
		m     Mode
		procs int
		ok    bool
	}{{Balanced, 1, true}, {Economy, 1, true}, {Latency, 2, true}, {Latency, 1, false}, {"", 1, true}, {"fast", 2, false}} {
		if err := c.m.Check(c.procs); (err == nil) != c.ok {
			t.Errorf("%v.Check(%d) = %v", c.m, c.procs, err)
		}
	}
}

// In the midst of a message a spin is longer, and a resting source spins too.
func TestWithin(t *testing.T) {
	b := newBench(Balanced)
	src := b.source(Socket)
	for range missesToRest {
		s := src.Spin(false)
		b.waste(&s, time.Microsecond)
	}
	s := src.Spin(false)
	s.Within = true
	if d, _ := b.waste(&s, time.Microsecond); d < withinFactor*b.pol.Budget() {
		t.Errorf("a spin of %v within a message, want %v", d, withinFactor*b.pol.Budget())
	}
}

// The price is the ninth decile of the latest samples, and the budget has limits.
func TestPrice(t *testing.T) {
	b := newBench(Balanced)
	budget := func(want time.Duration) {
		t.Helper()
		if got := b.pol.Budget(); got != want {
			t.Errorf("a budget of %v, want %v", got, want)
		}
	}
	for i := range priceSamples {
		d := 70 * time.Microsecond
		if i%11 == 0 {
			d = time.Second
		}
		b.proc.add(int64(d))
	}
	budget(140 * time.Microsecond)
	for range priceSamples {
		b.proc.add(int64(leastPrice) - 1) // no wake-up
	}
	budget(140 * time.Microsecond)
	for range priceSamples {
		b.proc.add(int64(leastPrice))
	}
	budget(leastBudget)
	b.clock = int64(time.Second)
	for range priceSamples {
		b.pol.Woken(1)
	}
	budget(mostBudget)
	b.pol.Woken(0)
	if n := b.pol.Counters().Parks; n != priceSamples+1 {
		t.Errorf("%d parks, want %d", n, priceSamples+1)
	}
	b.proc.forget()
	budget(2 * initialPrice)
}

// TestPriceOfManySamples compares the price with the ninth decile of the latest samples, sorted anew after each.
func TestPriceOfManySamples(t *testing.T) {
	b, rng := newBench(Balanced), rand.New(rand.NewPCG(1, 2))
	var latest []int64
	for i := range 20 * priceSamples {
		if i == 5*priceSamples+7 {
			b.proc.forget()
			latest = nil
		}
		d := int64(leastPrice) + rng.Int64N(40)*int64(5*time.Microsecond) // some are equal
		b.proc.add(d)
		latest = append(latest, d)
		latest = latest[max(0, len(latest)-priceSamples):]
		sorted := slices.Sorted(slices.Values(latest))
		want := min(max(2*time.Duration(sorted[(len(sorted)-1)*9/10]), leastBudget), mostBudget)
		if got := b.pol.Budget(); got != want {
			t.Fatalf("sample %d: a budget of %v, want %v", i, got, want)
		}
	}
}

// BenchmarkPrice adds samples.
func BenchmarkPrice(b *testing.B) {
	p := newProcess(2, twoThreads, Now, schedYield)
	for i := int64(0); b.Loop(); i++ {
		p.add(int64(leastPrice) + i*7919%100_000)
	}
}

// samplesSoFar returns the number of samples.
func (p *process) samplesSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// measure finds a price on this machine, in a bounded time also if the clock stands still.
func TestMeasure(t *testing.T) {
	p := newProcess(2, twoThreads, Now, schedYield)
	p.measure()
	if b, n := time.Duration(p.budget.Load()), p.samplesSoFar(); n == 0 || b < leastBudget || b > mostBudget {
		t.Errorf("a budget of %v from %d samples", b, n)
	}
	still := newProcess(2, twoThreads, func() int64 { return 1 }, nil)
	still.measure()
	if n := still.samplesSoFar(); n != 0 {
		t.Errorf("%d samples by a clock that stands still", n)
	}
}

// The hook delays those that were parked and those that signal, and says so.
func TestDearWakeUps(t *testing.T) {
	late, toll := DearWakeUps()
	MakeWakeUpsDear(300*time.Microsecond, 20*time.Microsecond, true)
	defer MakeWakeUpsDear(0, 0, true)
	if d := time.Duration(shared.budget.Load()); d != mostBudget {
		t.Errorf("a budget of %v where each wake-up takes over 300 µs, want %v", d, mostBudget)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	parkThread(t)
	from := Now()
	Toll()
	New(Balanced).Woken(0)
	if d := time.Duration(Now() - from); d < 320*time.Microsecond {
		t.Errorf("a toll and a delay took %v, want 320 µs", d)
	}
	l, n := DearWakeUps()
	if l == late || n != toll+1 {
		t.Errorf("%d delays and %d tolls, want at least 1 and 1", l-late, n-toll)
	}
}

// At any moment and in any order of events, no more than the allowed number of goroutines spins, a driver is not refused because of
// pollers, a spin ends when its time is up, and waits that park at once come in rows of at most restLongest.
func TestRandomSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(Balanced)
		var spins []*Spin
		var sources [3]Source
		for i := range sources {
			sources[i].Init(b.pol, Kind(i%2))
		}
		for i := range 6 {
			s := sources[i%3].Spin(i < 3)
			spins = append(spins, &s)
		}
		refused := map[*Source]int{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			b.took = time.Duration(rapid.SampledFrom([]int{300, 900, 2e3, 1e5, 3e6}).Draw(t, "yield"))
			i := rapid.IntRange(0, len(spins)-1).Draw(t, "spin")
			s := spins[i]
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				b.clock += int64(rapid.IntRange(1, 5e6).Draw(t, "gap"))
			case 1:
				if s.on { // a waiter that parks does not find anything
					s.Found()
				}
			case 2:
				s.End()
				s.src.Park()
			case 3:
				s.src.Answered()
			default:
				drivers := b.proc.drivers.Load()
				could := s.on || s.src.misses.Load() < missesToRest || s.src.skips.Load() == 0
				switch on := s.Begin(); {
				case !could:
					if refused[s.src]++; refused[s.src] > restLongest {
						t.Fatalf("%d waits of a source in a row parked", refused[s.src])
					}
					continue
				case s.driver && drivers == 0 && !on:
					t.Fatal("a driver was refused, although no other driver spins")
				}
				refused[s.src] = 0
				from, looks := b.clock, 0
				for n := rapid.IntRange(1, 200).Draw(t, "looks"); looks < n && s.Vain(); looks++ {
					b.clock += 1000
				}
				if d := b.clock - from; d > 2*spinLimit+int64(hoggedYield)*4 {
					t.Fatalf("%d looks took %v", looks, time.Duration(d))
				}
			}
			drivers, pollers := 0, 0
			for _, s := range spins {
				switch {
				case !s.on:
				case s.driver:
					drivers++
				default:
					pollers++
				}
			}
			if drivers > 1 || pollers > int(b.proc.limit()) {
				t.Fatalf("%d drivers and %d pollers have the right to spin", drivers, pollers)
			}
			if drivers != int(b.proc.drivers.Load()) || pollers != int(b.proc.pollers.Load()) {
				t.Fatalf("%d drivers and %d pollers spin, counted are %d and %d", drivers, pollers, b.proc.drivers.Load(), b.proc.pollers.Load())
			}
		}
		for _, s := range spins {
			s.End()
		}
		if n := b.proc.drivers.Load() + b.proc.pollers.Load(); n != 0 {
			t.Fatalf("%d goroutines spin after all have ended", n)
		}
	})
}

// TestYieldIsWatched: after a yield that has cost a whole time slice, there are none for a while.
func TestYieldIsWatched(t *testing.T) {
	now, calls := int64(1), 0
	proc := newProcess(2, twoThreads, func() int64 { return now }, func() {
		calls++
		now += int64(hoggedYield) + 1
	})
	p := &Policy{proc: proc}
	p.Yield()
	p.Yield()
	if calls != 1 || p.Counters().Yields != 1 {
		t.Errorf("%d yields, %d counted; want 1", calls, p.Counters().Yields)
	}
	now += int64(pauseLeast) << 1
	p.Yield()
	if calls != 2 {
		t.Errorf("%d yields after the pause, want 2", calls)
	}
}

// While goroutines spin on all threads, they let other goroutines run. While a thread is free they do not.
func TestFullThreads(t *testing.T) {
	b := newBench(Balanced)
	runs, threads := 0, 2
	b.proc.run = func() { runs++ }
	b.proc.threads = func() int { return threads }
	b.pol.AddPair()
	spin := func() {
		runs = 0
		s := b.source(Socket).Spin(true)
		b.waste(&s, 400*time.Nanosecond)
	}
	if spin(); runs != 0 {
		t.Errorf("the only spinning goroutine of a process with two threads let others run %d times", runs)
	}
	other := b.source(Socket).Spin(false)
	if !other.Begin() {
		t.Fatal("the other end of the pair may not spin")
	}
	looks := int(b.pol.Budget() / (400 * time.Nanosecond) / time.Duration(kinds[Socket].looks))
	if spin(); runs < looks/2 || runs > looks {
		t.Errorf("two spinning goroutines on two threads let others run %d times in %d readings of the clock", runs, looks)
	}
	threads = 3
	if spin(); runs != 0 {
		t.Errorf("two spinning goroutines of a process with three threads let others run %d times", runs)
	}
	other.End()
	threads = 1
	if spin(); runs == 0 {
		t.Error("the goroutine that spins on the only thread did not let other goroutines run")
	}
}

// TestOneProcessor: a waiter yields the only processor of the process from the first look on. It parks if it may not, because another program has
// used its whole time slice, or because the system has no such call.
func TestOneProcessor(t *testing.T) {
	b := newBench(Balanced)
	b.proc.procs = 1
	src := b.source(Socket)
	s := src.Spin(true)
	if !s.Vain() || b.calls != 1 {
		t.Errorf("%d yields at the first look", b.calls)
	}
	s.Found()
	s.End()
	b.took = hoggedYield + 1
	if d, looks := b.waste(&s, time.Microsecond); b.calls != 2 || looks > 2*int(kinds[Socket].looks) {
		t.Errorf("after a yield that took a whole time slice: %d yields, %d looks in %v", b.calls, looks, d)
	}
	for range 3 {
		s := src.Spin(true)
		if d, looks := b.waste(&s, time.Microsecond); looks != 0 {
			t.Errorf("%d looks in %v while waiters do not yield", looks, d)
		}
	}
	b.took, b.clock = 300*time.Nanosecond, b.clock+int64(time.Second)
	s = src.Spin(true)
	if _, looks := b.waste(&s, time.Microsecond); looks == 0 || b.calls == 2 {
		t.Errorf("%d looks and %d yields after the time without yields", looks, b.calls-2)
	}
	b.proc.yield = nil
	if b.pol.MaySpin() || b.pol.Budget() != 0 {
		t.Error("waiters spin on the only processor and cannot yield it")
	}
}

// Yield does nothing in a mode in which waiters do not spin.
func TestYieldWithoutSpins(t *testing.T) {
	for mode, want := range map[Mode]int{Balanced: 1, Economy: 0} {
		b := newBench(mode)
		b.pol.Yield()
		if b.calls != want || b.pol.Counters().Yields != uint64(want) {
			t.Errorf("mode %s: %d yields, counted %d, want %d", mode, b.calls, b.pol.Counters().Yields, want)
		}
	}
}

// TestDearClock has a process whose clock is dear: waiters of mode Balanced do not spin there.
func TestDearClock(t *testing.T) {
	for _, c := range []struct {
		price time.Duration // of a reading
		mode  Mode
		spins bool
	}{
		{50 * time.Nanosecond, Balanced, true},
		{3 * time.Microsecond, Balanced, false},
		{3 * time.Microsecond, Latency, true},
		{50 * time.Nanosecond, Economy, false},
	} {
		now, reads := int64(1), 0
		proc := newProcess(2, twoThreads, func() int64 {
			if reads++; reads == clockReads { // another thread has the processor meanwhile
				now += int64(time.Millisecond)
			}
			now += int64(c.price)
			return now
		}, nil)
		proc.measureClock()
		p := &Policy{mode: c.mode, proc: proc}
		if got := p.MaySpin(); got != c.spins {
			t.Errorf("mode %s with a clock of %v: MaySpin is %v, want %v", c.mode, c.price, got, c.spins)
		}
	}
}
