package call

import (
	"fmt"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
)

// identified is a line of the output of id.
type identified struct {
	Flavor   string  `json:"flavor"`
	Provider *uint16 `json:"provider,omitempty"` // nil: none was given
	ID       uint64  `json:"id"`
	Hex      string  `json:"hex"`
}

// NewID returns the command id.
func NewID(s cli.Streams) *cobra.Command {
	var provider uint16
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "id NAME",
		Short: "Print the ids of an RPC's name",
		Long: `id prints the number of 64 bits that stands for the RPC NAME in messages, for each flavour:
Margo and Thallium combine a hash of the name with the id of a provider, Mercury hashes the name
alone. Logs and captures of C programs have these numbers.`,
		Example: "  cinnabar id sum\n  cinnabar id sum --provider 42",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return cli.Usagef("NAME is empty")
			}
			var of *uint16
			if cmd.Flags().Changed("provider") {
				of = &provider
			}
			list := identify(args[0], of)
			if asJSON {
				return cli.WriteJSON(s.Out, list)
			}
			t := cli.NewTable(s.Out)
			i := &cli.Printer{W: t}
			i.Printf("FLAVOUR\tHEX\tDECIMAL\n")
			for _, l := range list {
				i.Printf("%s\t%s\t%d\n", l.Flavor, l.Hex, l.ID)
			}
			if i.Err != nil {
				return i.Err
			}
			return t.Flush()
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Uint16VarP(&provider, "provider", "p", 0, "id of the provider (default: the RPC belongs to none)")
	cli.JSONFlag(f, &asJSON)
	return cmd
}

// identify returns the ids of a name. Mercury's has no provider.
func identify(name string, provider *uint16) []identified {
	var list []identified
	for _, f := range []cinnabar.Flavor{cinnabar.Margo, cinnabar.Thallium, cinnabar.Mercury} {
		if f == cinnabar.Mercury && provider != nil {
			continue
		}
		p := uint16(0) // Thallium's
		switch {
		case provider != nil:
			p = *provider
		case f == cinnabar.Margo:
			p = 0xffff // MARGO_DEFAULT_PROVIDER_ID
		}
		id := cinnabar.NewRPC[struct{}, struct{}](name, cinnabar.WithFlavor(f)).ID(p)
		list = append(list, identified{flavorNames[f], provider, id, fmt.Sprintf("0x%016x", id)})
	}
	return list
}
