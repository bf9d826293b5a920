package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/rmem"
)

// memTimeout is how long the mem commands wait for the server, unless told otherwise.
const memTimeout = 30 * time.Second

// newMem builds the commands about remote memory.
func newMem(s streams) *cobra.Command {
	mem := &cobra.Command{
		Use:   "mem",
		Short: "Lend memory to other processes, and use what is lent: remote malloc and free",
		Long: `mem serve lends memory. mem alloc borrows a region for a time and prints a token: whoever
has it can put bytes into the region, get them, and free it, from any machine.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	mem.AddCommand(newMemServe(s), newMemAlloc(s), newMemPut(s), newMemGet(s), newMemFree(s), newMemStat(s), newMemCost(s))
	for _, c := range mem.Commands() {
		c.Args = usageArgs(c.Args)
	}
	return mem
}

// memServeOptions are the options of mem serve.
type memServeOptions struct {
	provider                    uint16
	quota, clientQuota, longest string
	lease                       time.Duration
	strict, wipe                bool
}

func newMemServe(s streams) *cobra.Command {
	o := &memServeOptions{}
	cmd := &cobra.Command{
		Use:   "serve ADDRESS",
		Short: "Lend memory until interrupted",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&o.provider, "provider", "p", 0, "id of the provider")
	f.StringVar(&o.quota, "quota", "1GiB", "bytes to lend in all")
	f.StringVar(&o.clientQuota, "client-quota", "", "bytes to lend to one client (default: all)")
	f.StringVar(&o.longest, "largest", "", "bytes of the largest region (default: all that a client may have)")
	f.DurationVar(&o.lease, "longest-lease", 24*time.Hour, "cut longer leases to this")
	f.BoolVar(&o.strict, "strict", false, "have the server make all reads and writes itself, for clients that are not trusted over na+sm")
	f.BoolVar(&o.wipe, "wipe", false, "overwrite all memory with zeros when it comes back")
	return cmd
}

// config checks the options.
func (o *memServeOptions) config() (cfg rmem.Config, err error) {
	cfg = rmem.Config{Provider: o.provider, LongestHold: o.lease, Strict: o.strict, Wipe: o.wipe}
	for _, size := range []struct {
		option, text string
		to           *int64
	}{{"quota", o.quota, &cfg.Quota}, {"client-quota", o.clientQuota, &cfg.ClientQuota}, {"largest", o.longest, &cfg.Largest}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = parseSize(size.option, size.text, 1, 1<<50); err != nil {
			return cfg, err
		}
	}
	if o.lease <= 0 {
		return cfg, usagef("--longest-lease %v: want more than nothing", o.lease)
	}
	return cfg, nil
}

func (o *memServeOptions) run(ctx context.Context, address string, s streams) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	e, err := cinnabar.Listen(address, nil)
	if err != nil {
		return err
	}
	defer shut(e)
	srv, err := rmem.Serve(e, cfg)
	if err != nil {
		return err
	}
	defer shut(srv)
	if _, err := fmt.Fprintln(s.out, e.Addr()); err != nil {
		return err
	}
	<-ctx.Done() // being stopped is how a server ends
	return nil
}

// memAllocOptions are the options of mem alloc.
type memAllocOptions struct {
	provider uint16
	lease    time.Duration
	handle   bool
	once     bool
	wipe     bool
	timeout  time.Duration
}

func newMemAlloc(s streams) *cobra.Command {
	o := &memAllocOptions{}
	cmd := &cobra.Command{
		Use:   "alloc ADDRESS SIZE",
		Short: "Borrow a region of SIZE bytes (64MiB, say), and print the token of its owner",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := parseSize("SIZE", args[1], 1, 1<<50)
			if err != nil {
				return err
			}
			return askAt(cmd.Context(), args[0], o.timeout, func(ctx context.Context, ep *cinnabar.Endpoint) error {
				return o.run(ctx, ep, size, s)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&o.provider, "provider", "p", 0, "id of the provider")
	f.DurationVar(&o.lease, "lease", time.Hour, "how long the region lives; the server may cut it")
	f.BoolVar(&o.handle, "handle", false, "print a second line, the region's handle: it gives access without the right to free")
	f.BoolVar(&o.once, "once", false, "let those who have the handle read the region once in all; then it is gone")
	f.BoolVar(&o.wipe, "wipe", false, "have the region overwritten with zeros when it is freed")
	f.DurationVarP(&o.timeout, "timeout", "t", memTimeout, "how long to wait for the server")
	return cmd
}

func (o *memAllocOptions) run(ctx context.Context, ep *cinnabar.Endpoint, size int64, s streams) error {
	if o.lease <= 0 {
		return usagef("--lease %v: want more than nothing", o.lease)
	}
	c, err := rmem.Dial(ctx, ep.Provider(o.provider))
	if err != nil {
		return err
	}
	defer shut(c)
	r, err := c.AllocTerms(ctx, size, rmem.Terms{Lease: o.lease, Once: o.once, Wipe: o.wipe})
	if err != nil {
		return err
	}
	if r.Lease() < o.lease-time.Minute {
		s.notef("the server has cut the lease to %v\n", r.Lease().Round(time.Second))
	}
	if _, err := fmt.Fprintln(s.out, r.Token()); err != nil || !o.handle {
		return err
	}
	_, err = fmt.Fprintln(s.out, r.Handle())
	return err
}

// withRegion opens the region that a token or handle names, on an engine that is opened for it.
func withRegion(ctx context.Context, text string, timeout time.Duration, f func(context.Context, *rmem.Region) error) error {
	address, err := rmem.ServerOf(text)
	if err != nil {
		return usagef("%w", err)
	}
	return withEngine(ctx, address, timeout, func(ctx context.Context, e *cinnabar.Engine) error {
		r, err := rmem.OpenText(ctx, e, text)
		if err != nil {
			return err
		}
		return f(ctx, r)
	})
}

// withEngine calls f with an engine for the process at an address.
func withEngine(ctx context.Context, address string, timeout time.Duration, f func(context.Context, *cinnabar.Engine) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e, err := cinnabar.Open(localFor(ctx, address), &cinnabar.Config{DialTimeout: timeout})
	if err != nil {
		return err
	}
	defer shut(e)
	return f(ctx, e)
}

func newMemFree(s streams) *cobra.Command {
	timeout := memTimeout
	cmd := &cobra.Command{
		Use:   "free TOKEN",
		Short: "Give a region back",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := rmem.ServerOf(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			return withEngine(cmd.Context(), address, timeout, func(ctx context.Context, e *cinnabar.Engine) error {
				return rmem.FreeToken(ctx, e, args[0])
			})
		},
	}
	cmd.Flags().DurationVarP(&timeout, "timeout", "t", memTimeout, "how long to wait for the server")
	return cmd
}

func newMemStat(s streams) *cobra.Command {
	var provider uint16
	var asJSON bool
	timeout := memTimeout
	cmd := &cobra.Command{
		Use:   "stat ADDRESS",
		Short: "Show how much a server lends",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAt(cmd.Context(), args[0], timeout, func(ctx context.Context, ep *cinnabar.Endpoint) error {
				u, err := rmem.AskUsage(ctx, ep.Provider(provider))
				if err != nil {
					return err
				}
				if asJSON {
					return writeIndented(s.out, u)
				}
				_, err = fmt.Fprintf(s.out, "%d of %d bytes lent, %d regions, %d clients\n", u.Used, u.Quota, u.Regions, u.Clients)
				return err
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&provider, "provider", "p", 0, "id of the provider")
	f.BoolVarP(&asJSON, "json", "j", false, "print a JSON object")
	f.DurationVarP(&timeout, "timeout", "t", memTimeout, "how long to wait for the server")
	return cmd
}
