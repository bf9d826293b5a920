package pingpong

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
)

// options are the options of rdma-core's ibv_rc_pingpong, ibv_uc_pingpong
// and ibv_ud_pingpong.
type options struct {
	host   string // the server, "" on the server itself
	port   uint16 // -p: of the exchange over TCP
	device string // -d

	security cli.Security

	ibPort  int  // -i
	size    int  // -s, bytes
	rxDepth int  // -r
	iters   int  // -n
	events  bool // -e
	check   bool // -c

	json    bool
	results io.Writer // of --json; nil without it
	data    uint16    // --data-port; 0: a free one
	timeout time.Duration
	service verbs.QPType // of --transport; 0: RC

	// The following have a meaning only where the queue pair is connected by hand.

	mtu    int      // -m, bytes; 0: 1024
	sl     int      // -l
	gid    int      // -g, index in the port's table; -1: the device chooses
	byHand []string // those of them that were given, as the user knows them
}

// services are the values of --transport, with the size of message that
// rdma-core's program for it has by default.
var services = []struct {
	name string
	typ  verbs.QPType
	size int
}{{"rc", verbs.RC, 4096}, {"uc", verbs.UC, 4096}, {"ud", verbs.UD, 2048}}

// byHandOptions need a device with queue pairs that can be connected by hand: on
// others, ignoring them would measure something else than the user has asked for.
var byHandOptions = []struct{ long, short, reason string }{
	{"mtu", "m", "iWARP segments by the TCP connection's segment size; set the MTU of the network interface instead"},
	{"sl", "l", "service levels are InfiniBand's; iWARP runs over IP"},
	{"gid-idx", "g", "iWARP addresses its peers by IP address; choose the interface by HOST"},
}

// refusedOptions are those that cannot be honoured on any device.
var refusedOptions = []struct{ long, short, reason string }{
	{"odp", "o", "there is no on-demand paging"},
	{"iodp", "O", "there is no on-demand paging"},
	{"prefetch", "P", "there is no on-demand paging, so nothing to prefetch"},
	{"ts", "t", "completions are not time-stamped"},
	{"dm", "j", "memory of the device is not used"},
	{"new_send", "N", "work requests are posted as a slice here; there is no second interface"},
	{"allow-cc-unprotected", "U", "confidential guests are not supported"},
}

// New returns the command pingpong.
func New(s cli.Streams) *cobra.Command {
	o := &options{}
	var transport string
	cmd := &cobra.Command{
		Use:        "pingpong [HOST]",
		SuggestFor: []string{"ping", "pign"},
		Short:      "Measure rate and latency of messages, as ibv_rc_pingpong does",
		Long: `pingpong without HOST waits for a client; with HOST it connects to that server.
The sides find each other over plain TCP. On iWARP that exchange carries
address and port, and the connection manager connects: the data takes a second TCP
connection, to a port of the server that the system chooses unless --data-port
names one, and a firewall between the two has to let both through. On InfiniBand and RoCE
it is that of rdma-core's ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong,
which may be the other side.

A server listens on every address of this machine, as those programs do, until its one
client has come. --token-file and the --tls options protect the connection of the data;
the exchange carries nothing but addresses and settings.`,
		Example: "  cinnabar pingpong &\n  cinnabar pingpong localhost\n  cinnabar pingpong -d mlx5_0 --transport ud -s 1024 server",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.host = args[0]
			}
			if err := checkRefused(cmd.Flags()); err != nil {
				return err
			}
			if err := o.setTransport(transport, cmd.Flags().Changed("size")); err != nil {
				return err
			}
			o.noteByHand(cmd.Flags())
			if err := o.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), o, s)
		},
	}
	o.addFlags(cmd.Flags(), &transport)
	o.security.RegisterDevice(cmd.Flags(), s)
	return cmd
}

func (o *options) addFlags(f *pflag.FlagSet, transport *string) {
	f.SortFlags = false
	f.StringVar(transport, "transport", "rc", "rc, uc or ud: reliable connection, unreliable connection, unreliable datagrams")
	f.Uint16VarP(&o.port, "port", "p", defaultPort, "TCP port of the exchange, to listen on or to connect to")
	cli.DeviceFlag(f, &o.device)
	cli.IBDevFlag(f)
	f.IntVarP(&o.ibPort, "ib-port", "i", 1, "port of the device")
	f.IntVarP(&o.size, "size", "s", services[0].size, "bytes of a message; with --transport ud 2048 unless given")
	f.IntVarP(&o.rxDepth, "rx-depth", "r", 500, "receives posted at a time")
	f.IntVarP(&o.iters, "iters", "n", 1000, "exchanges")
	f.BoolVarP(&o.events, "events", "e", false, "sleep until a completion event comes (default: poll)")
	f.BoolVarP(&o.check, "chk", "c", false, "check the received bytes")
	f.IntVarP(&o.mtu, "mtu", "m", 1024, "bytes of a packet, on InfiniBand and RoCE")
	f.IntVarP(&o.sl, "sl", "l", 0, "service level, on InfiniBand and RoCE")
	f.IntVarP(&o.gid, "gid-idx", "g", -1, "index of the port's GID to send from, on InfiniBand and RoCE (-1: chosen)")
	f.Uint16Var(&o.data, "data-port", 0, "server: TCP port for the data, on iWARP (default a free one)")
	for _, r := range refusedOptions {
		f.BoolP(r.long, r.short, false, "refused: "+r.reason)
		f.Lookup(r.long).Hidden = true
	}
	cli.JSONFlag(f, &o.json)
	cli.TimeoutFlag(f, &o.timeout, defaultTimeout, "end with an error if no message arrives for this time once the sides are connected; more for messages that take longer")
}

// checkRefused names the first option given that cannot be honoured.
func checkRefused(f *pflag.FlagSet) error {
	for _, r := range refusedOptions {
		if f.Changed(r.long) {
			return cli.Usagef("option -%s (--%s) is not supported: %s", r.short, r.long, r.reason)
		}
	}
	return nil
}

// setTransport takes the value of --transport, and the default size that goes with it.
func (o *options) setTransport(name string, sized bool) error {
	for _, s := range services {
		if s.name == name {
			o.service = s.typ
			if !sized {
				o.size = s.size
			}
			return nil
		}
	}
	return cli.Usagef("invalid transport %q: it is rc, uc or ud", name)
}

// noteByHand remembers which options need a device that is driven by hand.
func (o *options) noteByHand(f *pflag.FlagSet) {
	for _, r := range byHandOptions {
		if f.Changed(r.long) {
			o.byHand = append(o.byHand, fmt.Sprintf("option -%s (--%s) is not supported: %s", r.short, r.long, r.reason))
		}
	}
}

// pathMTU is the code of -m, 0 if there is none for it.
func (o *options) pathMTU() verbs.MTU {
	for m := verbs.MTU(1); m.Bytes() > 0; m++ {
		if m.Bytes() == o.mtu {
			return m
		}
	}
	return 0
}

// fits compares the options with the limits of the device.
func (o *options) fits(dev *verbs.Device) error {
	a, err := dev.Query()
	if err != nil {
		return err
	}
	if o.ibPort > len(a.Ports) {
		return cli.Usagef("device %s has no port %d; it has %d", a.Name, o.ibPort, len(a.Ports))
	}
	if !a.Caps.Has(verbs.CapRawState) && len(o.byHand) > 0 {
		return cli.Usagef("%s", o.byHand[0])
	}
	if o.service != 0 && !slices.Contains(a.QPTypes, o.service) {
		return cli.Usagef("device %s has no queue pairs of type %v, only %s", a.Name, o.service, cli.Join(a.QPTypes))
	}
	p := &a.Ports[o.ibPort-1]
	if o.service == verbs.UD && o.size > p.ActiveMTU.Bytes() {
		return cli.Usagef("size %d is over the port's MTU of %d bytes, the limit of a datagram; take a smaller --size", o.size, p.ActiveMTU.Bytes())
	}
	if uint64(o.size) > p.MaxMsgSize {
		return cli.Usagef("size %d is over the port's limit of %d bytes for a message; take a smaller --size", o.size, p.MaxMsgSize)
	}
	return nil
}

// validate refuses values that no device could take. The limits of this device
// are checked when it is open.
func (o *options) validate() error {
	switch {
	case o.size < 0 || int64(o.size) > math.MaxInt32:
		return cli.Usagef("invalid size %d: a message has 0 to %d bytes", o.size, math.MaxInt32)
	case o.rxDepth < 1:
		return cli.Usagef("invalid rx-depth %d: at least one receive has to be posted", o.rxDepth)
	case o.iters < 1 || int64(o.iters) > math.MaxInt32:
		return cli.Usagef("invalid iters %d: 1 to %d exchanges", o.iters, math.MaxInt32)
	case o.ibPort < 1 || o.ibPort > math.MaxUint8:
		return cli.Usagef("invalid ib-port %d: ports are numbered from 1 to %d", o.ibPort, math.MaxUint8)
	case o.pathMTU() == 0:
		return cli.Usagef("invalid mtu %d: it is 256, 512, 1024, 2048 or 4096", o.mtu)
	case o.sl < 0 || o.sl > 15:
		return cli.Usagef("invalid sl %d: service levels are 0 to 15", o.sl)
	case o.timeout <= 0:
		return cli.Usagef("--timeout is %v; want a time above 0, such as 30s", o.timeout)
	case o.gid < -1 || o.gid > math.MaxUint8:
		return cli.Usagef("invalid gid-idx %d: 0 to %d are possible", o.gid, math.MaxUint8)
	case o.data != 0 && o.host != "":
		return cli.Usagef("--data-port is for servers, which have no HOST")
	case strings.ContainsAny(o.host, "\x00\n"):
		return cli.Usagef("invalid host %q", o.host)
	}
	return nil
}
