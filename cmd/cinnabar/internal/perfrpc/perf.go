// Package perfrpc is the command perf with the sub-commands that measure calls and bulk transfers, on the wire of Mercury's perf programs.
package perfrpc

import (
	"math"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/progress"
)

// Limits of perf's options.
const (
	maxInflight = 4096    // calls at a time of one client
	maxCalls    = 10_000  // calls at a time of all clients
	maxSize     = 1 << 30 // bytes of one transfer
	maxBlock    = 1 << 29 // bytes of one call's block: an argument of 1 GiB has no room for its length
	maxMemory   = 1 << 36 // bytes of the clients' blocks for transfers together
	maxClients  = 10_000
	maxServers  = 256
)

// defaultTimeout is how long the other side may take for one call, unless --timeout says otherwise.
const defaultTimeout = 30 * time.Second

// options are the options of perf rate, bw-read and bw-write.
type options struct {
	addresses     []string
	portFile      string
	sizeText      string
	sizes         []int64 // rising
	inflight      int
	count         int // iterations of each size; 0: as many as duration allows
	transfers     int // of one call
	duration      time.Duration
	timeout       time.Duration // for one call
	clients       int           // at once, each with an engine
	interval      time.Duration // between lines on standard error; 0: none
	barrier       bool          // the clock stops when the last client has ended
	megabytes     bool          // 10^6 bytes instead of 2^20 in the table
	verify        bool
	bidirectional bool
	keep          bool
	json          bool
	progress      string // mode of the engines' waits
	device        cli.RPCDevice
	dear          dearWakeUps
}

// dearWakeUps makes wake-ups of this process as dear as those of another machine, for bench/rpc.
type dearWakeUps struct{ late, toll time.Duration }

// register adds the options, which are hidden, because a measurement with them is not one of this machine.
func (d *dearWakeUps) register(f *pflag.FlagSet) {
	const late, toll = "late", "toll"
	f.DurationVar(&d.late, late, 0, "for tests: time that each goroutine computes after a wake-up, before it looks")
	f.DurationVar(&d.toll, toll, 0, "for tests: time that each signal to another process takes in addition")
	for _, name := range []string{late, toll} {
		if err := f.MarkHidden(name); err != nil {
			panic(err) // the option was registered above
		}
	}
}

// begin makes wake-ups dear until the function that it returns is called.
func (d *dearWakeUps) begin() (end func(), err error) {
	if d.late < 0 || d.toll < 0 {
		return nil, cli.Usagef("--late %v and --toll %v must not be below 0", d.late, d.toll)
	}
	if *d == (dearWakeUps{}) {
		return func() {}, nil
	}
	progress.MakeWakeUpsDear(d.late, d.toll, true)
	return func() { progress.MakeWakeUpsDear(0, 0, false) }, nil
}

// registerProgress adds the option for [cinnabar.Progress.Mode].
func registerProgress(f *pflag.FlagSet, mode *string) {
	f.StringVar(mode, "progress", string(progress.Balanced), "mode of waits: balanced polls for at most 500 µs and then sleeps, latency polls for 10 ms and then sleeps, economy sleeps at once")
}

// checkProgress checks the value of the option that registerProgress adds.
func checkProgress(mode string) error {
	if err := progress.Mode(mode).Check(runtime.NumCPU()); err != nil {
		return cli.Usagef("--progress: %w", err)
	}
	return nil
}

func (o *options) largest() int64 { return o.sizes[len(o.sizes)-1] }

// New returns the command perf with those sub-commands that measure calls and bulk transfers.
func New(s cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "perf",
		SuggestFor: []string{"bench", "benchmark"},
		Short:      "Measure RPCs and bulk transfers, also with Mercury's programs",
		Long: `perf measures calls and bulk transfers between two processes. It speaks the protocol of
Mercury's perf programs: perf serve stands in for hg_perf_server, perf rate for hg_rate,
perf bw-read and bw-write for hg_bw_read and hg_bw_write, each against the C programs or
each other. perf verbs measures RDMA operations, with two sides of its own.`,
	}
	cmd.AddCommand(
		newServe(s),
		newClient(s, job{op: "rate", prepare: prepareRate, most: maxBlock}, "1..4096", "Calls per second, and time per call (hg_rate)"),
		newClient(s, job{op: "bw-read", prepare: prepareBwRead, least: 1, most: maxSize}, "4KiB..16MiB", "Server pushes into this process: bandwidth (hg_bw_read)"),
		newClient(s, job{op: "bw-write", prepare: prepareBwWrite, least: 1, most: maxSize}, "4KiB..16MiB", "Server pulls from this process: bandwidth (hg_bw_write)"),
	)
	return cmd
}

func newServe(s cli.Streams) *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve ADDRESS",
		Short: "Serve perf's clients, and Mercury's (hg_perf_server)",
		Long: `serve listens at ADDRESS, such as tcp, ofi+tcp://127.0.0.1:0 or ofi+verbs, prints the address that
clients need, and serves until it is interrupted; with --once until a client is done, as
hg_perf_server does. An ADDRESS without a host is
the loopback address; for other machines, give an ADDRESS with one of this machine's.

With --classes there are several servers in this process, at as many addresses, which count up
from a port that ADDRESS names. Clients spread their calls over them.`,
		Example: "  cinnabar perf serve ofi+tcp://127.0.0.1:7000\n  cinnabar perf serve --once --port-file port.cfg tcp",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o.address = args[0]
			if o.classes < 1 || o.classes > maxServers {
				return cli.Usagef("--classes %d is not between 1 and %d", o.classes, maxServers)
			}
			if o.timeout <= 0 {
				return cli.Usagef("--timeout %v must be longer than 0", o.timeout)
			}
			if err := checkProgress(o.progress); err != nil {
				return err
			}
			if o.memory, err = cli.ParseSize("--memory", o.memoryText, 1, math.MaxInt64/2); err != nil {
				return err
			}
			end, err := o.dear.begin()
			if err != nil {
				return err
			}
			defer end()
			return runServe(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.portFile, "port-file", "", "also write the addresses to this file, from which Mercury's programs read them (port.cfg)")
	f.IntVar(&o.classes, "classes", 1, "servers in this process, each with an address")
	f.BoolVar(&o.once, "once", false, "end when a client is done")
	f.BoolVar(&o.verify, "verify", false, "check the data of rate's calls")
	f.BoolVar(&o.bidirectional, "bidirectional", false, "send the data of rate's calls back; the client needs the option too")
	f.BoolVar(&o.query, "allow-query", false, "let any process ask for a description of this one (cinnabar query)")
	f.StringVar(&o.memoryText, "memory", "4GiB", "memory for all clients' transfers together")
	cli.AutoSMFlag(f, &o.autoSM, cli.AutoSMServer)
	cli.TimeoutFlag(f, &o.timeout, defaultTimeout, "for the transfers of one call; a client that is frozen ends them with an error")
	o.limits.Register(f)
	registerProgress(f, &o.progress)
	o.device.RegisterServer(f, s)
	o.dear.register(f)
	return cmd
}

func newClient(s cli.Streams, job job, sizes, short string) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   job.op + " [ADDRESS...]",
		Short: short,
		Long: short + `.

ADDRESS is a line that the server has printed: cinnabar perf serve, or the port.cfg that Mercury's
hg_perf_server writes. Calls take turns over several addresses. Each size is warmed up before
it is measured. Mercury's servers, and perf serve --once, end when the client is done, unless
it has --keep.

--clients runs up to 10,000 clients in this process, as mpirun starts several processes of
Mercury's programs. They begin each size together. The rates of all clients are added up, or,
with --barrier, all calls are divided by the time until the last client has ended. A line of
their own has the rates of the slowest and the fastest client, because percentiles of all calls
do not show a client that starves. On Linux, more than 1,000 clients on the loopback interface
use several addresses (127.0.0.2 and on), because a server gives one host only a part of its
connections. The command reckons with five open files for each client of one server, and
refuses more clients than ulimit -n permits.`,
		Example: "  cinnabar perf " + job.op + " ofi+tcp://127.0.0.1:7000\n  cinnabar perf " + job.op + " --size 64KiB --duration 5s ofi+tcp://127.0.0.1:7000",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(args, job.least, job.most); err != nil {
				return err
			}
			var err error
			if o.interval, err = cli.Interval(cmd.Flags().Changed("interval"), o.interval, s); err != nil {
				return err
			}
			end, err := o.dear.begin()
			if err != nil {
				return err
			}
			defer end()
			return runClients(cmd.Context(), job, o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.portFile, "port-file", "", "read the servers' addresses from this file instead")
	f.StringVar(&o.sizeText, "size", sizes, "bytes: one size, several (1KiB,64KiB), or a range that doubles (1KiB..1MiB)")
	f.IntVar(&o.inflight, "inflight", 1, "calls at a time, of each client")
	f.IntVar(&o.clients, "clients", 1, "clients at once in this process, at most 10000")
	f.BoolVar(&o.barrier, "barrier", false, "measure until the last client has ended a size")
	f.IntVar(&o.count, "count", 0, "iterations of each size, each of --inflight calls; 0 goes by --duration")
	f.DurationVar(&o.duration, "duration", time.Second, "time for each size")
	f.DurationVarP(&o.interval, "interval", "i", 0, cli.IntervalText)
	cli.TimeoutFlag(f, &o.timeout, defaultTimeout, "for one call; a server that is frozen ends the measurement with an error")
	if job.op == "rate" {
		o.transfers = 1
		f.BoolVar(&o.bidirectional, "bidirectional", false, "have the data sent back; the server needs the option too")
	} else {
		f.IntVar(&o.transfers, "transfers", 1, "transfers of one call; Mercury's programs make 64")
	}
	f.BoolVar(&o.verify, "verify", false, "check the data; slower")
	f.BoolVar(&o.keep, "keep", false, "leave servers running that end with their client")
	registerProgress(f, &o.progress)
	o.device.Register(f, s)
	f.BoolVar(&o.megabytes, "mb", false, "MB/s in the table, 10^6 bytes, instead of MiB/s")
	cli.JSONFlag(f, &o.json)
	o.dear.register(f)
	return cmd
}

// parse checks the options. A size is between least and most bytes.
func (o *options) parse(args []string, least, most int64) (err error) {
	switch {
	case len(args) > 0 && o.portFile != "":
		return cli.Usagef("an address and --port-file were given; one is enough")
	case len(args) > maxServers:
		return cli.Usagef("%d addresses; at most %d", len(args), maxServers)
	case len(args) == 0 && o.portFile == "":
		return cli.Usagef("no server; give its address or --port-file")
	}
	o.addresses = args
	if err := o.checkCounts(); err != nil {
		return err
	}
	if o.sizes, err = cli.ParseSizes(o.sizeText, least, most); err != nil {
		return err
	}
	if total := o.largest() * int64(o.transfers) * int64(o.inflight*o.clients); total > maxMemory { // less than 2^58
		return cli.Usagef("--size, --transfers, --inflight and --clients need %s together; at most %s", cli.SizeText(total), cli.SizeText(maxMemory))
	}
	return nil
}

func (o *options) checkCounts() error {
	switch {
	case o.inflight < 1 || o.inflight > maxInflight:
		return cli.Usagef("--inflight %d is not between 1 and %d", o.inflight, maxInflight)
	case o.clients < 1 || o.clients > maxClients:
		return cli.Usagef("--clients %d is not between 1 and %d", o.clients, maxClients)
	case o.inflight*o.clients > maxCalls:
		return cli.Usagef("--inflight %d of --clients %d are more than %d calls at a time", o.inflight, o.clients, maxCalls)
	case o.transfers < 1 || o.transfers > maxTransfers:
		return cli.Usagef("--transfers %d is not between 1 and %d", o.transfers, maxTransfers)
	case o.count < 0 || o.count == 0 && o.duration <= 0:
		return cli.Usagef("--count %d with --duration %v measures nothing; give one of them above 0", o.count, o.duration)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v must be longer than 0", o.timeout)
	}
	return checkProgress(o.progress)
}
