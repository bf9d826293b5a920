// Package lend is the command mem, which lends memory, and uses memory that is lent.
package lend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/hostquota"
	"cinnabar/rmem"
)

// defaultTimeout is the time that the mem commands wait for the server.
const defaultTimeout = 30 * time.Second

// New returns the command mem.
func New(s cli.Streams) *cobra.Command {
	mem := &cobra.Command{
		Use:   "mem",
		Short: "Lend memory to other processes, and use it: remote malloc",
		Long: `mem serve lends memory. mem alloc borrows a region for a time and prints a token: every process
with the token can put bytes into the region, get them, and free it, from any machine.`,
	}
	mem.AddCommand(newServe(s), newAlloc(s), newPut(s), newGet(s), newFree(s), newStat(s))
	return mem
}

// serveOptions are the options of mem serve.
type serveOptions struct {
	provider                    uint16
	quota, clientQuota, longest string
	hostQuota                   string
	lease                       time.Duration
	strict, wipe                bool
	copyFrom                    []string
	autoSM                      bool
	limits                      cli.EngineLimits
	device                      cli.RPCDevice
}

func newServe(s cli.Streams) *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve ADDRESS",
		Short: "Lend memory until interrupted",
		Long: `serve listens at ADDRESS, such as tcp or ofi+tcp://127.0.0.1:7000, prints the address that
clients need, and lends memory until it is interrupted. An ADDRESS without a host is the
loopback address; for other machines, give an ADDRESS with one of this machine's.`,
		Example: "  cinnabar mem serve ofi+tcp://127.0.0.1:7000\n  cinnabar mem serve --quota 256MiB --wipe ofi+tcp://192.0.2.1:7000",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&o.provider, "provider", "p", 0, "id of the provider")
	f.StringVar(&o.quota, "quota", "", "bytes to lend in all (default 1GiB, or half of --max-memory if that is less)")
	f.StringVar(&o.hostQuota, "host-quota", "", "bytes to lend to the clients of one host (default: a share that leaves some for others)")
	f.StringVar(&o.clientQuota, "client-quota", "", "bytes to lend to one client (default: as much as its host may have)")
	f.StringVar(&o.longest, "largest", "", "bytes of the largest region (default: all that a client may have)")
	f.DurationVar(&o.lease, "longest-lease", 24*time.Hour, "cut longer leases to this")
	f.BoolVar(&o.strict, "strict", false, "have the server make all reads and writes itself, for clients that are not trusted over na+sm")
	f.BoolVar(&o.wipe, "wipe", false, "overwrite all memory with zeros when it comes back")
	f.StringArrayVar(&o.copyFrom, "copy-from", nil, "address of another server from which clients may have regions copied; may be repeated (default none)")
	cli.AutoSMFlag(f, &o.autoSM, cli.AutoSMServer)
	o.limits.Register(f)
	o.device.RegisterServer(f, s)
	f.Lookup("max-memory").Usage = "memory that all peers together may make the server hold, of which --quota is a part (default half of the machine's, see cinnabar info)"
	return cmd
}

// memory divides the bytes of --max-memory between the lent memory and the engine.
func (o *serveOptions) memory(lent *int64, engine *cinnabar.Config) error {
	most := engine.MaxMemory
	if most == 0 {
		most = hostquota.Machine().DefaultMemory()
	}
	if *lent == 0 {
		*lent = min(defaultQuota, most/2)
	}
	rest := most - *lent
	switch {
	case engine.MaxMemory == 0 && rest < requestRoom: // the engine knows its least, and the user wants to lend so much
		return nil
	case rest <= 0:
		return cli.Usagef("--quota %s leaves nothing of --max-memory %s for requests; lower the one or raise the other", cli.SizeText(*lent), cli.SizeText(most))
	}
	engine.MaxMemory = rest
	return nil
}

// sources returns the rule that lets clients have regions copied from the servers of --copy-from, nil for none.
func (o *serveOptions) sources(ctx context.Context, e *cinnabar.Engine) (func(server string) bool, error) {
	if len(o.copyFrom) == 0 {
		return nil, nil
	}
	allowed := map[string]bool{}
	for _, address := range o.copyFrom {
		ep, err := e.Lookup(address)
		if err != nil {
			return nil, fmt.Errorf("--copy-from %s: %w", address, err)
		}
		allowed[ep.String()] = true
	}
	return func(server string) bool { return allowed[server] }, nil
}

const (
	defaultQuota = 1 << 30  // bytes to lend, where the machine has that much
	requestRoom  = 64 << 20 // bytes that are left for requests unless --max-memory says otherwise
)

// config checks the options.
func (o *serveOptions) config() (cfg rmem.Config, err error) {
	cfg = rmem.Config{Provider: o.provider, MaxLease: o.lease, Strict: o.strict, Wipe: o.wipe}
	for _, size := range []struct {
		option, text string
		to           *int64
	}{{"quota", o.quota, &cfg.Quota}, {"host-quota", o.hostQuota, &cfg.HostQuota}, {"client-quota", o.clientQuota, &cfg.ClientQuota}, {"largest", o.longest, &cfg.MaxRegionSize}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = cli.ParseSize(size.option, size.text, 1, 1<<50); err != nil {
			return cfg, err
		}
	}
	if o.lease <= 0 {
		return cfg, cli.Usagef("--longest-lease %v: want more than nothing", o.lease)
	}
	return cfg, nil
}

func (o *serveOptions) run(ctx context.Context, address string, s cli.Streams) (err error) {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	engine, err := o.limits.Config()
	if err != nil {
		return err
	}
	if err := o.memory(&cfg.Quota, engine); err != nil {
		return err
	}
	engine.AutoSM = o.autoSM
	release, err := o.device.Open(ctx, address, engine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	sockets, err := cli.Sockets(1)
	if err != nil {
		return err
	}
	if len(sockets) > 0 {
		engine.Listener = sockets[0]
	}
	e, err := cinnabar.Listen(ctx, address, cli.Logged(ctx, engine))
	if err != nil {
		return err
	}
	defer cli.Shut(e)
	if cfg.CopyFrom, err = o.sources(ctx, e); err != nil {
		return err
	}
	srv, err := rmem.Serve(e, cfg)
	if err != nil {
		return err
	}
	defer cli.Shut(srv)
	if _, err := fmt.Fprintln(s.Out, e.Addr()); err != nil {
		return err
	}
	stop, err := s.StartService(ctx, "lending memory at "+e.Addr(), cli.EngineChecks(e))
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done() // being stopped is how a server ends
	stop()
	return s.Drain(ctx, e)
}

// allocOptions are the options of mem alloc.
type allocOptions struct {
	provider uint16
	lease    time.Duration
	handle   bool
	once     bool
	wipe     bool
	json     bool
	caller   cli.Caller
}

// allocated is the output of mem alloc --json.
type allocated struct {
	Token  string  `json:"token"`
	Handle string  `json:"handle"`
	Size   int64   `json:"size"`          // bytes
	Lease  float64 `json:"lease_seconds"` // from now on
}

func newAlloc(s cli.Streams) *cobra.Command {
	o := &allocOptions{}
	cmd := &cobra.Command{
		Use:   "alloc ADDRESS SIZE",
		Short: "Borrow a region of SIZE bytes, and print its owner's token",
		Long: `alloc asks the server at ADDRESS, which mem serve has printed, for SIZE bytes, and prints a
token. Every process with the token can read, write and free the region until its lease ends.`,
		Example: "  TOKEN=$(cinnabar mem alloc ofi+tcp://127.0.0.1:7000 1MiB)\n  cinnabar mem alloc --lease 10m --handle ofi+tcp://127.0.0.1:7000 64KiB",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := cli.ParseSize("SIZE", args[1], 1, 1<<50)
			if err != nil {
				return err
			}
			return o.caller.Ask(cmd.Context(), args[0], func(ctx context.Context, _ *cinnabar.Engine, ep *cinnabar.Endpoint) error {
				return o.run(ctx, ep, size, s)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&o.provider, "provider", "p", 0, "id of the provider")
	f.DurationVar(&o.lease, "lease", time.Hour, "how long the region lives; the server may cut it")
	f.BoolVar(&o.handle, "handle", false, "print a second line, the region's handle: it gives access without the right to free")
	f.BoolVar(&o.once, "once", false, "let one process with the handle read the region once; then it is gone")
	f.BoolVar(&o.wipe, "wipe", false, "have the region overwritten with zeros when it is freed")
	o.caller.Register(f, s, defaultTimeout, "how long to wait for the server")
	cli.JSONFlag(f, &o.json)
	return cmd
}

func (o *allocOptions) run(ctx context.Context, ep *cinnabar.Endpoint, size int64, s cli.Streams) error {
	if o.lease <= 0 {
		return cli.Usagef("--lease %v: want more than nothing", o.lease)
	}
	c, err := rmem.Dial(ctx, ep.Provider(o.provider))
	if err != nil {
		return err
	}
	defer cli.Shut(c)
	r, err := c.AllocWith(ctx, size, rmem.AllocOptions{Lease: o.lease, Once: o.once, Wipe: o.wipe})
	if errors.Is(err, rmem.ErrSize) {
		return fmt.Errorf("%w; ask for less, or start mem serve with a larger --quota, --host-quota, --client-quota and --largest", err)
	}
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(s.Out, allocated{Token: r.Token(), Handle: r.Handle().String(), Size: r.Size(), Lease: r.Lease().Round(time.Second).Seconds()})
	}
	if r.Lease() < o.lease-time.Minute {
		s.Notef("the server has cut the lease to %v\n", r.Lease().Round(time.Second))
	}
	if _, err := fmt.Fprintln(s.Out, r.Token()); err != nil || !o.handle {
		return err
	}
	_, err = fmt.Fprintln(s.Out, r.Handle())
	return err
}

// withRegion opens the region that a token or handle names, on an engine that is opened for it.
func withRegion(ctx context.Context, text string, caller *cli.Caller, f func(context.Context, *rmem.Region) error) error {
	address, err := rmem.ServerAddress(text)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	return caller.Engine(ctx, address, cinnabar.Config{}, func(ctx context.Context, e *cinnabar.Engine) error {
		r, err := rmem.OpenString(ctx, e, text)
		if err != nil {
			return err
		}
		return f(ctx, r)
	})
}

func newFree(s cli.Streams) *cobra.Command {
	var caller cli.Caller
	cmd := &cobra.Command{
		Use:   "free TOKEN",
		Short: "Give a region back",
		Long: `free ends the lease of the region of TOKEN, which alloc has printed. The server lends its
memory again. A handle (alloc --handle) does not have the right to free.`,
		Example: "  cinnabar mem free $TOKEN",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := rmem.ServerAddress(args[0])
			if err != nil {
				return cli.Usagef("%w", err)
			}
			return caller.Engine(cmd.Context(), address, cinnabar.Config{}, func(ctx context.Context, e *cinnabar.Engine) error {
				return rmem.FreeToken(ctx, e, args[0])
			})
		},
	}
	caller.Register(cmd.Flags(), s, defaultTimeout, "how long to wait for the server")
	return cmd
}

func newStat(s cli.Streams) *cobra.Command {
	var provider uint16
	var asJSON bool
	var caller cli.Caller
	cmd := &cobra.Command{
		Use:     "stat ADDRESS",
		Short:   "Show how much a server lends",
		Example: "  cinnabar mem stat ofi+tcp://127.0.0.1:7000\n  cinnabar mem stat --json ofi+tcp://127.0.0.1:7000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return caller.Ask(cmd.Context(), args[0], func(ctx context.Context, _ *cinnabar.Engine, ep *cinnabar.Endpoint) error {
				u, err := rmem.QueryUsage(ctx, ep.Provider(provider))
				if err != nil {
					return err
				}
				if asJSON {
					return cli.WriteJSON(s.Out, u)
				}
				_, err = fmt.Fprintf(s.Out, "%s of %s lent (%d of %d bytes), regions: %d, clients: %d\n", cli.SizeText(u.Used), cli.SizeText(u.Quota), u.Used, u.Quota, u.Regions, u.Clients)
				return err
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&provider, "provider", "p", 0, "id of the provider")
	cli.JSONFlag(f, &asJSON)
	caller.Register(f, s, defaultTimeout, "how long to wait for the server")
	return cmd
}
