// Package demo is the command that shows every kind of operation between two processes on loopback.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/cmd/cinnabar/internal/peerproc"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// Sizes of the demonstration, in bytes unless said otherwise. The registered
// memory is bounded for data of every size, because the data moves in rounds.
const (
	defaultSize = 64 * cli.MiB // of random data
	chunkLen    = cli.MiB      // of one operation
	roundLen    = 16 * cli.MiB // of registered memory on each side
	depth       = 64           // work requests in one queue: a round's chunks and a message
	atomicCount = 1000         // operations of each kind
	words       = 2            // behind the round, for atomics
	wordLen     = 8
)

// wordOffset is where the word i of the peer's memory is.
func wordOffset(i int) int { return roundLen + i*wordLen }

// options are the options of demo.
type options struct {
	device string
	autoSM bool
	json   bool
}

// New returns the command demo.
func New(s cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "demo [FILE]",
		Short: "Show the main job on loopback, between two real processes",
		Long: fmt.Sprintf(`demo starts a second process of itself and moves %s of random data, or FILE, by
every kind of operation: send/receive, RDMA write, write with immediate, RDMA
read, and counts by atomics. Then it transfers them as a file in both directions,
with the code of send and recv, calls remote procedures that pull integers to
add up, and the data, and keeps the data in memory that the other process lends:
over ofi+tcp, over ofi+verbs on the RDMA device, and over na+sm. With --auto-sm the
engines on the first two networks have shared memory beside them, which carries the calls.
Each pass is verified by SHA-256. The line after the table says ok, and commands to
try next follow it.

It uses an RDMA device of the machine if there is one that can be used, in builds that
reach them, and the software device otherwise; the first lines say which, and why.`, cli.SizeText(defaultSize)),
		Example: "  cinnabar demo\n  cinnabar demo notes.txt\n  cinnabar demo --auto-sm --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			src := randomSource(defaultSize)
			if len(args) == 1 {
				var err error
				if src, err = fileSource(args[0]); err != nil {
					return err
				}
			}
			return run(cmd.Context(), o, src, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	cli.DeviceFlagFor(f, &o.device, "RDMA device, one of those that cinnabar devices lists (default the first of the machine's own that can be used)")
	cli.AutoSMFlag(f, &o.autoSM, "open shared memory beside ofi+tcp and ofi+verbs too")
	cli.JSONFlag(f, &o.json)
	return cmd
}

// run starts the peer, carries out the demonstration with it and prints
// the table. The peer is gone when it returns.
func run(ctx context.Context, o *options, src source, s cli.Streams) (err error) {
	dev, why, err := openDevice(ctx, o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	notes := s.Out // lines for people
	if o.json {
		notes = io.Discard
	}
	if _, err := fmt.Fprintln(notes, cli.Fold(fmt.Sprintf("device %s (%s): %s", attr.Name, attr.Transport, why), cli.Width)); err != nil {
		return err
	}
	args := []string{peerCommand, "--device", attr.Name}
	if o.autoSM {
		args = append(args, "--auto-sm")
	}
	p, err := peerproc.Start(ctx, s.Err, args...)
	if err != nil {
		return err
	}
	d, err := demonstrate(ctx, o, dev, p, src, notes)
	if stopErr := p.Stop(); err == nil || peerproc.Killed(stopErr) { // else the peer's end follows from ours
		err = errors.Join(stopErr, err)
	}
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(s.Out, d.report())
	}
	return d.print(s.Out)
}

// demonstrate meets the peer and runs every step.
func demonstrate(ctx context.Context, o *options, dev *verbs.Device, p *peerproc.Process, src source, out io.Writer) (*session, error) {
	x, err := p.Meet(ctx)
	if err != nil {
		return nil, err
	}
	defer cli.Shut(x)
	d, err := newSession(dev, src)
	if err != nil {
		return nil, err
	}
	d.autoSM = o.autoSM
	if err = d.meet(ctx, x); err == nil {
		_, err = fmt.Fprintf(out, "%s of %s between processes %d and %d\n",
			cli.SizeText(src.Size), src.name(), os.Getpid(), p.Pid())
	}
	if err == nil {
		err = d.run(ctx)
	}
	if err == nil {
		err = d.files(ctx, dev, x)
	}
	if err == nil {
		err = d.calls(ctx, dev, x)
	}
	return d, errors.Join(err, d.Close(ctx))
}

// session is the active side of the demonstration.
type session struct {
	*talker
	src    source
	attr   verbs.DeviceAttr
	data   *verbs.MR // one round
	result *verbs.MR // where atomics put the old value
	peer   verbs.Region
	digest [32]byte // of the data, by the first pass
	passes int
	rows   []row
	autoSM bool // the engines have shared memory beside their network
}

// row is a line of the table.
type row struct {
	step       string
	operations int64
	bytes      int64
	took       time.Duration
	rate       string // with its unit
	verified   string
}

// newSession registers this side's memory.
func newSession(dev *verbs.Device, src source) (*session, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	t, err := newTalker(dev)
	if err != nil {
		return nil, err
	}
	d := &session{talker: t, src: src, attr: attr}
	if d.data, err = d.Alloc(roundLen, verbs.LocalWrite|attr.ReadSink); err == nil {
		d.result, err = d.Alloc(wordLen, verbs.LocalWrite)
	}
	if err != nil {
		return nil, errors.Join(err, d.Release())
	}
	return d, nil
}

// run goes through the steps in order.
func (d *session) run(ctx context.Context) error {
	for _, op := range []operation{opSendReceive, opWrite, opWriteImm, opRead} {
		if op == opWriteImm && !d.attr.Caps.Has(verbs.CapWriteImm) {
			d.skip(op.String())
			continue
		}
		if err := d.pass(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := d.atomics(ctx); err != nil {
		return err
	}
	return d.say(ctx, message{kind: kindBye})
}

// meet exchanges addresses and keys over TCP, and connects.
func (d *session) meet(ctx context.Context, x *link.Exchange) error {
	start := time.Now()
	if err := x.Send(d.src); err != nil {
		return err
	}
	info, err := x.Connect(ctx, d.Link, oob.Config{Active: true, Settings: settings()})
	if err != nil {
		return err
	}
	d.peer = info.Region
	if want := uint64(wordOffset(words)); d.peer.Size != want {
		return fmt.Errorf("out-of-band exchange: the peer offers %d bytes of memory instead of %d", d.peer.Size, want)
	}
	d.rows = append(d.rows, row{
		step: "out-of-band exchange", operations: 1, bytes: x.Bytes.Load(), took: time.Since(start), rate: "-",
		verified: "connected",
	})
	return nil
}

// at is the address of byte off of the peer's memory.
func (d *session) at(off int) verbs.RemoteAddr { return d.peer.Add(uint64(off)) }

// skip notes a step that the device cannot do.
func (d *session) skip(step string) {
	d.rows = append(d.rows, row{step: step, rate: "-", verified: "not supported"})
}

// report is the output of demo --json.
type report struct {
	Device    string `json:"device"`
	Transport string `json:"transport"`
	Data      string `json:"data"`
	Bytes     int64  `json:"bytes"`
	SHA256    string `json:"sha256"`
	Steps     []step `json:"steps"`
}

// step is one step of the demonstration. Its data was verified, because demo ends with an error otherwise.
type step struct {
	Step                string  `json:"step"`
	Operations          int64   `json:"operations"`
	Bytes               int64   `json:"bytes"`
	Seconds             float64 `json:"seconds"`
	MiBPerSecond        float64 `json:"mib_per_second"`
	OperationsPerSecond float64 `json:"operations_per_second"`
	Verified            string  `json:"verified"`
}

// report returns the steps in the form of --json.
func (d *session) report() report {
	r := report{Device: d.attr.Name, Transport: d.attr.Transport.String(), Data: d.src.name(), Bytes: d.src.Size, SHA256: fmt.Sprintf("%x", d.digest)}
	for _, row := range d.rows {
		r.Steps = append(r.Steps, step{
			Step: row.step, Operations: row.operations, Bytes: row.bytes, Seconds: row.took.Seconds(),
			MiBPerSecond: cli.Round2(cli.MiBPerSecond(row.bytes, row.took)), OperationsPerSecond: cli.Round2(cli.PerSecond(row.operations, row.took)), Verified: row.verified,
		})
	}
	return r
}

// print writes the table of the passes.
func (d *session) print(w io.Writer) error {
	i := &cli.Printer{W: w}
	i.Printf("sha256 %x\n\n", d.digest)
	if i.Err != nil {
		return i.Err
	}
	if err := writeTable(w, d.rows); err != nil {
		return err
	}
	i.Printf("ok\n\n%s", next)
	return i.Err
}

// next has the commands that demo prints after a run, for a user who tries the program for the first time.
const next = `Try next (in a clone, go run ./cmd/cinnabar stands for cinnabar):
  cinnabar demo FILE               the same with the bytes of a file of yours
  cinnabar compare                 copies and wake-ups over TCP and verbs
  cinnabar recv --dir /tmp --once  in another terminal, for the next command
  cinnabar send FILE 127.0.0.1     which moves a file; docs/tour.md has more
`

// writeTable aligns the rows.
func writeTable(w io.Writer, rows []row) error {
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	i.Printf("STEP\tCOUNT\tDATA\tSECONDS\tRATE\tVERIFIED\n")
	for _, r := range rows {
		i.Printf("%s\t%d\t%s\t%.4f\t%s\t%s\n", r.step, r.operations, cli.SizeText(r.bytes), r.took.Seconds(), r.rate, r.verified)
	}
	return errors.Join(i.Err, t.Flush())
}

// chunks divides n bytes into pieces of at most size: offset and length of each.
func chunks(n, size int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for off := 0; off < n; off += size {
			if !yield(off, min(size, n-off)) {
				return
			}
		}
	}
}
