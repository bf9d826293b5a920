// Package call has the commands call, ping and id, which are about single RPCs of a running process.
package call

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
)

// defaultTimeout is the time that call waits for the other process.
const defaultTimeout = 30 * time.Second

// maxResponse bounds a response that is longer than a message, in bytes.
const maxResponse = 64 << 20

// callOptions are the options of call.
type callOptions struct {
	flavor   flavor
	provider uint16
	numbered bool // --provider was given
	in, out  string
	args     string
	memory   memoryList // of --bulk-in and --bulk-out, in the order of the command line
	oneWay   bool
	reflect  bool
	flavored bool // --flavor was given
	grace    time.Duration
	caller   cli.Caller
}

// New returns the command call.
func New(s cli.Streams) *cobra.Command {
	o := &callOptions{}
	cmd := &cobra.Command{
		Use:   "call ADDRESS [NAME]",
		Short: "Call an RPC of a running process",
		Long: `call calls the RPC NAME of the process at ADDRESS, such as ofi+tcp://10.0.0.1:1234, and prints
its results as JSON: one value, or an array of several.

--in and --out list the types of the arguments and results, because messages do not have them:
bool, int8 to int64, uint8 to uint64, float32, float64, string and bulk, or their names in C
(hg_string_t, uint32_t). T[N] is an array, T[] a list with a count of 64 bits. --args has the
arguments as a JSON array. uint8[] is a string in base64 there.

A bulk argument takes the next file of --bulk-in and --bulk-out. The server reads the bytes of
the one, and writes those of the other, a new file of SIZE bytes. Neither is copied.

With --reflect the process describes its RPCs, if it has turned that on (native.HandleReflection).
Without NAME they are printed. With NAME the types are those of the description, also for RPCs
between Go programs (package native), and --args has a JSON object with the fields of the
arguments, or an array of them in their order.`,
		Example: `  cinnabar call $SERVER hello
  cinnabar call $SERVER sum --in int32,int32 --args '[17, 25]' --out int32
  cinnabar call $SERVER sum --in int32,bulk --args [9] --bulk-in x --out int32
  cinnabar call $SERVER --reflect
  cinnabar call $SERVER add --reflect --args '{"X": 1, "Y": 2}'
  cinnabar call $SERVER do_rdma -f thallium --in bulk --bulk-in x --one-way`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.numbered, o.flavored = cmd.Flags().Changed("provider"), cmd.Flags().Changed("flavor")
			switch {
			case len(args) == 1 && !o.reflect:
				return cli.Usagef("no NAME was given; give the name of an RPC, or --reflect for the names that the process describes")
			case len(args) == 1:
				return o.list(cmd.Context(), args[0], s)
			case o.reflect:
				return o.described(cmd.Context(), args[0], args[1], s)
			}
			return o.run(cmd.Context(), args[0], args[1], s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.VarP(&o.flavor, "flavor", "f", "flavour of the RPC: margo, mercury or thallium")
	f.Uint16VarP(&o.provider, "provider", "p", 0, "id of the provider (default: that of RPCs without provider, 65535 for margo and 0 for thallium)")
	f.StringVar(&o.in, "in", "", "types of the arguments, as in uint32,string (default none)")
	f.StringVar(&o.args, "args", "", "arguments, a JSON array (default none)")
	f.StringVar(&o.out, "out", "", "types of the results (default none)")
	f.Var(&memoryFlag{list: &o.memory, mode: cinnabar.ReadOnly}, "bulk-in", "file that the server reads; may be repeated")
	f.Var(&memoryFlag{list: &o.memory, mode: cinnabar.WriteOnly}, "bulk-out", "file of SIZE bytes that the server writes; it must not exist; may be repeated")
	f.BoolVar(&o.reflect, "reflect", false, "ask the process for the types, in place of --in and --out")
	f.BoolVar(&o.oneWay, "one-way", false, "the RPC has no response")
	f.DurationVar(&o.grace, "grace", time.Second, "how long the files stay exposed after a one-way call")
	o.caller.Register(f, s, defaultTimeout, "how long to wait for the response")
	return cmd
}

// flavor is the value of --flavor.
type flavor struct{ cinnabar.Flavor }

// flavorNames are the values of --flavor.
var flavorNames = map[cinnabar.Flavor]string{cinnabar.Margo: "margo", cinnabar.Mercury: "mercury", cinnabar.Thallium: "thallium"}

func (f *flavor) String() string { return flavorNames[f.Flavor] }
func (*flavor) Type() string     { return "FLAVOR" }

func (f *flavor) Set(text string) error {
	for known, name := range flavorNames {
		if strings.EqualFold(text, name) {
			f.Flavor = known
			return nil
		}
	}
	return fmt.Errorf("unknown flavour %q; want margo, mercury or thallium", text)
}

// run makes the call.
func (o *callOptions) run(ctx context.Context, address, name string, s cli.Streams) (err error) {
	in, err := parseTypes("--in", o.in)
	if err != nil {
		return err
	}
	out, err := parseTypes("--out", o.out)
	if err != nil {
		return err
	}
	if n := in.bulks(); n != len(o.memory) {
		return cli.Usagef("--in has %d types bulk; --bulk-in and --bulk-out name %d files", n, len(o.memory))
	}
	switch {
	case o.grace < 0:
		return cli.Usagef("--grace is %v; want a time of 0 or more", o.grace)
	case o.oneWay && o.out != "":
		return cli.Usagef("--one-way and --out were given; an RPC without response has no results")
	case o.numbered && o.flavor.Flavor == cinnabar.Mercury:
		return cli.Usagef("--provider and --flavor mercury were given; RPCs of that flavour have no providers")
	}
	// The values are checked before anything is sent. The handles are not known yet, and their bytes do not matter here.
	if _, err := in.arguments(o.args, make([]cinnabar.BulkHandle, len(o.memory))); err != nil {
		return err
	}
	return o.caller.Engine(ctx, address, cinnabar.Config{MaxOverflow: maxResponse}, func(ctx context.Context, e *cinnabar.Engine) (err error) {
		ep, err := e.Lookup(address)
		if err != nil {
			return err
		}
		handles, err := o.memory.expose(e)
		defer func() { err = errors.Join(err, o.memory.close(err == nil)) }()
		if err != nil {
			return err
		}
		m, err := in.arguments(o.args, handles)
		if err != nil {
			return err
		}
		var to cinnabar.Target = ep
		if o.numbered {
			to = ep.Provider(o.provider)
		}
		if o.oneWay {
			if err := cinnabar.NewOneWay[message](name, cinnabar.WithFlavor(o.flavor.Flavor)).Send(ctx, to, m); err != nil {
				return err
			}
			return o.memory.grace(ctx, o.grace)
		}
		result, err := cinnabar.NewRPC[message, message](name, cinnabar.WithFlavor(o.flavor.Flavor)).Call(ctx, to, m)
		if err != nil {
			return err
		}
		return o.print(s, out, result)
	})
}

// print prints the results.
func (o *callOptions) print(s cli.Streams, out typeList, result message) error {
	values, rest, err := out.results(result)
	if err != nil {
		return err
	}
	if rest > 0 {
		s.Notef("note: the response has %d bytes more than --out describes: %s\n", rest, beginning(result.raw[len(result.raw)-rest:]))
	}
	switch len(values) {
	case 0:
		return nil
	case 1:
		return cli.WriteJSON(s.Out, values[0])
	}
	return cli.WriteJSON(s.Out, values)
}

// memoryList is the memories of a call.
type memoryList []*memory

// memory is the memory of one bulk argument.
type memory struct {
	file string
	mode cinnabar.Mode
	size int64 // of WriteOnly
	made bool  // the file did not exist before
	bulk *cinnabar.Bulk
}

// memoryFlag is the option --bulk-in or --bulk-out. Both add to one list, because their order counts.
type memoryFlag struct {
	list *memoryList
	mode cinnabar.Mode
}

func (*memoryFlag) String() string { return "" }

func (f *memoryFlag) Type() string {
	if f.mode == cinnabar.WriteOnly {
		return "FILE:SIZE"
	}
	return "FILE"
}

func (f *memoryFlag) Set(text string) error {
	m := &memory{file: text, mode: f.mode}
	if f.mode == cinnabar.WriteOnly {
		i := strings.LastIndexByte(text, ':')
		if i <= 0 {
			return fmt.Errorf("%q has no size; want FILE:SIZE, as in result:4KiB", text)
		}
		var err error
		if m.size, err = cli.ParseSize("--bulk-out", text[i+1:], 1, 1<<40); err != nil {
			return err
		}
		m.file = text[:i]
	}
	*f.list = append(*f.list, m)
	return nil
}

var _ pflag.Value = (*memoryFlag)(nil)

// expose lets the server access the memories, and returns their handles.
func (l memoryList) expose(e *cinnabar.Engine) ([]cinnabar.BulkHandle, error) {
	var handles []cinnabar.BulkHandle
	for _, m := range l {
		if err := m.expose(e); err != nil {
			return nil, err
		}
		handles = append(handles, m.bulk.Handle())
	}
	return handles, nil
}

func (m *memory) expose(e *cinnabar.Engine) error {
	flags := os.O_RDONLY
	if m.mode == cinnabar.WriteOnly {
		flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	} else if info, err := os.Stat(m.file); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("--bulk-in: %s is no regular file (%s), and only such a file can be memory; copy it to one first", m.file, info.Mode()) // the open of a pipe would wait for a writer
	}
	f, err := os.OpenFile(m.file, flags, 0o666)
	switch {
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("--bulk-out: %w; choose a name that does not exist", err)
	case err != nil:
		return err
	}
	if m.mode == cinnabar.WriteOnly {
		m.made = true
		err = f.Truncate(m.size)
	}
	if err == nil {
		m.bulk, err = e.ExposeFile(m.mode, f)
	}
	return errors.Join(err, f.Close())
}

// close ends the server's access. Unless the call succeeded, close removes the files that expose has made.
func (l memoryList) close(succeeded bool) (err error) {
	for _, m := range l {
		if m.bulk != nil {
			err = errors.Join(err, m.bulk.Close())
		}
		if m.made && !succeeded {
			err = errors.Join(err, os.Remove(m.file))
		}
	}
	return err
}

// grace keeps the memories exposed for a time, because the server of an RPC without response gives no sign of having used them. Bulk.Close
// then waits for transfers under way.
func (l memoryList) grace(ctx context.Context, d time.Duration) error {
	if len(l) == 0 {
		return nil
	}
	if err := pause(ctx, d); err != nil {
		return fmt.Errorf("the memory was exposed for less than --grace %v: %w", d, err)
	}
	return nil
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
