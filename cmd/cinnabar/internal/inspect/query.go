package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
	"cinnabar/margo"
	"cinnabar/stats"
)

// askTimeout is the time that query and shutdown wait for the other process by default.
const askTimeout = 5 * time.Second

// queryOptions are the options of query.
type queryOptions struct {
	providers []string // -p
	json      bool     // -j
	config    bool     // -c
	state     bool     // -s
	rows      int
	caller    cli.Caller
}

// NewQuery returns the command query.
func NewQuery(s cli.Streams) *cobra.Command {
	o := &queryOptions{}
	cmd := &cobra.Command{
		Use:   "query ADDRESS",
		Short: "Describe a running process: providers, RPCs, pools, statistics",
		Long: `query asks the process at ADDRESS, such as ofi+tcp://10.0.0.1:1234, for its providers,
RPCs, pools and statistics. A Go process answers if its engine has Config.AllowQuery. With -p, query asks
for the identities of providers instead, which the processes of Margo's programs report too.
With --state, query prints the calls that run or wait, the exposed memory and the connections.`,
		Example: `  cinnabar query ofi+tcp://127.0.0.1:7000
  cinnabar query --state 'ofi+tcp://[::1]:7000'
  cinnabar query --provider 0,40-42 --json ofi+tcp://127.0.0.1:7000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(o.providers) > 0 && o.config {
				return cli.Usagef("--provider and --config were given; choose one")
			}
			if o.state && (len(o.providers) > 0 || o.config) {
				return cli.Usagef("--state was given with --provider or --config; choose one")
			}
			if !o.state && cmd.Flags().Changed("rows") {
				return cli.Usagef("--rows was given without --state, whose tables it limits")
			}
			if o.rows < 1 || o.rows > stats.MostRows {
				return cli.Usagef("--rows is %d; want 1 to %d", o.rows, stats.MostRows)
			}
			return o.caller.Ask(cmd.Context(), args[0], func(ctx context.Context, e *cinnabar.Engine, ep *cinnabar.Endpoint) error {
				return o.run(ctx, e, ep, s.Out)
			})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVarP(&o.providers, "provider", "p", nil, "ask for the identities of these providers only, as in 0,7,40-42")
	cli.JSONFlag(f, &o.json)
	f.BoolVarP(&o.state, "state", "s", false, "print the requests and calls under way, the exposed memory and the connections")
	f.IntVar(&o.rows, "rows", stats.DefaultRows, "with --state, the largest number of rows of each table")
	f.BoolVarP(&o.config, "config", "c", false, "print the configuration only, in Margo's layout")
	o.caller.Register(f, s, askTimeout, "how long to wait for answers")
	return cmd
}

func (o *queryOptions) run(ctx context.Context, e *cinnabar.Engine, ep *cinnabar.Endpoint, w io.Writer) error {
	if len(o.providers) > 0 {
		return o.identities(ctx, ep, w)
	}
	if o.state {
		return o.runState(ctx, e, ep, w)
	}
	d, err := margo.Query(ctx, ep)
	switch {
	case errors.Is(err, codes.Again):
		return tooOften(ep)
	case errors.Is(err, codes.NoEntry):
		return fmt.Errorf("%w: %v does not allow queries (Config.AllowQuery, perf serve --allow-query), or is no Go program; -p ID asks for the identity of a provider", codes.NoEntry, ep)
	case err != nil:
		return err
	case o.config && len(d.Config) == 0:
		return fmt.Errorf("%v reports no configuration: Margo's JSON has no key for one of its values; query without -c prints the rest", ep)
	case o.config:
		_, err := fmt.Fprintf(w, "%s\n", cli.PrintableJSON(d.Config))
		return err
	case o.json:
		return cli.WriteJSON(w, answered{d, cli.Carried(e, ep.String())})
	}
	if _, err := fmt.Fprintf(w, "asked over %s\n", cli.Carried(e, ep.String())); err != nil {
		return err
	}
	return writeDescription(w, d)
}

// answered is the output of query --json.
type answered struct {
	*margo.Description
	Transport string `json:"transport"` // that carried the call: "tcp", "verbs", "sm"
}

// identities asks the process at ep for the identity of each provider of -p, the word that names the kind of its service, and prints
// them. It leaves out the ids without a provider.
func (o *queryOptions) identities(ctx context.Context, ep *cinnabar.Endpoint, w io.Writer) error {
	ids, err := parseProviders(o.providers)
	if err != nil {
		return err
	}
	var list []stats.Provider
	for _, id := range ids {
		identity, err := margo.Identity(ctx, ep.Provider(id))
		switch {
		case errors.Is(err, codes.NoEntry):
			continue
		case err != nil:
			return err
		}
		list = append(list, stats.Provider{ID: id, Identity: identity})
	}
	if len(list) == 0 {
		return fmt.Errorf("%w: %v has no provider with id %s; query without -p lists the providers of a Go process", codes.NoEntry, ep, strings.Join(o.providers, ","))
	}
	if o.json {
		return cli.WriteJSON(w, list)
	}
	return writeProviders(w, list)
}

// parseProviders reads ids and ranges of ids.
func parseProviders(list []string) ([]uint16, error) {
	var ids []uint16
	for _, text := range list {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || a > b {
			return nil, cli.Usagef("provider %q: want an id from 0 to 65535, or a range such as 40-42", text)
		}
		for id := a; id <= b; id++ {
			ids = append(ids, uint16(id))
		}
	}
	return ids, nil
}

func writeProviders(w io.Writer, list []stats.Provider) error {
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	i.Printf("PROVIDER\tIDENTITY\n")
	for _, p := range list {
		i.Printf("%d\t%s\n", p.ID, said(p.Identity))
	}
	return errors.Join(i.Err, t.Flush())
}

// saidMost is the largest number of bytes of a name that said prints, because the columns of a table are as wide as its longest name.
const saidMost = 160

// said returns the text that another process sent, safe for a terminal, or a dash for an empty one.
func said(s string) string {
	switch {
	case s == "":
		return "-"
	case len(s) > saidMost:
		return cli.Printable(strings.ToValidUTF8(s[:saidMost], "")) + "..."
	}
	return cli.Printable(s)
}

func writeDescription(w io.Writer, d *margo.Description) error {
	i := &cli.Printer{W: w}
	i.Printf("%s\n\n", said(d.Addr))
	if i.Err != nil {
		return i.Err
	}
	for _, part := range []func(io.Writer, *margo.Description) error{
		func(w io.Writer, d *margo.Description) error { return writeProviders(w, d.Providers) },
		writeRPCs, writePools, writeCounters,
	} {
		if err := part(w, d); err != nil {
			return err
		}
		i.Printf("\n")
	}
	i.Printf("query -c prints the configuration.\n")
	return i.Err
}

func writeRPCs(w io.Writer, d *margo.Description) error {
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	i.Printf("RPC\tPROVIDER\tFLAVOUR\tPOOL\tID\n")
	for _, r := range d.RPCs {
		provider := "-"
		if r.Provider != nil {
			provider = strconv.Itoa(int(*r.Provider))
		}
		i.Printf("%s\t%s\t%s\t%s\t0x%016x\n", said(r.Name), provider, said(r.Flavor), said(r.Pool), r.ID)
	}
	return errors.Join(i.Err, t.Flush())
}

func writePools(w io.Writer, d *margo.Description) error {
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	i.Printf("POOL\tKIND\tWORKERS\tRUNNING\tWAITING\tQUEUED\tSERVED\tREFUSED\n")
	line := func(name, kind, workers string, s stats.Pool) {
		i.Printf("%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\n", name, kind, workers, s.Running, s.Waiting, s.Queued, s.Served, s.Refused)
	}
	line("(none)", "-", "-", d.Handlers)
	for _, p := range d.Pools {
		line(said(p.Name), said(p.Kind), strconv.Itoa(p.Workers), p.Stats)
	}
	return errors.Join(i.Err, t.Flush())
}

// writeCounters prints the statistics that are not zero.
func writeCounters(w io.Writer, d *margo.Description) error {
	b, err := json.Marshal(d.Stats)
	if err != nil {
		return err
	}
	var counters map[string]json.Number
	if err := json.Unmarshal(b, &counters); err != nil {
		return err
	}
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	i.Printf("COUNTER\tVALUE\n")
	names := make([]string, 0, len(counters))
	for name, v := range counters {
		if v != "0" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		i.Printf("%s\t%s\n", name, counters[name])
	}
	return errors.Join(i.Err, t.Flush())
}

// shutdownAccepted is the result of shutdown --json: the process has agreed to end.
type shutdownAccepted struct {
	Address string `json:"address"`
}

// NewShutdown returns the command shutdown.
func NewShutdown(s cli.Streams) *cobra.Command {
	var caller cli.Caller
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "shutdown ADDRESS",
		Short: "Ask a running process to shut its engine down",
		Long: `shutdown asks the process at ADDRESS, such as ofi+tcp://10.0.0.1:1234, to end: it stops
taking requests, finishes those that it has, and closes. A Go process obeys if its engine
has Config.AllowRemoteShutdown, a C process if it has called margo_enable_remote_shutdown.`,
		Example: "  cinnabar shutdown ofi+tcp://127.0.0.1:7000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return caller.Ask(cmd.Context(), args[0], func(ctx context.Context, _ *cinnabar.Engine, ep *cinnabar.Endpoint) error {
				if err := margo.ShutdownRemote(ctx, ep); err != nil {
					return err
				}
				if asJSON {
					return cli.WriteJSON(s.Out, shutdownAccepted{ep.String()})
				}
				_, err := fmt.Fprintf(s.Out, "%v shuts down\n", ep)
				return err
			})
		},
	}
	cli.JSONFlag(cmd.Flags(), &asJSON)
	caller.Register(cmd.Flags(), s, askTimeout, "how long to wait for the answer")
	return cmd
}
