package cinnabar

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"cinnabar/stats"
)

// DumpState writes down what the engine is doing, for people: calls and transfers that are under way, requests that
// wait, are served or held, each with its name, peer and age; exposed memory, pools, providers, and Mercury's counters
// (margo_state_dump, HG_Diag_dump_counters). It is what to look at when a program hangs. Ages are exact to a tenth of a
// second. The parts are looked at one after the other, while the engine goes on; the error is w's.
func (e *Engine) DumpState(w io.Writer) error {
	buf := bufio.NewWriter(w)
	d := &dump{w: tabwriter.NewWriter(buf, 0, 8, 2, ' ', 0)}
	mode := "for calls only"
	if e.Listening() {
		mode = "listening"
	}
	d.line("engine %v, %s, for %v", e.Addr(), mode, age(time.Since(e.born)))
	e.dumpDoing(d)
	e.dumpRequests(d)
	e.dumpMemory(d)
	e.dumpPools(d)
	e.dumpServices(d)
	e.dumpCounters(d)
	if err := d.w.Flush(); err != nil {
		return err
	}
	return buf.Flush()
}

// dump is a table under construction. Errors of the writer stay until the end.
type dump struct{ w *tabwriter.Writer }

func (d *dump) line(format string, args ...any) { _, _ = fmt.Fprintf(d.w, format+"\n", args...) }

// section starts a part with its number of rows.
func (d *dump) section(name string, n int) { d.line("%s: %d", name, n) }

// row writes cells under each other.
func (d *dump) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
	}
	d.line("  %s", strings.Join(texts, "\t"))
}

// age is d as people read it.
func age(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// dumpDoing writes what the program has under way.
func (e *Engine) dumpDoing(d *dump) {
	list := e.doing.all()
	slices.SortFunc(list, func(a, b doing) int { return cmp.Compare(a.began, b.began) })
	now := e.doing.clock.Exact()
	var calls, transfers []doing
	for _, x := range list {
		if x.proc != nil {
			calls = append(calls, x)
		} else {
			transfers = append(transfers, x)
		}
	}
	d.section("calls under way", len(calls))
	for _, x := range calls {
		within := ""
		if x.within != nil {
			within = "within " + x.within.label()
		}
		d.row(x.op, x.label(), x.ep, age(now-x.began), within)
	}
	d.section("transfers under way", len(transfers))
	for _, x := range transfers {
		d.row(x.op, fmt.Sprintf("%d bytes", x.bytes), x.ep, age(now-x.began))
	}
}

// dumpRequests writes what peers want of the process.
func (e *Engine) dumpRequests(d *dump) {
	type sighting struct{ state, label, peer, pool, age string }
	var list []sighting
	for _, p := range e.handlers.pools.cores() {
		for _, s := range p.Jobs() {
			of, label, peer := s.Work.(described).describe()
			if of == e {
				list = append(list, sighting{s.State.String(), label, peer, poolLabel(p.Name()), age(s.Age).String()})
			}
		}
	}
	held := e.handlers.held.all()
	d.section("requests", len(list)+len(held))
	for _, s := range list {
		d.row(s.state, s.label, s.peer, s.age, s.pool)
	}
	for _, o := range held {
		d.row("held", o.svc.label(), o.from, age(time.Since(o.since)), "since its handler has returned")
	}
}

func poolLabel(name string) string {
	if name == "" {
		return "in no pool"
	}
	return "in pool " + name
}

func (e *Engine) dumpMemory(d *dump) {
	list := e.exposed.all()
	count, bytes := 0, int64(0)
	for _, x := range list {
		count, bytes = count+x.count, bytes+x.bytes
	}
	d.line("memory exposed: %d, %d bytes", count, bytes)
	for _, x := range list {
		d.row(fmt.Sprintf("%d × %s", x.count, x.what), x.place())
	}
}

func (e *Engine) dumpPools(d *dump) {
	ps := e.Pools()
	d.section("pools", len(ps))
	d.row("handlers in no pool", PoolFIFO, e.handlers.pools.alive, poolText(stats.Pool(e.handlers.pools.other.Stats())))
	for _, p := range ps {
		d.row(p.Name(), p.cfg.Kind, p.cfg.Workers, poolText(p.Stats()))
	}
	d.line("timers started: %d", e.timers.count())
}

// poolText returns the numbers of a pool in one line.
func poolText(s stats.Pool) string {
	return fmt.Sprintf("running %d, waiting %d, queued %d, most %d, served %d, refused %d",
		s.Running, s.Waiting, s.Queued, s.Most, s.Served, s.Refused)
}

func (e *Engine) dumpServices(d *dump) {
	e.mu.Lock()
	list := make([]*Provider, 0, len(e.providers))
	for _, p := range e.providers {
		list = append(list, p)
	}
	e.mu.Unlock()
	slices.SortFunc(list, func(a, b *Provider) int { return cmp.Compare(a.id, b.id) })
	d.section("providers", len(list))
	for _, p := range list {
		d.row(p.id, p.identity)
	}
	entries := e.handlers.table.Entries()
	d.section("RPCs", len(entries))
	for _, x := range entries {
		d.row(x.Value.label(), fmt.Sprintf("%#016x", x.ID), x.Value.proc.flavor, poolLabel(x.Value.pool.Name()))
	}
}

func (e *Engine) dumpCounters(d *dump) {
	s := e.Stats()
	list := s.Counters()
	d.section("counters", len(list))
	for _, c := range list {
		d.row(c.Name, c.Value)
	}
}
