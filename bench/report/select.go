package main

import (
	"cmp"
	"fmt"
	"slices"

	"cinnabar/bench/internal/record"
)

// names are the paths of bench/rpc as charts call them, in the order of legends.
var names = []struct{ path, text string }{
	{"cinnabar", "cinnabar"}, {"mercury", "Mercury (C)"}, {"grpc", "gRPC-Go"}, {"tcp", "plain TCP"},
}

// charts selects the figures of every chart.
func charts(f *record.File, source string) []*chart {
	m := f.Machine
	about := fmt.Sprintf("%s, commit %s, %s", source, m.Commit, m.Date)
	machine := fmt.Sprintf("%s, %d processors, %s, %s", cmp.Or(m.Processor, "unknown processor"), m.Processors, m.System, m.Go)
	list := []*chart{
		bySize(f, "latency-tcp.svg", "Time of a call over ofi+tcp, one in flight", "rate", "ofi+tcp"),
		bySize(f, "bandwidth-read-tcp.svg", "The server pushes to the client over ofi+tcp, one transfer at a time", "bw-read", "ofi+tcp"),
		bySize(f, "bandwidth-write-tcp.svg", "The server pulls from the client over ofi+tcp, one transfer at a time", "bw-write", "ofi+tcp"),
		bySize(f, "bandwidth-read-sm.svg", "The server pushes to the client over na+sm, one transfer at a time", "bw-read", "na+sm"),
		bySize(f, "bandwidth-write-sm.svg", "The server pulls from the client over na+sm, one transfer at a time", "bw-write", "na+sm"),
		underLoad(f),
		byClients(f, "clients-tcp.svg", "ofi+tcp"),
		byClients(f, "clients-sm.svg", "na+sm"),
		copies(f),
	}
	for _, c := range list {
		c.source = []string{about, machine}
	}
	return list
}

// pointOf returns the median, the least and the greatest value of a figure over the rounds of r, and false if no round has it.
func pointOf(r *record.Result, x float64, figure func(record.Round) float64) (point, bool) {
	median, ok := r.Median(figure)
	p := point{x: x, y: median, low: median, high: median}
	for _, round := range r.Rounds {
		if v := figure(round); v > 0 {
			p.low, p.high = min(p.low, v), max(p.high, v)
		}
	}
	return p, ok
}

func sortPoints(list []point) []point {
	slices.SortFunc(list, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	return list
}

// bySize is the figures of one operation over its size, a line for each path.
func bySize(f *record.File, file, title, op, transport string) *chart {
	c := &chart{file: file, title: title, xLabel: "bytes", xText: sizeText, yLabel: "µs", yText: numberText}
	figure := func(r record.Round) float64 { return r.Usec }
	if op != "rate" {
		c.yLabel, figure = "MiB/s", func(r record.Round) float64 { return r.MiB }
	}
	for _, n := range names {
		s := series{name: n.text}
		for i := range f.Results {
			r := &f.Results[i]
			if r.Op != op || r.Transport != transport || r.Path != n.path || r.Load != record.Quiet || r.Inflight != 1 || r.Clients != 1 || r.Size == 0 {
				continue
			}
			if p, ok := pointOf(r, float64(r.Size), figure); ok {
				s.points = append(s.points, p)
			}
		}
		c.add(s)
	}
	return c
}

// byClients is the cost of a call of cinnabar over the number of clients of one server.
func byClients(f *record.File, file, transport string) *chart {
	c := &chart{file: file, title: "Calls of 64 bytes by several clients of one server over " + transport, xLabel: "clients", xText: numberText, yLabel: "µs", yText: numberText}
	for _, line := range []struct {
		name   string
		figure func(record.Round) float64
	}{
		{"time divided by all calls", func(r record.Round) float64 { return r.Usec }},
		{"p50 of a call", func(r record.Round) float64 { return r.P50 }},
		{"p99 of a call", func(r record.Round) float64 { return r.P99 }},
	} {
		s := series{name: line.name}
		for i := range f.Results {
			r := &f.Results[i]
			if r.Op != "rate" || r.Transport != transport || r.Path != "cinnabar" || r.Load != record.Quiet || r.Inflight != 1 || r.Size != 64 {
				continue
			}
			if p, ok := pointOf(r, float64(r.Clients), line.figure); ok {
				s.points = append(s.points, p)
			}
		}
		c.add(s)
	}
	return c
}

// underLoad is the 99th percentile of calls of each kind, with nothing beside and with a busy process. Mercury's programs print none.
func underLoad(f *record.File) *chart {
	c := &chart{file: "tail.svg", title: "99th percentile of calls of 64 bytes", xLabel: "program or network, calls in flight", yLabel: "µs", yText: numberText}
	loads := []struct{ load, name string }{{record.Quiet, "nothing beside"}, {record.Busy, "one busy process beside"}}
	list := make([]series, len(loads))
	for i, load := range loads {
		list[i].name = load.name
	}
	for _, k := range []struct {
		transport, path, text string
		inflight              int
	}{
		{"ofi+tcp", "cinnabar", "ofi+tcp, 1", 1}, {"ofi+tcp", "cinnabar", "ofi+tcp, 64", 64}, {"ofi+tcp", "grpc", "gRPC-Go, 1", 1}, {"ofi+tcp", "grpc", "gRPC-Go, 64", 64},
		{"na+sm", "cinnabar", "na+sm, 1", 1}, {"na+sm", "cinnabar", "na+sm, 64", 64},
	} {
		group := float64(len(c.groups))
		measured := false
		for i := range f.Results {
			r := &f.Results[i]
			if r.Op != "rate" || r.Transport != k.transport || r.Path != k.path || r.Inflight != k.inflight || r.Clients != 1 || r.Size != 64 {
				continue
			}
			for n, load := range loads {
				if p, ok := pointOf(r, group, func(x record.Round) float64 { return x.P99 }); ok && r.Load == load.load {
					list[n].points = append(list[n].points, p)
					measured = true
				}
			}
		}
		if measured {
			c.groups = append(c.groups, k.text)
		}
	}
	for _, s := range list {
		c.add(s)
	}
	return c
}

// copiers are the paths of bench/files, and their names in the chart.
var copiers = []struct{ path, text string }{
	{"cinnabar", "cinnabar"}, {"tar", "tar over TCP"}, {"rsync", "rsync"}, {"copy", "plain copy on the disk"}, {"tcp", "plain copy over TCP"},
}

// copies returns the chart of the rate of copies on one disk over the size of the files, with a line for each program.
func copies(f *record.File) *chart {
	c := &chart{file: "files.svg", title: "Copying files on one disk: a tree of small ones, and a large one", xLabel: "bytes of a file", xText: sizeText, yLabel: "MiB/s", yText: numberText}
	for _, n := range copiers {
		s := series{name: n.text}
		for i := range f.Results {
			r := &f.Results[i]
			if r.Path != n.path || r.Op != "tree" && r.Op != "large" {
				continue
			}
			if p, ok := pointOf(r, float64(r.Size), func(r record.Round) float64 { return r.MiB }); ok {
				s.points = append(s.points, p)
			}
		}
		sortPoints(s.points)
		c.add(s)
	}
	return c
}
