package main

import (
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pingpongOptions are the options of ibv_rc_pingpong that mean something on
// every device.
type pingpongOptions struct {
	host    string // the server, "" on the server itself
	port    uint16 // -p: of the exchange over TCP
	device  string // -d
	ibPort  int    // -i
	size    int    // -s, bytes
	rxDepth int    // -r
	iters   int    // -n
	events  bool   // -e
	check   bool   // -c
}

// refusedOptions are those of ibv_rc_pingpong that a device without the thing
// in question cannot honour. Ignoring them would measure something else than
// was asked for.
var refusedOptions = []struct{ long, short, value, reason string }{
	{"mtu", "m", "SIZE", "iWARP segments by the TCP connection's segment size; set the MTU of the network interface instead"},
	{"sl", "l", "SL", "service levels are InfiniBand's; iWARP runs over IP"},
	{"gid-idx", "g", "INDEX", "iWARP addresses its peers by IP address; choose the interface by HOST"},
	{"odp", "o", "", "the device has no on-demand paging"},
	{"iodp", "O", "", "the device has no on-demand paging"},
	{"prefetch", "P", "", "the device has no on-demand paging, so nothing to prefetch"},
	{"ts", "t", "", "the device does not time-stamp completions"},
	{"dm", "j", "", "the device has no memory of its own"},
	{"new_send", "N", "", "work requests are posted as a slice here; there is no second interface"},
	{"allow-cc-unprotected", "U", "", "the device does not run in a confidential guest"},
}

func newPingpong(s streams) *cobra.Command {
	o := &pingpongOptions{}
	cmd := &cobra.Command{
		Use:   "pingpong [HOST]",
		Short: "Exchange messages with a peer and print rate and latency, as ibv_rc_pingpong does",
		Long: `pingpong without HOST waits for a client; with HOST it connects to that server.
The sides find each other over plain TCP; on iWARP that exchange carries
address and port, and the connection manager connects.`,
		Example: "  cinnabar pingpong &\n  cinnabar pingpong localhost",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.host = args[0]
			}
			if err := checkRefused(cmd.Flags()); err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return runPingpong(cmd.Context(), o, s)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *pingpongOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.Uint16VarP(&o.port, "port", "p", pingpongPort, "TCP port of the exchange, to listen on or to connect to")
	f.StringVarP(&o.device, "ib-dev", "d", "", "device (default the first)")
	f.IntVarP(&o.ibPort, "ib-port", "i", 1, "port of the device")
	f.IntVarP(&o.size, "size", "s", 4096, "bytes of a message")
	f.IntVarP(&o.rxDepth, "rx-depth", "r", 500, "receives posted at a time")
	f.IntVarP(&o.iters, "iters", "n", 1000, "exchanges")
	f.BoolVarP(&o.events, "events", "e", false, "sleep until a completion event comes (default: poll)")
	f.BoolVarP(&o.check, "chk", "c", false, "check the received bytes")
	for _, r := range refusedOptions {
		if r.value == "" {
			f.BoolP(r.long, r.short, false, "refused: "+r.reason)
		} else {
			f.StringP(r.long, r.short, "", "refused: "+r.reason)
		}
		f.Lookup(r.long).Hidden = true
	}
}

// checkRefused names the first option given that cannot be honoured.
func checkRefused(f *pflag.FlagSet) error {
	for _, r := range refusedOptions {
		if f.Changed(r.long) {
			return usagef("option -%s (--%s) is not supported: %s", r.short, r.long, r.reason)
		}
	}
	return nil
}

// validate refuses values that no device could take. What this device cannot
// take is found out when it is open.
func (o *pingpongOptions) validate() error {
	switch {
	case o.size < 0 || int64(o.size) > math.MaxInt32:
		return usagef("invalid size %d: a message has 0 to %d bytes", o.size, math.MaxInt32)
	case o.rxDepth < 1:
		return usagef("invalid rx-depth %d: at least one receive has to be posted", o.rxDepth)
	case o.iters < 1 || int64(o.iters) > math.MaxInt32:
		return usagef("invalid iters %d: 1 to %d exchanges", o.iters, math.MaxInt32)
	case o.ibPort < 1:
		return usagef("invalid ib-port %d: ports are numbered from 1", o.ibPort)
	case strings.ContainsAny(o.host, "\x00\n"):
		return usagef("invalid host %q", o.host)
	}
	return nil
}
