package margo

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"cinnabar"
	"cinnabar/stats"
)

// DumpState writes the state of an engine to w, for people (margo_state_dump, HG_Diag_dump_counters): calls and transfers that are
// under way, requests that wait, are served or held, each with its name, peer and age; exposed memory, pools, providers, RPCs, and
// Mercury's counters. It shows the operation for which a program waits. Ages are exact to a tenth of a second. DumpState reads the parts
// one after the other while the engine works. The error is w's.
func DumpState(e *cinnabar.Engine, w io.Writer) error {
	s := e.Stats()
	list := []poolState{{"handlers in no pool", string(cinnabar.PoolFIFO), ownConfig(e).MaxHandlers, s.Handlers}}
	for _, p := range poolsOf(e) {
		c := p.Config()
		list = append(list, poolState{c.Name, string(c.Kind), c.Workers, s.Pools[c.Name]})
	}
	return writeState(w, e.State(-1).Inventory, list, s.Counters())
}

// ownConfig returns the configuration that holds the pools of e: its own, or that of the parent from which it has them.
func ownConfig(e *cinnabar.Engine) *cinnabar.Config {
	c := e.Config()
	for c.Parent != nil {
		c = c.Parent.Config()
	}
	return c
}

// poolsOf returns the pools of e with a name, in the order in which they were made. It leaves out a pool that is removed meanwhile.
func poolsOf(e *cinnabar.Engine) []*cinnabar.HandlerPool {
	var list []*cinnabar.HandlerPool
	for _, c := range ownConfig(e).Pools {
		if p := e.LookupPool(c.Name); p != nil {
			list = append(list, p)
		}
	}
	return list
}

// poolState is a line about a pool.
type poolState struct {
	name, kind string
	workers    int
	stats      stats.Pool
}

// writeState writes the lines of DumpState. The first of the pools stands for the handlers that are in no pool.
func writeState(w io.Writer, v stats.Inventory, pools []poolState, counters []stats.Counter) error {
	buf := bufio.NewWriter(w)
	d := &dump{w: tabwriter.NewWriter(buf, 0, 8, 2, ' ', 0)}
	mode := "for calls only"
	if v.Listening {
		mode = "listening"
	}
	d.line("engine %v, %s, for %v", v.Addr, mode, rounded(v.Age))
	d.section("calls under way", len(v.Calls))
	for _, x := range v.Calls {
		within := ""
		if x.Within != "" {
			within = "within " + x.Within
		}
		d.row(x.Op, x.RPC, x.Peer, rounded(x.Age), within)
	}
	d.section("transfers under way", len(v.Transfers))
	for _, x := range v.Transfers {
		d.row(x.Op, fmt.Sprintf("%d bytes", x.Bytes), x.Peer, rounded(x.Age))
	}
	d.section("requests", len(v.Requests))
	for _, x := range v.Requests {
		place := poolLabel(x.Pool)
		if x.State == "held" {
			place = "since its handler has returned"
		}
		d.row(x.State, x.RPC, x.Peer, rounded(x.Age), place)
	}
	count, bytes := 0, int64(0)
	for _, x := range v.Memory {
		count, bytes = count+x.Count, bytes+x.Bytes
	}
	d.line("memory exposed: %d, %d bytes", count, bytes)
	for _, x := range v.Memory {
		d.row(fmt.Sprintf("%d × %s", x.Count, x.Kind), x.Place)
	}
	d.section("pools", len(pools)-1)
	for _, p := range pools {
		d.row(p.name, p.kind, p.workers, fmt.Sprintf("running %d, waiting %d, queued %d, most %d, served %d, refused %d",
			p.stats.Running, p.stats.Waiting, p.stats.Queued, p.stats.Most, p.stats.Served, p.stats.Refused))
	}
	d.section("timers started", v.Delayed)
	d.section("providers", len(v.Providers))
	for _, p := range v.Providers {
		d.row(p.ID, p.Identity)
	}
	d.section("RPCs", len(v.RPCs))
	for _, r := range v.RPCs {
		name := r.Name
		if r.Provider != nil {
			name = fmt.Sprintf("%s@%d", r.Name, *r.Provider)
		}
		d.row(name, fmt.Sprintf("%#016x", r.ID), r.Flavor, poolLabel(r.Pool))
	}
	d.section("counters", len(counters))
	for _, c := range counters {
		d.row(c.Name, c.Value)
	}
	if err := d.w.Flush(); err != nil {
		return err
	}
	return buf.Flush()
}

// dump is a table under construction. Its writer returns the first error of all lines from Flush.
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

// rounded returns an age with as many digits as a reader needs.
func rounded(age time.Duration) time.Duration {
	if age > time.Second {
		return age.Round(time.Millisecond)
	}
	return age.Round(time.Microsecond)
}

func poolLabel(name string) string {
	if name == "" {
		return "in no pool"
	}
	return "in pool " + name
}
