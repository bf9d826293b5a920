package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"cinnabar/bench/internal/record"
)

// benchCase is one kind of work, done by each of its paths.
type benchCase struct {
	op        string // "rate", "bw-read", "bw-write", "message"
	transport string // "ofi+tcp", "na+sm"
	size      int    // bytes
	inflight  int
	clients   int
	curve     bool // for charts: measured with -curves only, without a busy process beside
	paths     []path
}

// name returns the title of the case's table, in which -case looks for its text.
func (c *benchCase) name() string {
	name := fmt.Sprintf("%s %s %d bytes, %d in flight", c.transport, c.op, c.size, c.inflight)
	if c.clients > 1 {
		name += fmt.Sprintf(" of each of %d clients", c.clients)
	}
	return name
}

// bulk reports whether the case is about a rate of bytes and not about the time of a call.
func (c *benchCase) bulk() bool { return strings.HasPrefix(c.op, "bw-") }

// path is one way to do the work: a server and a client, as command lines. In the arguments of the client, ADDRESS, DURATION and LOOPS
// are replaced.
type path struct {
	name   string
	server []string
	ready  string // the beginning of the line with which the server announces that it serves
	client []string
	loops  int // for each second, of a program that takes a number of loops and not a time
	parse  func(text string) (record.Round, error)
}

// clientArgs returns the client's arguments for a measurement of a time.
func (p *path) clientArgs(address string, d time.Duration) []string {
	const fewest = 10 // beside Mercury's own loops for warming up
	loops := max(fewest, int(float64(p.loops)*d.Seconds()))
	fill := strings.NewReplacer("ADDRESS", address, "DURATION", d.String(), "LOOPS", strconv.Itoa(loops))
	var args []string
	for _, a := range p.client[1:] {
		args = append(args, fill.Replace(a))
	}
	return args
}

// available reports whether the programs of the path are there: Mercury's must be in PATH, the others are built.
func (p *path) available() bool {
	if !strings.HasPrefix(p.client[0], "hg_") && !strings.HasPrefix(p.client[0], "na_") {
		return true
	}
	_, err := exec.LookPath(p.client[0])
	return err == nil
}

// Names of paths.
const (
	pathOurs    = "cinnabar"
	pathMercury = "mercury"
	pathGRPC    = "grpc"
	pathTCP     = "tcp"
)

// Transports and operations.
const (
	overTCP = "ofi+tcp"
	overSM  = "na+sm"

	opRate    = "rate"
	opRead    = "bw-read"
	opWrite   = "bw-write"
	opMessage = "message"
)

// allCases returns the cases in the order of their measurement.
func allCases() []*benchCase {
	list := []*benchCase{
		rateCase(overTCP, 64, 1, 50000), rateCase(overTCP, 64, 64, 1500), rateCase(overTCP, 1024, 1, 50000),
		bulkCase(overTCP, opRead, 64<<10, 15000), bulkCase(overTCP, opRead, 1<<20, 1000), bulkCase(overTCP, opRead, 16<<20, 60),
		bulkCase(overTCP, opWrite, 64<<10, 15000), bulkCase(overTCP, opWrite, 1<<20, 1000), bulkCase(overTCP, opWrite, 16<<20, 60),
		clientsCase(overTCP, 16), clientsCase(overTCP, 128),

		pingCase(64, 20000),
		rateCase(overSM, 64, 1, 80000), rateCase(overSM, 64, 64, 3000),
		bulkCase(overSM, opRead, 64<<10, 20000), bulkCase(overSM, opRead, 1<<20, 3000), bulkCase(overSM, opRead, 16<<20, 100),
		bulkCase(overSM, opWrite, 64<<10, 20000), bulkCase(overSM, opWrite, 1<<20, 3000), bulkCase(overSM, opWrite, 16<<20, 100),
		clientsCase(overSM, 16), clientsCase(overSM, 128),
	}
	for _, size := range []int{8, 512, 2048} {
		list = append(list, asCurve(rateCase(overTCP, size, 1, 50000)))
	}
	for _, size := range []int{4 << 10, 16 << 10, 256 << 10, 4 << 20} {
		loops := min(30000, 1<<30/size)
		list = append(list, asCurve(bulkCase(overTCP, opRead, size, loops)), asCurve(bulkCase(overTCP, opWrite, size, loops)))
	}
	for _, n := range []int{4, 64, 512} {
		list = append(list, asCurve(clientsCase(overTCP, n)))
	}
	return list
}

func asCurve(c *benchCase) *benchCase {
	c.curve = true
	return c
}

// mercuryOptions are the options of Mercury's programs for a transport. Those over ofi+tcp are for loopback.
func mercuryOptions(transport string) []string {
	if transport == overSM {
		return []string{"-c", "na", "-p", "sm"}
	}
	return []string{"-c", "ofi", "-p", "tcp", "-H", "lo"}
}

// mercury is a client of Mercury's, which writes and reads the port file by which it finds its server. It makes about as many loops in a
// second. While it measures na+sm nothing else on the machine may use na+sm, because its server removes the files of all others when it starts.
func mercury(transport, program string, size, inflight, loops int, more ...string) path {
	z, options := strconv.Itoa(size), mercuryOptions(transport)
	return path{
		name: pathMercury, server: append([]string{"hg_perf_server"}, options...), ready: "# Waiting",
		client: append(append(append([]string{program}, options...), "-y", z, "-z", z, "-x", strconv.Itoa(inflight), "-l", "LOOPS"), more...),
		loops:  loops, parse: parseMercury,
	}
}

func ours(transport, op string, args ...string) path {
	address, ready := "ofi+tcp://127.0.0.1:0", "ofi+tcp"
	if transport == overSM {
		address, ready = overSM, overSM
	}
	return path{
		name: pathOurs, server: []string{"cinnabar", "perf", "serve", "--once", address}, ready: ready,
		client: append([]string{"cinnabar", "perf", op, "ADDRESS", "--json", "--duration", "DURATION"}, args...), parse: parseJSON,
	}
}

// rateCase is calls of a size, with so many in flight.
func rateCase(transport string, size, inflight, loops int) *benchCase {
	z, n := strconv.Itoa(size), strconv.Itoa(inflight)
	c := &benchCase{
		op: opRate, transport: transport, size: size, inflight: inflight, clients: 1,
		paths: []path{mercury(transport, "hg_rate", size, inflight, loops), ours(transport, opRate, "--size", z, "--inflight", n)},
	}
	if transport == overTCP {
		c.paths = append(c.paths, path{
			name: pathGRPC, server: []string{"grpcunary", "serve"}, ready: "127.",
			client: []string{"grpcunary", "rate", "ADDRESS", "-size", z, "-inflight", n, "-duration", "DURATION"}, parse: parseJSON,
		})
	}
	return c
}

// clientsCase is calls of 64 bytes by several clients of one server, one at a time each.
func clientsCase(transport string, clients int) *benchCase {
	return &benchCase{
		op: opRate, transport: transport, size: 64, inflight: 1, clients: clients,
		paths: []path{ours(transport, opRate, "--size", "64", "--clients", strconv.Itoa(clients))},
	}
}

// bulkCase is one transfer at a time: of Mercury's and of ours a call each, over plain TCP a request each.
func bulkCase(transport, op string, size, loops int) *benchCase {
	z := strconv.Itoa(size)
	c := &benchCase{
		op: op, transport: transport, size: size, inflight: 1, clients: 1,
		paths: []path{mercury(transport, "hg_"+strings.ReplaceAll(op, "-", "_"), size, 1, loops, "-w", "1"), ours(transport, op, "--size", z)},
	}
	if transport == overTCP {
		direction := "push"
		if op == opRead { // the data goes to the client
			direction = "pull"
		}
		c.paths = append(c.paths, path{
			name: pathTCP, server: []string{"rawtcp", "serve"}, ready: "127.",
			client: []string{"rawtcp", direction, "ADDRESS", "-size", z, "-duration", "DURATION"}, parse: parseJSON,
		})
	}
	return c
}

// pingCase is messages of the bare transport over na+sm, one at a time, there and back: half of that, as na_lat counts.
func pingCase(size, loops int) *benchCase {
	z := strconv.Itoa(size)
	return &benchCase{
		op: opMessage, transport: overSM, size: size, inflight: 1, clients: 1,
		paths: []path{
			{
				name: pathMercury, server: []string{"na_perf_server", "-p", "sm"}, ready: "# Waiting",
				client: []string{"na_lat", "-p", "sm", "-y", z, "-z", z, "-l", "LOOPS"}, loops: loops, parse: parseLatency,
			},
			{
				name: pathOurs, server: []string{"smping", "serve"}, ready: overSM,
				client: []string{"smping", "ping", "ADDRESS", "-size", z, "-duration", "DURATION"}, parse: parseJSON,
			},
		},
	}
}
