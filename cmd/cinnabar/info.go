package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"cinnabar"
)

// infoOptions are the options of hg_info.
type infoOptions struct {
	csv    bool // -c
	json   bool // -j
	silent bool // -s
}

func newInfo(s streams) *cobra.Command {
	o := &infoOptions{}
	cmd := &cobra.Command{
		Use:   "info [CLASS+PROTOCOL]",
		Short: "List what RPCs can be made over, as hg_info does, and the address that would be chosen",
		Long: `info lists protocols with the devices of this machine that they can be used on, those
that cannot be used with the reason, and the address that an engine would choose. With
an argument, such as tcp or ofi+tcp, it lists that protocol only, and fails if it cannot
be used.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.csv && o.json {
				return usagef("--csv and --json were given; choose one")
			}
			r, err := gatherInfo(cmd.Context(), args)
			if err != nil || o.silent {
				return err
			}
			return r.write(o, s.out)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.csv, "csv", "c", false, "print what can be used, as comma-separated values")
	f.BoolVarP(&o.json, "json", "j", false, "print a JSON object")
	f.BoolVarP(&o.silent, "silent", "s", false, "print no list; the exit code tells whether the protocol can be used")
	return cmd
}

// infoReport is what info prints.
type infoReport struct {
	Protocols   []infoLine   `json:"protocols"` // that can be used, as hg_info prints them
	Unavailable []infoLine   `json:"unavailable"`
	Chosen      []infoChosen `json:"chosen"`
}

// infoLine is a protocol on a device.
type infoLine struct {
	Class    string `json:"class"`
	Protocol string `json:"protocol"`
	Device   string `json:"device,omitempty"`
	Address  string `json:"address,omitempty"` // of an engine on the device, without its port
	Reason   string `json:"reason,omitempty"`  // why it cannot be used
}

// infoChosen is the address that an engine would choose if it were told the protocol alone.
type infoChosen struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	Reason   string `json:"reason"`
}

// gatherInfo finds out what there is, restricted to the protocol that args names, if any.
func gatherInfo(ctx context.Context, args []string) (*infoReport, error) {
	list, err := cinnabar.Protocols(ctx)
	if err != nil {
		return nil, err
	}
	r := &infoReport{Protocols: []infoLine{}, Unavailable: []infoLine{}, Chosen: []infoChosen{}}
	for _, p := range list {
		if len(args) == 0 || protocolMatches(args[0], p) {
			r.add(p)
		}
	}
	if len(args) == 1 && len(r.Protocols) == 0 {
		return nil, r.unsupported(args[0], list)
	}
	return r, r.choose(ctx)
}

// protocolMatches tells whether text, which may have an address behind it, means the protocol: "tcp", "ofi+tcp",
// "ofi+tcp://host".
func protocolMatches(text string, p cinnabar.Protocol) bool {
	text, _, _ = strings.Cut(text, "://")
	return text == p.String() || text == p.Name
}

func (r *infoReport) add(p cinnabar.Protocol) {
	line := infoLine{Class: p.Class, Protocol: p.Name, Device: p.Device, Address: p.Addr}
	if p.Err == nil {
		r.Protocols = append(r.Protocols, line)
		return
	}
	line.Reason = oneLine(p.Err)
	if e, ok := errors.AsType[*cinnabar.Error](p.Err); ok && e.Err != nil {
		line.Reason = oneLine(e.Err) // the device stands beside it
	}
	r.Unavailable = append(r.Unavailable, line)
}

// unsupported says why nothing can be used of what text names.
func (r *infoReport) unsupported(text string, all []cinnabar.Protocol) error {
	if len(r.Unavailable) > 0 {
		var reasons []string
		for _, l := range r.Unavailable {
			reasons = append(reasons, strings.TrimSpace(l.Device+" "+l.Reason))
		}
		return fmt.Errorf("%w: %s cannot be used: %s", cinnabar.CodeProtoNoSupport, text, strings.Join(reasons, "; "))
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
	return fmt.Errorf("%w: there is no protocol %q; there is %s", cinnabar.CodeProtoNoSupport, text, strings.Join(names, ", "))
}

// choose finds the address for each protocol that can be used.
func (r *infoReport) choose(ctx context.Context) error {
	for _, l := range r.Protocols {
		name := l.Class + "+" + l.Protocol
		if n := len(r.Chosen); n > 0 && r.Chosen[n-1].Protocol == name {
			continue
		}
		address, reason, err := cinnabar.ChooseAddr(ctx, name, nil)
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

// writeCSV prints what hg_info -c prints. Neither protocols nor interfaces have commas in their names.
func (r *infoReport) writeCSV(w io.Writer) error {
	i := &infoWriter{w: w}
	i.printf("class,protocol,device\n")
	for _, l := range r.Protocols {
		i.printf("%s,%s,%s\n", l.Class, l.Protocol, l.Device)
	}
	return i.err
}

func (r *infoReport) writeTable(w io.Writer) error {
	t := newTable(w)
	i := &infoWriter{w: t}
	i.printf("CLASS\tPROTOCOL\tDEVICE\tUSABLE\tADDRESS, OR WHY NOT\n")
	for _, l := range r.Protocols {
		i.printf("%s\t%s\t%s\tyes\t%s\n", l.Class, l.Protocol, l.Device, l.Address)
	}
	for _, l := range r.Unavailable {
		device := l.Device
		if device == "" {
			device = "-"
		}
		i.printf("%s\t%s\t%s\tNO\t%s\n", l.Class, l.Protocol, device, l.Reason)
	}
	if err := errors.Join(i.err, t.Flush()); err != nil {
		return err
	}
	i = &infoWriter{w: w}
	for _, c := range r.Chosen {
		i.printf("\n%s chooses %s: %s\n", c.Protocol, c.Address, c.Reason)
	}
	return i.err
}
