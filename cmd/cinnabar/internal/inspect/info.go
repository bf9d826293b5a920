// Package inspect has the commands that list the protocols and devices of this machine, info and devices, and those that ask another process,
// query and shutdown.
package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
	"cinnabar/internal/hostquota"
	"cinnabar/margo"
)

// infoOptions are the options of hg_info and margo-info.
type infoOptions struct {
	csv       bool   // -c
	json      bool   // -j
	silent    bool   // -s
	libraries bool   // -l
	log       string // --log
}

// NewInfo returns the command info.
func NewInfo(s cli.Streams) *cobra.Command {
	o := &infoOptions{}
	cmd := &cobra.Command{
		Use:   "info [CLASS+PROTOCOL]",
		Short: "Try the protocols for RPCs, as margo-info and hg_info do",
		Long: `info opens an engine on each device of this machine, one after the other, and prints the
address that it gets, or why it cannot be opened; then the address that an engine would
choose, and for ofi+verbs the RDMA device, with the reason. With an argument, such as tcp
or ofi+verbs, it tries that protocol only, and fails if it cannot be used.

The last table has the limits of the memory and connections that peers can use here, where a configuration
leaves them 0, and where each comes from.`,
		Example: "  cinnabar info\n  cinnabar info tcp\n  cinnabar info --json na+sm",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.csv && o.json {
				return cli.Usagef("--csv and --json were given; choose one")
			}
			return o.run(cmd.Context(), args, s.Out)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.csv, "csv", "c", false, "print the protocols that can be used, as comma-separated values")
	cli.JSONFlag(f, &o.json)
	f.BoolVarP(&o.silent, "silent", "s", false, "print no list; the exit code is 0 if the protocol can be used")
	f.BoolVarP(&o.libraries, "libraries", "l", false, "list Go's version and the modules that the program is built with, too")
	f.StringVar(&o.log, "log", "", "write the log of the engines to this file")
	return cmd
}

func (o *infoOptions) run(ctx context.Context, args []string, w io.Writer) (err error) {
	log := io.Discard
	if o.log != "" {
		f, err := os.Create(o.log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		log = f
	}
	logger, err := margo.NewLogger(log, margo.LogLevels{Mercury: "debug"})
	if err != nil {
		return err
	}
	cfg := cli.Logged(ctx, nil)
	cfg.Logger = logger
	r, err := gatherInfo(ctx, args, cfg)
	if err != nil || o.silent {
		return err
	}
	r.Limits = defaultLimits(hostquota.Machine())
	if o.libraries {
		r.Libraries = libraries()
	}
	return r.write(o, w)
}

// libraries returns the versions of Go and of the modules that the program is built with.
func libraries() []string {
	list := []string{runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			list = append(list, m.Path+" "+m.Version)
		}
	}
	return list
}

// infoReport is the output of info.
type infoReport struct {
	Protocols   []infoLine   `json:"protocols"` // that can be used, as hg_info prints them
	Unavailable []infoLine   `json:"unavailable"`
	Chosen      []infoChosen `json:"chosen"`
	Limits      []infoLimits `json:"limits"`
	Libraries   []string     `json:"libraries,omitempty"`
}

// infoLine is a protocol on a device.
type infoLine struct {
	Specifier string `json:"specifier"` // that was opened
	Class     string `json:"class"`
	Protocol  string `json:"protocol"`
	Device    string `json:"device,omitempty"`
	Address   string `json:"address,omitempty"`         // of an engine on the device, without its port
	Runtime   string `json:"runtime_address,omitempty"` // of the engine that was opened
	Reason    string `json:"reason,omitempty"`          // why it cannot be used
}

// infoChosen is the address that an engine would choose for the protocol alone.
type infoChosen struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"` // empty if an engine would find no RDMA device
	Reason   string `json:"reason"`
}

// gatherInfo tries all protocols on all devices, or the protocol that args names.
// cfg is that of the engines that are opened.
func gatherInfo(ctx context.Context, args []string, cfg *cinnabar.Config) (*infoReport, error) {
	list, err := margo.Protocols(ctx)
	if err != nil {
		return nil, err
	}
	// Package margo opens no RDMA devices, so its line for this protocol names none; verbsProtocols has one line for each device.
	list = slices.DeleteFunc(list, func(p margo.Protocol) bool { return p.Name == verbsName })
	list = append(list, verbsProtocols()...)
	r := &infoReport{Protocols: []infoLine{}, Unavailable: []infoLine{}, Chosen: []infoChosen{}}
	for _, p := range list {
		if len(args) == 0 || protocolMatches(args[0], p) {
			r.add(try(p, cfg))
		}
	}
	if len(args) == 1 && len(r.Protocols) == 0 {
		return nil, r.unsupported(args[0], list)
	}
	return r, r.choose(ctx, cfg)
}

// protocolMatches reports whether text, a protocol such as "tcp" or "ofi+tcp" or an address such as "ofi+tcp://host", names the
// protocol p.
func protocolMatches(text string, p margo.Protocol) bool {
	text, _, _ = strings.Cut(text, "://")
	return text == p.String() || text == p.Name || p.Name == verbsName && cli.OverVerbs(text)
}

// try opens an engine for the protocol, unless it is known that it cannot be used, and returns the address that it got.
func try(p margo.Protocol, cfg *cinnabar.Config) (_ margo.Protocol, runtime string) {
	if p.Err != nil {
		return p, ""
	}
	if p.Name == verbsName {
		return tryVerbs(p, cfg)
	}
	if runtime, p.Err = listen(p, cfg); p.Err != nil {
		p.Addr = ""
	}
	return p, runtime
}

// listen returns the address of an engine that it opens for the protocol and closes.
func listen(p margo.Protocol, cfg *cinnabar.Config) (runtime string, err error) {
	e, err := cinnabar.Listen(context.Background(), specifier(p), cfg)
	if err != nil {
		return "", err
	}
	return e.Addr(), e.Close()
}

// specifier returns the address to open for the protocol on its device.
func specifier(p margo.Protocol) string {
	if p.Class == "na" {
		return p.String() + "://" // where the device is always the same
	}
	return p.String() + "://" + p.Device
}

// add lists p among the protocols that can be used, with runtime, the address of the engine that try opened, or, if p.Err is set, among
// the unavailable ones with the reason.
func (r *infoReport) add(p margo.Protocol, runtime string) {
	line := infoLine{Specifier: specifier(p), Class: p.Class, Protocol: p.Name, Device: p.Device, Address: p.Addr, Runtime: runtime}
	if p.Err == nil {
		r.Protocols = append(r.Protocols, line)
		return
	}
	line.Reason = cli.OneLine(p.Err)
	if e, ok := errors.AsType[*cinnabar.Error](p.Err); ok && e.Err != nil {
		line.Reason = cli.OneLine(e.Err) // the device stands beside it
	}
	r.Unavailable = append(r.Unavailable, line)
}

// unsupported returns the reason why no protocol that text names can be used.
func (r *infoReport) unsupported(text string, all []margo.Protocol) error {
	if len(r.Unavailable) > 0 {
		var reasons []string
		for _, l := range r.Unavailable {
			reasons = append(reasons, strings.TrimSpace(l.Device+" "+l.Reason))
		}
		return fmt.Errorf("%w: %s cannot be used: %s", codes.ProtoNoSupport, text, strings.Join(reasons, "; "))
	}
	known := map[string]bool{}
	var names []string
	for _, p := range all {
		if p.Err == nil && !known[p.String()] {
			known[p.String()] = true
			names = append(names, p.String())
		}
	}
	if len(names) == 0 {
		names = []string{"none that can be used here"}
	}
	return fmt.Errorf("%w: there is no protocol %q; there is %s", codes.ProtoNoSupport, text, strings.Join(names, ", "))
}

// choose finds the address for each protocol that can be used.
func (r *infoReport) choose(ctx context.Context, cfg *cinnabar.Config) error {
	for _, l := range r.Protocols {
		name := l.Class + "+" + l.Protocol
		if l.Protocol == verbsName {
			r.Chosen = append(r.Chosen, r.chooseDevice())
			break // the lines of ofi+verbs come last, and chooseDevice has chosen one device for all of them
		}
		if n := len(r.Chosen); n > 0 && r.Chosen[n-1].Protocol == name {
			continue
		}
		address, reason, err := margo.ChooseAddr(ctx, name, cfg)
		if err != nil {
			return err
		}
		r.Chosen = append(r.Chosen, infoChosen{name, address, reason})
	}
	return nil
}

func (r *infoReport) write(o *infoOptions, w io.Writer) error {
	switch {
	case o.csv:
		return r.writeCSV(w)
	case o.json:
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.writeTable(w)
}

// writeCSV prints the lines of hg_info -c. Neither protocols nor interfaces have commas in their names.
func (r *infoReport) writeCSV(w io.Writer) error {
	i := &cli.Printer{W: w}
	i.Printf("class,protocol,device\n")
	for _, l := range r.Protocols {
		i.Printf("%s,%s,%s\n", l.Class, l.Protocol, l.Device)
	}
	return i.Err
}

// reasonWidth is the largest number of columns of a reason beside addresses and results.
func (r *infoReport) reasonWidth() int {
	widest := 0
	for _, l := range slices.Concat(r.Protocols, r.Unavailable) {
		widest = max(widest, len(l.Specifier))
	}
	const result, least = len("RESULT") + 4, 24
	return max(cli.Width-result-widest, least)
}

func (r *infoReport) writeTable(w io.Writer) error {
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	i.Printf("ADDRESS\tRESULT\tRUNTIME ADDRESS, OR WHY NOT\n")
	for _, l := range r.Protocols {
		i.Printf("%s\tYES\t%s\n", l.Specifier, l.Runtime)
	}
	width := r.reasonWidth()
	for _, l := range r.Unavailable {
		i.Printf("%s\tNO\t%s\n", l.Specifier, strings.ReplaceAll(cli.Fold(l.Reason, width), "\n", "\n\t\t"))
	}
	if err := errors.Join(i.Err, t.Flush()); err != nil {
		return err
	}
	i = &cli.Printer{W: w}
	for _, c := range r.Chosen {
		i.Printf("\n%s\n", cli.Fold(fmt.Sprintf("%s chooses %s: %s", c.Protocol, cmp.Or(c.Address, "no device"), c.Reason), cli.Width))
	}
	t = cli.NewTable(w)
	limits := &cli.Printer{W: t}
	r.writeLimits(limits)
	if err := errors.Join(i.Err, limits.Err, t.Flush()); err != nil {
		return err
	}
	if len(r.Libraries) > 0 {
		i.Printf("\nbuilt with %s\n", strings.Join(r.Libraries, "\n           "))
	}
	return i.Err
}
