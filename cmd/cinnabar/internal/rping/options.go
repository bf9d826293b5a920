package rping

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// options are the options of rping, by its letters.
type options struct {
	server, client bool   // -s, -c
	host           string // -a
	sourceHost     string // -I
	port           uint16 // -p
	verbose        bool   // -v
	validate       bool   // -V
	debug          bool   // -d
	persistent     bool   // -P
	selfQP         bool   // -q
	count          int32  // -C; 0 is for ever
	size           int    // -S, bytes
	device         string // --device
	security       cli.Security
	json           bool
	idle           time.Duration // how long the peer may stay silent

	addr   netip.AddrPort // -a and -p, resolved
	source netip.Addr     // -I, resolved; invalid if not given
}

// New returns the command rping.
func New(s cli.Streams) *cobra.Command {
	o := &options{idle: idleLimit}
	cmd := &cobra.Command{
		Use:   "rping -s | -c -a ADDR",
		Short: "Read and write in rounds, on the wire of rdma-core's rping",
		Long: `rping keeps reading from and writing to a client's memory. It speaks to
rdma-core's rping in both roles. Server and client need the same -S.

Without -a a server listens on every IPv4 address of this machine, as the C program does,
and serves any host that reaches it. -a 127.0.0.1 keeps other machines out, and
--token-file or certificates admit only those clients that have them.`,
		Example: "  cinnabar rping -s -v &\n  cinnabar rping -c -a 127.0.0.1 -V -C 10",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.resolve(cmd.Context()); err != nil {
				return err
			}
			return run(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.server, "server", "s", false, "serve")
	f.BoolVarP(&o.client, "client", "c", false, "connect to a server")
	f.StringVarP(&o.host, "address", "a", "", "address to connect to, or to listen on (default every IPv4 address; ::0 for IPv6)")
	f.StringVarP(&o.sourceHost, "source", "I", "", "address that the client connects from")
	f.Uint16VarP(&o.port, "port", "p", defaultPort, "port")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print the ping data")
	f.BoolVarP(&o.validate, "validate", "V", false, "compare the data that comes back")
	f.BoolVarP(&o.debug, "debug", "d", false, "print every step")
	f.BoolVarP(&o.persistent, "persistent", "P", false, "serve any number of clients, several at a time, until interrupted")
	f.Int32VarP(&o.count, "count", "C", 0, "rounds (default until interrupted)")
	f.IntVarP(&o.size, "size", "S", defaultSize, fmt.Sprintf("bytes of ping data, %d to %d", minSize, maxSize))
	cli.DeviceFlag(f, &o.device)
	o.security.RegisterDevice(f, s)
	cli.JSONFlag(f, &o.json)
	f.BoolVarP(&o.selfQP, "self-qp", "q", false, "create the queue pair and move it to INIT by hand")
	return cmd
}

// check refuses values that are wrong for every address.
func (o *options) check() error {
	switch {
	case o.server == o.client:
		return cli.Usagef("exactly one of -s (server) and -c (client) is needed")
	case o.client && o.host == "":
		return cli.Usagef("a client needs -a ADDR, the server's address")
	case o.client && o.persistent:
		return cli.Usagef("-P is for servers")
	case o.server && o.sourceHost != "":
		return cli.Usagef("-I is for clients; a server listens on -a ADDR")
	case o.size < minSize || o.size > maxSize:
		return cli.Usagef("invalid size %d (valid range is %d to %d)", o.size, minSize, maxSize)
	case o.json && (o.server || o.verbose || o.debug):
		return cli.Usagef("--json is for clients, without -v and -d, because their lines are no JSON")
	case o.count < 0:
		return cli.Usagef("invalid count %d; 0 pings until interrupted", o.count)
	}
	return nil
}

// resolve checks the options and finds the addresses that they name.
func (o *options) resolve(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	host := o.host
	if host == "" {
		host = "0.0.0.0"
	}
	ip, err := cli.ResolveHost(ctx, host)
	if err != nil {
		return err
	}
	o.addr = netip.AddrPortFrom(ip, o.port)
	if o.sourceHost != "" {
		o.source, err = cli.ResolveHost(ctx, o.sourceHost)
	}
	return err
}
