package main

import (
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// benchCase is one kind of work, done by each of its paths.
type benchCase struct {
	name  string
	unit  string
	value func(figure) float64
	paths []path
}

// path is one way to do the work: a server and a client, as command lines. In the client's, ADDRESS, DURATION and LOOPS
// are replaced.
type path struct {
	name   string
	server []string
	ready  string // how the line begins with which the server says that it serves
	client []string
	loops  int // for each second, of a program that takes a number of loops and not a time
	parse  func(text string) (figure, error)
}

// clientArgs are the client's arguments for a measurement of a time.
func (p path) clientArgs(address string, d time.Duration) []string {
	const fewest = 10 // beside Mercury's own loops for warming up
	loops := max(fewest, int(float64(p.loops)*d.Seconds()))
	fill := strings.NewReplacer("ADDRESS", address, "DURATION", d.String(), "LOOPS", strconv.Itoa(loops))
	var args []string
	for _, a := range p.client[1:] {
		args = append(args, fill.Replace(a))
	}
	return args
}

// there reports whether the path's programs can be had: ours are built, Mercury's must be in PATH.
func (p path) there() bool {
	if !strings.HasPrefix(p.client[0], "hg_") && !strings.HasPrefix(p.client[0], "na_") {
		return true
	}
	_, err := exec.LookPath(p.client[0])
	return err == nil
}

var cases = []benchCase{
	rateCase(64, 1, 50000),
	rateCase(64, 64, 1500),
	rateCase(1024, 1, 50000),
	bulkCase("bw-read", 1<<20, 1000),
	bulkCase("bw-read", 16<<20, 60),
	bulkCase("bw-write", 1<<20, 1000),
	bulkCase("bw-write", 16<<20, 60),

	pingSM(64, 20000),
	rateSM(64, 1, 80000),
	rateSM(64, 64, 3000),
	bulkSM("bw-read", 64<<10, 20000),
	bulkSM("bw-read", 1<<20, 3000),
	bulkSM("bw-read", 16<<20, 100),
	bulkSM("bw-write", 64<<10, 20000),
	bulkSM("bw-write", 1<<20, 3000),
	bulkSM("bw-write", 16<<20, 100),
}

// mercuryServer starts Mercury's server on loopback; it writes the port file that its clients read.
var mercuryServer = []string{"hg_perf_server", "-c", "ofi", "-p", "tcp", "-H", "lo"}

func ours(op string, args ...string) path {
	return path{
		name: "cinnabar", server: []string{"cinnabar", "perf", "serve", "--once", "ofi+tcp://127.0.0.1:0"}, ready: "ofi+tcp",
		client: append([]string{"cinnabar", "perf", op, "ADDRESS", "--json", "--duration", "DURATION"}, args...), parse: parseJSON,
	}
}

// mercury is a client of Mercury's. It makes about as many loops in a second.
func mercury(program, size, inflight string, loops int, more ...string) path {
	args := append([]string{program, "-c", "ofi", "-p", "tcp", "-H", "lo", "-y", size, "-z", size, "-x", inflight, "-l", "LOOPS"}, more...)
	return path{name: "mercury", server: mercuryServer, ready: "# Waiting", client: args, loops: loops, parse: parseMercury}
}

// rateCase is calls of a size, with so many in flight.
func rateCase(size, inflight, loops int) benchCase {
	z, n := strconv.Itoa(size), strconv.Itoa(inflight)
	return benchCase{
		name: fmt.Sprintf("rate %d bytes, %d in flight", size, inflight), unit: "usec/call",
		value: func(f figure) float64 { return f.Usec },
		paths: []path{
			mercury("hg_rate", z, n, loops),
			ours("rate", "--size", z, "--inflight", n),
			{
				name: "grpc", server: []string{"grpcunary", "serve"}, ready: "127.",
				client: []string{"grpcunary", "rate", "ADDRESS", "-size", z, "-inflight", n, "-duration", "DURATION"}, parse: parseJSON,
			},
		},
	}
}

// bulkCase is one transfer at a time: of Mercury's and of ours a call each, over plain TCP a request each.
func bulkCase(op string, size, loops int) benchCase {
	z := strconv.Itoa(size)
	tcp := "push"
	if op == "bw-read" { // the data goes to the client
		tcp = "pull"
	}
	return benchCase{
		name: fmt.Sprintf("%s %d MiB", op, size>>20), unit: "MiB/s",
		value: func(f figure) float64 { return f.MiB },
		paths: []path{
			mercury("hg_"+strings.ReplaceAll(op, "-", "_"), z, "1", loops, "-w", "1"),
			{
				name: "tcp", server: []string{"rawtcp", "serve"}, ready: "127.",
				client: []string{"rawtcp", tcp, "ADDRESS", "-size", z, "-duration", "DURATION"}, parse: parseJSON,
			},
			ours(op, "--size", z),
		},
	}
}

// parseMercury reads the table of Mercury's programs: size, then a rate and a time of a call or a transfer.
func parseMercury(text string) (figure, error) {
	var f figure
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 || strings.HasPrefix(line, "#") {
			continue
		}
		var err error
		if f.MiB, err = strconv.ParseFloat(fields[1], 64); err != nil {
			return f, err
		}
		f.Usec, err = strconv.ParseFloat(fields[2], 64)
		return f, err
	}
	return f, fmt.Errorf("no result in %q", text)
}

// print writes the medians, their spread, and the ratio to the first path that was there.
func (c benchCase) print(w io.Writer, results [][]float64) error {
	if _, err := fmt.Fprintf(w, "\n# %s\n", c.name); err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(table, "path\tmedian %s\tlowest\thighest\tratio\t\n", c.unit)
	first := 0.0
	for i, r := range results {
		if len(r) == 0 {
			_, _ = fmt.Fprintf(table, "%s\tnot there\t\t\t\t\n", c.paths[i].name)
			continue
		}
		slices.Sort(r)
		median := (r[(len(r)-1)/2] + r[len(r)/2]) / 2
		if first == 0 {
			first = median
		}
		_, _ = fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t%.3f\t\n", c.paths[i].name, median, r[0], r[len(r)-1], median/first)
	}
	return table.Flush()
}
