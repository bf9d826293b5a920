package main

import (
	"errors"
	"fmt"

	"cinnabar/bench/internal/record"
)

// result returns the result of a path; nil: it was not measured.
func (s *setting) result(c *benchCase, path, load string) *record.Result {
	for i := range s.results {
		r := &s.results[i]
		if r.Op == c.op && r.Transport == c.transport && r.Path == path && r.Load == load && r.Size == int64(c.size) &&
			r.Inflight == c.inflight && r.Clients == c.clients && len(r.Rounds) > 0 {
			return r
		}
	}
	return nil
}

// verdict is one goal and its figure.
type verdict struct {
	title string
	got   float64
	known bool
	bar   float64
	least bool // got must be at least bar; otherwise at most
	unit  string
}

func (v verdict) met() bool {
	if v.least {
		return v.known && v.got >= v.bar
	}
	return v.known && v.got <= v.bar
}

func (v verdict) String() string {
	state, figure := "missed", fmt.Sprintf("%.3f", v.got)
	switch {
	case !v.known:
		state, figure = "not measured", "-"
	case v.met():
		state = "met"
	}
	bound := "at most"
	if v.least {
		bound = "at least"
	}
	return fmt.Sprintf("%-12s  %s: %s %s, %s %g", state, v.title, figure, v.unit, bound, v.bar)
}

// Goals.
const (
	barCallTCP, barCallSM     = 1.0, 0.8  // of the time of Mercury's program
	barFlightTCP, barFlightSM = 0.8, 0.65 // the same with 64 calls in flight
	barBulk                   = 1.0       // of its rate
	barBusy                   = 1.3       // of its time, both beside a busy process
	barTail                   = 5.0       // p99 divided by p50, of one client
	barFair                   = 5.0       // p99 of N clients divided by N/2 times the p50 of one
	barIdle                   = 0.1       // percent of a processor
)

// against compares a figure with that of Mercury's program.
func (s *setting) against(c *benchCase, load string, figure func(record.Round) float64) (ratio float64, known bool) {
	ours, theirs := s.result(c, pathOurs, load), s.result(c, pathMercury, load)
	if ours == nil || theirs == nil {
		return 0, false
	}
	a, ok := ours.Median(figure)
	b, there := theirs.Median(figure)
	return a / max(b, 1e-9), ok && there
}

// callBar returns the goal of a case of calls by one client, and false if it has none.
func callBar(c *benchCase) (float64, bool) {
	switch {
	case c.size != 64 || c.clients != 1:
		return 0, false
	case c.transport == overTCP && c.inflight == 1:
		return barCallTCP, true
	case c.transport == overTCP:
		return barFlightTCP, true
	case c.inflight == 1:
		return barCallSM, true
	}
	return barFlightSM, true
}

// verdicts compares the figures of the cases with the goals.
func (s *setting) verdicts(cases []*benchCase) (list []verdict) {
	for _, c := range cases {
		switch {
		case c.curve || c.op == opMessage:
		case c.bulk():
			got, known := s.against(c, record.Quiet, rateOf)
			list = append(list, verdict{title: c.name(), got: got, known: known, bar: barBulk, least: true, unit: "of Mercury's rate"})
		case c.clients > 1:
			got, known := s.fairness(c)
			list = append(list, verdict{title: c.name(), got: got, known: known, bar: barFair, unit: fmt.Sprintf("times p50 of one client times %d", c.clients/2)})
		default:
			list = append(list, s.callVerdicts(c)...)
		}
	}
	for _, transport := range []string{overTCP, overSM} {
		v := verdict{title: "an engine over " + transport + " without traffic, half of a process with two", bar: barIdle, unit: "% of a processor"}
		for _, i := range s.idle {
			if i.Transport == transport {
				v.got, v.known = i.Percent/2, true
			}
		}
		list = append(list, v)
	}
	return list
}

func (s *setting) callVerdicts(c *benchCase) (list []verdict) {
	if bar, ok := callBar(c); ok {
		got, known := s.against(c, record.Quiet, meanOf)
		list = append(list, verdict{title: c.name(), got: got, known: known, bar: bar, unit: "of Mercury's time"})
	}
	if c.inflight == 1 {
		v := verdict{title: c.name() + ", p99", bar: barTail, unit: "times p50"}
		if r := s.result(c, pathOurs, record.Quiet); r != nil {
			p50, ok := r.Median(p50Of)
			p99, there := r.Median(p99Of)
			v.got, v.known = p99/max(p50, 1e-9), ok && there
		}
		list = append(list, v)
	}
	got, known := s.against(c, record.Busy, meanOf)
	return append(list, verdict{title: c.name() + ", beside a busy process", got: got, known: known, bar: barBusy, unit: "of Mercury's time"})
}

// fairness returns the p99 of the clients of c in proportion to half the time that a call of one client takes, times the number of clients.
func (s *setting) fairness(c *benchCase) (ratio float64, known bool) {
	one := *c
	one.clients = 1
	many, alone := s.result(c, pathOurs, record.Quiet), s.result(&one, pathOurs, record.Quiet)
	if many == nil || alone == nil {
		return 0, false
	}
	p99, ok := many.Median(p99Of)
	p50, there := alone.Median(p50Of)
	return p99 / max(p50*float64(c.clients)/2, 1e-9), ok && there
}

// judge prints a line for each goal.
func (s *setting) judge() error {
	if _, err := fmt.Fprintln(s.out, "\n# goals"); err != nil {
		return err
	}
	worst := 0.0
	for _, r := range s.results {
		worst = max(worst, r.Others, r.Stolen)
	}
	if worst > disturbance {
		if _, err := fmt.Fprintf(s.out, "# the machine was not quiet: others used up to %.2f processors during a case\n", worst); err != nil {
			return err
		}
	}
	all := true
	for _, v := range s.verdicts(allCases()) {
		all = all && v.met()
		if _, err := fmt.Fprintln(s.out, v); err != nil {
			return err
		}
	}
	if !all {
		return errors.New("a goal is missed, or was not measured")
	}
	return nil
}
