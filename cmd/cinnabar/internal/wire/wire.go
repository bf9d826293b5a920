// Package wire is the command wire, which decodes captures of network traffic: calls of Mercury over ofi+tcp and ofi+verbs, on RoCE and on
// iWARP, RDMA operations, and file transfers.
//
// A decoder takes packets and emits messages. It has a table for each kind of state that a message needs to find its call; package capture
// reads files and puts TCP streams in order. The parsers of the protocols are those of the packages that speak them.
package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/internal/capture"
	"cinnabar/internal/hg/wire"
)

// New returns the command wire.
func New(s cli.Streams) *cobra.Command {
	o := &options{s: s}
	cmd := &cobra.Command{
		Use:   "wire FILE",
		Short: "Decode a capture of network traffic",
		Long: `wire decodes the messages in FILE, a capture in the form pcap or pcapng, or in standard input for
"-": calls of Mercury, Margo and Thallium over ofi+tcp and ofi+verbs, RDMA operations over RoCEv2 and
iWARP, and file transfers. It prints one line for each message: the packet that has its last byte, the
seconds since the first packet, source, destination, protocol, size, operation, and further fields.

A line that belongs to a call has its number. --follow prints the lines of one call, or of all calls
of one RPC. A capture has the ids of RPCs; --name makes wire print a name in the lines with its ids.`,
		Example: `  cinnabar wire calls.pcap --name sum
  cinnabar wire calls.pcap --follow 3
  tcpdump -i lo -w - | cinnabar wire - --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.follow, "follow", "f", "", "print the messages of one call: its number, or the id or the name of an RPC")
	f.StringArrayVarP(&o.names, "name", "n", nil, "name of an RPC, to print beside its id; may be given several times")
	cli.JSONFlag(f, &o.asJSON)
	return cmd
}

type options struct {
	s      cli.Streams
	follow string
	names  []string
	asJSON bool
}

// knownNames are RPCs that Margo has in each process.
var knownNames = []string{"__shutdown__", "__identity__"}

func (o *options) run(ctx context.Context, path string) error {
	chosen, err := newChoice(o.follow)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(o.s.Out, 1<<16)
	p := &printer{w: out, asJSON: o.asJSON}
	in := openSource(ctx, path, o.s.In, out.Flush)
	defer in.stop()
	file, err := capture.NewReader(in)
	if err != nil {
		return cli.Reason(ctx, named(path, err))
	}
	var printErr error
	d := newDecoder(func(m *message) {
		if printErr == nil && chosen.has(m) {
			printErr = p.print(m)
		}
	})
	for _, name := range append(knownNames, o.names...) {
		d.name(name)
	}
	readErr := readAll(ctx, file, d, &printErr)
	if ctx.Err() == nil {
		d.close()
	}
	if printErr == nil {
		printErr = out.Flush()
	}
	if printErr != nil {
		return cli.Reason(ctx, printErr)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, n := range d.notes() {
		o.s.Notef("not decoded: %s\n", n)
	}
	if e, ok := errors.AsType[*capture.Error](readErr); ok && e.Truncated {
		o.s.Notef("%s: %s: all packets before it are decoded\n", cli.Printable(path), e)
		readErr = nil
	}
	if readErr != nil {
		return named(path, readErr)
	}
	if o.follow != "" && chosen.found == 0 {
		return fmt.Errorf("%s has no call of --follow %s; the lines of all calls have their numbers and ids", path, o.follow)
	}
	return nil
}

// named puts the name of the file before an error in its bytes. Errors of the system have it.
func named(path string, err error) error {
	if _, ok := errors.AsType[*capture.Error](err); ok {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// name makes the decoder print the name of an RPC beside its ids.
func (d *decoder) name(name string) { d.names[wire.ID(name, 0)], d.names[wire.Djb2(name)] = name, name }

// readAll decodes packets until the end of the file, an error, or the end of ctx.
func readAll(ctx context.Context, file *capture.Reader, d *decoder, printErr *error) error {
	var p capture.Packet
	for ctx.Err() == nil && *printErr == nil {
		if err := file.Next(&p); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		d.add(&p)
	}
	return nil
}

// choice selects messages.
type choice struct {
	all   bool
	call  int
	ids   []uint64 // of an RPC, without provider
	exact uint64
	found int
}

// newChoice reads the value of --follow.
func newChoice(text string) (*choice, error) {
	if text == "" {
		return &choice{all: true}, nil
	}
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		n, err := strconv.ParseUint(hex, 16, 64)
		if err != nil || n == 0 {
			return nil, cli.Usagef("--follow %q: an id is 0x and up to 16 hexadecimal digits, not all 0", text)
		}
		return &choice{exact: n}, nil
	}
	if strings.Trim(text, "0123456789") == "" {
		n, err := strconv.Atoi(text)
		if err != nil || n == 0 {
			return nil, cli.Usagef("--follow %q: the calls of a capture are numbered from 1", text)
		}
		return &choice{call: n}, nil
	}
	return &choice{ids: []uint64{wire.ID(text, 0), wire.Djb2(text)}}, nil
}

func (c *choice) has(m *message) bool {
	ok := c.all || m.call != 0 && (m.call == c.call || c.exact != 0 && m.rpc == c.exact)
	for _, want := range c.ids {
		same := m.rpc == want
		if m.rpc>>32 != 0 {
			same = wire.WithProvider(m.rpc, 0)&^nativeMark == want
		}
		ok = ok || m.call != 0 && same
	}
	if ok {
		c.found++
	}
	return ok
}

// source reads a file or standard input in a goroutine, because a read of a pipe ends only when bytes come.
type source struct {
	ctx    context.Context
	cancel context.CancelFunc
	wait   func() error // called before Read waits
	chunks chan chunk
	rest   []byte
	err    error
}

type chunk struct {
	b   []byte
	err error
}

const chunkLen = 1 << 16

// openSource opens path, or standard input for "-".
func openSource(ctx context.Context, path string, stdin io.Reader, wait func() error) *source {
	s := &source{wait: wait, chunks: make(chan chunk)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	go s.pump(path, stdin)
	return s
}

func (s *source) stop() { s.cancel() }

// pump sends the bytes of the file until its end, or until stop. A read that waits for bytes then ends with the process.
func (s *source) pump(path string, in io.Reader) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			s.send(chunk{err: err})
			return
		}
		defer cli.Shut(f)
		in = f
	}
	for {
		b := make([]byte, chunkLen)
		n, err := in.Read(b)
		if !s.send(chunk{b[:n], err}) || err != nil {
			return
		}
	}
}

func (s *source) send(c chunk) bool {
	select {
	case s.chunks <- c:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// Read implements [io.Reader]. It ends when the context of the command ends.
func (s *source) Read(b []byte) (int, error) {
	if len(s.rest) == 0 && s.err == nil {
		select {
		case c := <-s.chunks:
			s.rest, s.err = c.b, c.err
		default:
			s.receive()
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	if n == 0 {
		return 0, s.err
	}
	return n, nil
}

// receive waits for the next chunk.
func (s *source) receive() {
	if err := s.wait(); err != nil {
		s.err = err
		return
	}
	select {
	case c := <-s.chunks:
		s.rest, s.err = c.b, c.err
	case <-s.ctx.Done():
		s.err = context.Cause(s.ctx)
	}
}
