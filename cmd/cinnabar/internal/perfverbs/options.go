// Package perfverbs has the sub-commands of perf that measure RDMA operations and the registration of memory.
package perfverbs

import (
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
)

// Defaults and limits of perf verbs. Those that perftest's programs have, too, are theirs.
const (
	defaultPort    = "18515" // DEF_PORT of perftest
	defaultDepth   = 128     // DEF_TX_BW
	maxDepth       = 16384
	maxSignal      = 32               // requests that share a completion, unless --signal-every says otherwise
	groupBytes     = 16 << 20         // and their bytes, so that progress can be seen
	inlineLatency  = 220              // DEF_INLINE_WRITE
	settingLen     = 256              // bytes that the exchange has for an option's value
	meetTimeout    = 10 * time.Second // for the two sides to find each other once their TCP connection stands
	defaultTimeout = 30 * time.Second // without a word of the other side, unless --timeout says otherwise
	maxSize        = 1 << 30          // bytes of one operation
	wordLen        = 8                // bytes of an atomic
	bandwidthSize  = "64KiB"
	latencySize    = "64"
)

// operation is an operation that perf verbs measures.
type operation uint8

const (
	opWrite operation = iota
	opWriteImm
	opRead
	opSend
	opAtomic
)

var operations = [...]struct {
	name string
	code verbs.Opcode
}{
	opWrite: {"write", verbs.OpWrite}, opWriteImm: {"write-imm", verbs.OpWriteImm}, opRead: {"read", verbs.OpRead},
	opSend: {"send", verbs.OpSend}, opAtomic: {"atomic", verbs.OpFetchAdd},
}

// String returns the value of --op for the operation.
func (o operation) String() string { return operations[o].name }

// fetches reports whether the operation brings something back, so that it measures a round trip by itself.
func (o operation) fetches() bool { return o == opRead || o == opAtomic }

// received reports whether the operation uses up a receive of the peer's.
func (o operation) received() bool { return o == opSend || o == opWriteImm }

// arrival is how a received operation uses up a receive.
func (o operation) arrival() verbs.WCOp {
	if o == opWriteImm {
		return verbs.WCRecvRDMAImm
	}
	return verbs.WCRecv
}

// options are the options of perf verbs.
type options struct {
	peer, listen     string // HOST[:PORT] of the server, "" on the server itself; where it listens
	device           string
	opText, sizeText string
	op               operation
	sizes            []int64 // rising
	latency          bool
	bandwidth        bool
	depth            int // requests outstanding at most
	every            int // --signal-every; 0: by default
	count            int // of each size; 0: as many as duration allows
	duration         time.Duration
	timeout          time.Duration
	inline           int // bytes of messages that are sent inline at most; negative: by default
	events           bool
	interval         time.Duration // between lines on standard error; 0: none
	once             bool
	dataPort         uint16 // of the server's second connection on iWARP; 0: a free one
	json             bool
	security         cli.Security
}

func (o *options) largest() int64 { return o.sizes[len(o.sizes)-1] }

// New returns the command verbs of perf.
func New(s cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "verbs [HOST[:PORT]]",
		Short: "Bandwidth and latency of RDMA operations, after perftest",
		Long: `verbs without HOST serves clients, one after the other, until it is interrupted; with HOST it
connects to that server and measures. Both sides need the same operation, sizes, depth, count or duration, and
inline: an error names each one that differs, and both end. perftest's programs are no peers.

Bandwidth is that of ib_write_bw, ib_read_bw, ib_send_bw and ib_atomic_bw: all bytes by
the time from the first request to the last completion. Latency is that of
ib_write_lat, ib_send_lat, ib_read_lat and ib_atomic_lat: half of the round trip of a
message and its answer, the whole one for reads and atomics. Rates are in MiB/s,
2^20 bytes, times in µs.

The two sides find each other over TCP at the port of --listen. On the software device the
data takes a second connection, to a port of the server that the system chooses unless
--data-port names one: a firewall between the two has to let both through. --token-file and
the --tls options protect that connection; the first one carries addresses and settings.`,
		Example: "  cinnabar perf verbs --op read --size 4KiB..1MiB &\n  cinnabar perf verbs --op read --size 4KiB..1MiB localhost",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.peer = args[0]
			}
			if err := o.parse(cmd.Flags()); err != nil {
				return err
			}
			var err error
			if o.interval, err = cli.Interval(cmd.Flags().Changed("interval"), o.interval, s); err != nil {
				return err
			}
			return run(cmd.Context(), o, s)
		},
	}
	o.register(cmd.Flags())
	o.security.RegisterDevice(cmd.Flags(), s)
	return cmd
}

func (o *options) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.opText, "op", "write", "write, write-imm, read, send or atomic (fetch and add)")
	f.BoolVar(&o.bandwidth, "bandwidth", false, "measure bandwidth (the default)")
	f.BoolVar(&o.latency, "latency", false, "measure latency")
	f.StringVar(&o.sizeText, "size", "", "bytes: one size, several (1KiB,64KiB), or a range that doubles (1KiB..1MiB)\n(default "+bandwidthSize+", for latency "+latencySize+")")
	f.IntVar(&o.depth, "depth", defaultDepth, "requests outstanding at most")
	f.IntVar(&o.count, "count", 0, "operations of each size; 0 goes by --duration")
	f.DurationVar(&o.duration, "duration", time.Second, "time for each size")
	f.IntVar(&o.inline, "inline", -1, "send messages of at most this many bytes inline (default "+strconv.Itoa(inlineLatency)+" for latency as perftest, else 0;\nless where the device has less)")
	f.IntVar(&o.every, "signal-every", 0, "requests that share a completion (default a quarter of --depth, at most "+strconv.Itoa(maxSignal)+")")
	f.BoolVar(&o.events, "events", false, "sleep until a completion event comes (default: poll)")
	cli.DeviceFlag(f, &o.device)
	f.StringVar(&o.listen, "listen", cli.ListenHost+":"+defaultPort, "server: address, HOST:PORT; "+cli.ListenForms)
	f.BoolVar(&o.once, "once", false, "server: end when a client is done, as perftest's programs do")
	f.Uint16Var(&o.dataPort, "data-port", 0, "server: TCP port for the data, on iWARP (default a free one)")
	f.DurationVarP(&o.interval, "interval", "i", 0, cli.IntervalText)
	cli.TimeoutFlag(f, &o.timeout, defaultTimeout, "end with an error when the other side has sent nothing for this time")
	cli.JSONFlag(f, &o.json)
	f.Lookup("inline").DefValue = "0" // says its text; 0 is not printed
}

// parse checks the options.
func (o *options) parse(f *pflag.FlagSet) (err error) {
	if o.latency && o.bandwidth {
		return cli.Usagef("--latency and --bandwidth were given; one is measured at a time")
	}
	if o.op, err = cli.ParseName("--op", o.opText, opWrite, opWriteImm, opRead, opSend, opAtomic); err != nil {
		return err
	}
	if err := o.checkCounts(); err != nil {
		return err
	}
	if o.latency && o.op == opWrite && o.events {
		return cli.Usagef("--events with the latency of writes: a write raises no event at the other side; take --op write-imm or send")
	}
	if o.peer != "" && (f.Changed("listen") || o.once || o.dataPort != 0) {
		return cli.Usagef("--listen, --once and --data-port are for servers, which have no HOST")
	}
	return o.parseSizes(f.Changed("size"))
}

func (o *options) checkCounts() error {
	switch {
	case o.depth < 1 || o.depth > maxDepth:
		return cli.Usagef("--depth %d is not between 1 and %d", o.depth, maxDepth)
	case o.every < 0 || o.every > o.depth:
		return cli.Usagef("--signal-every %d is not between 1 and --depth, %d", o.every, o.depth)
	case o.count < 0 || o.count > math.MaxInt32 || o.count == 0 && o.duration <= 0:
		return cli.Usagef("--count %d with --duration %v measures nothing, or over %d operations; give a --count or a --duration above 0", o.count, o.duration, math.MaxInt32)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v must be longer than 0", o.timeout)
	}
	return nil
}

// cli.ParseSizes reads --size, if it was given.
func (o *options) parseSizes(given bool) (err error) {
	least := int64(1)
	switch {
	case o.op == opAtomic:
		if given {
			least = wordLen
		} else {
			o.sizeText = strconv.Itoa(wordLen)
		}
	case given:
	case o.latency:
		o.sizeText = latencySize
	default:
		o.sizeText = bandwidthSize
	}
	if o.sizes, err = cli.ParseSizes(o.sizeText, least, maxSize); err != nil {
		return err
	}
	if o.op == opAtomic && (len(o.sizes) > 1 || o.sizes[0] != wordLen) {
		return cli.Usagef("--size %s: an atomic has %d bytes", o.sizeText, wordLen)
	}
	if n := len(o.settings()["size"]); n > settingLen {
		return cli.Usagef("--size %s: too many sizes for one run", o.sizeText)
	}
	return nil
}

// measure returns the measured quantity, in a word.
func (o *options) measure() string {
	if o.latency {
		return "latency"
	}
	return "bandwidth"
}

// settings returns the values that both sides must agree on, by the names of their options.
func (o *options) settings() map[string]string {
	sizes := make([]string, len(o.sizes))
	for i, n := range o.sizes {
		sizes[i] = strconv.FormatInt(n, 10)
	}
	m := map[string]string{
		"op": o.op.String(), "measure": o.measure(), "size": strings.Join(sizes, ","),
		"depth": strconv.Itoa(o.depth), "count": strconv.Itoa(o.count), "inline": strconv.Itoa(o.inlineLimit()),
	}
	if o.count == 0 {
		m["duration"] = o.duration.String()
	}
	return m
}

// inlineLimit is --inline with its default filled in.
func (o *options) inlineLimit() int {
	switch {
	case o.op.fetches(): // their memory is written to
		return 0
	case o.inline >= 0:
		return o.inline
	case o.latency:
		return inlineLatency
	}
	return 0
}

// group is how many requests of a size share a completion.
func (o *options) group(size int64) int {
	if o.every > 0 {
		return o.every
	}
	return int(max(1, min(int64(o.depth/4), maxSignal, groupBytes/size)))
}

// listenAddr is serverAddr with the loopback address where text names no host.
func listenAddr(text string) string {
	if port, ok := strings.CutPrefix(text, ":"); text == "" || ok && !strings.Contains(port, ":") {
		text = cli.ListenHost + text
	}
	return serverAddr(text)
}

// serverAddr is HOST[:PORT] with the port filled in. An IPv6 address with a port stands in brackets.
func serverAddr(text string) string {
	if host, port, err := net.SplitHostPort(text); err == nil {
		return net.JoinHostPort(host, port)
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), defaultPort)
}
