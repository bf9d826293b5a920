// Package compare is the command that moves the same bytes between two processes by TCP, by RDMA write and by send/receive.
package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/peerproc"
	"cinnabar/verbs"
)

// Limits of compare, in bytes unless said otherwise.
const (
	maxMemory = 64 * cli.MiB // of registered memory on each side; more data goes round in it
	maxChunk  = 16 * cli.MiB
	window    = 16      // operations outstanding
	maxCount  = 1 << 20 // limit on the operations of one way, which take some seconds, because compare prints nothing meanwhile
)

// options are the options of compare.
type options struct {
	sizeText, chunkText string
	json                bool

	job job
}

// New returns the command compare.
func New(s cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare TCP with RDMA: rate, copies, wake-ups, CPU time",
		Long: `compare moves the same bytes between two processes three times: by plain TCP,
by RDMA write and by send/receive, and prints the costs of each way for both sides.`,
		Example: "  cinnabar compare\n  cinnabar compare --size 1GiB --chunk 1MiB --json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			return run(cmd.Context(), o, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.sizeText, "size", "64MiB", "bytes to move")
	f.StringVar(&o.chunkText, "chunk", "1MiB", "bytes of one operation")
	cli.JSONFlag(f, &o.json)
	return cmd
}

func (o *options) parse() (err error) {
	if o.job.Chunk, err = cli.ParseSize("--chunk", o.chunkText, 1, maxChunk); err != nil {
		return err
	}
	if o.job.Size, err = cli.ParseSize("--size", o.sizeText, 1, math.MaxInt64/2); err != nil {
		return err
	}
	o.job.Chunk = min(o.job.Chunk, o.job.Size)
	if n := o.job.count(); n > maxCount {
		return cli.Usagef("--size %s in chunks of %d bytes makes %d operations, and compare makes at most %d: choose a larger --chunk or a smaller --size",
			cli.SizeText(o.job.Size), o.job.Chunk, n, maxCount)
	}
	return nil
}

// job describes the measurement for both sides.
type job struct {
	Size  int64 `json:"size"`  // bytes to move
	Chunk int64 `json:"chunk"` // bytes of one operation
}

// check returns an error if the sizes of the job are not within the limits, because the job comes from another process.
func (j job) check() error {
	if j.Chunk < 1 || j.Chunk > maxChunk || j.Size < j.Chunk {
		return fmt.Errorf("%d bytes in chunks of %d are not possible", j.Size, j.Chunk)
	}
	return nil
}

// slots returns the number of chunks that the memory holds. Chunk n goes to slot n modulo slots.
func (j job) slots() int64 {
	return min(max(maxMemory/j.Chunk, 1), (j.Size+j.Chunk-1)/j.Chunk)
}

// memory returns the size of the memory in bytes: every byte of it is moved at
// least once, also where the last piece is short.
func (j job) memory() int { return int(min(j.slots()*j.Chunk, j.Size)) } // at most maxMemory

// count returns the number of operations.
func (j job) count() int64 { return (j.Size + j.Chunk - 1) / j.Chunk }

// piece returns the place of the bytes of operation n in the memory, and their number.
func (j job) piece(n int64) (off, size int) {
	return int(n % j.slots() * j.Chunk), int(min(j.Chunk, j.Size-n*j.Chunk))
}

// Ways to move the data.
const (
	wayTCP   = "TCP"
	wayWrite = "RDMA write"
	waySend  = "send/receive"
)

// row has the costs of one way. Rates and times carry their units in the
// names, here and in the table.
type row struct {
	Way             string  `json:"way"`
	Bytes           int64   `json:"bytes"`
	Seconds         float64 `json:"seconds"`
	MiBPerSecond    float64 `json:"mib_per_second"`
	UserCopies      float64 `json:"user_space_copies"`         // bytes staged by the device on both sides, per byte moved
	KernelCopies    int     `json:"kernel_copies"`             // one on each side, by TCP
	SenderInCalls   float64 `json:"sender_in_calls_percent"`   // of the time, inside the calls that move data
	SenderWakeups   int64   `json:"sender_wakeups"`            // voluntary context switches of the process
	ReceiverWakeups int64   `json:"receiver_wakeups"`          // -1 where the system does not count them, as above
	ReceiverCalls   int64   `json:"receiver_calls"`            // that the receiving program made to get the data
	ReceiverCPU     float64 `json:"receiver_cpu_milliseconds"` // of the whole process, the device included
	Verified        bool    `json:"verified"`
}

// notes explain the columns where a number alone would mislead.
var notes = []string{
	"copies in user space are counted by the device (staged bytes) over bytes moved; TCP's program reads and writes in place, so it makes none either",
	"kernel copies are two on every row, one on each side: the software device runs over TCP. On RDMA hardware they are none",
	"wake-ups are voluntary context switches of the whole process, the software device's goroutine included; on hardware the adapter does that work",
	"a sender inside a call is copying into the kernel, or waits for it to take more; a post to RDMA hardware returns at once",
	"the software device protects every frame by MPA's CRC32C, which plain TCP lacks",
	"receiver calls are those that the receiving program makes to get the data; a one-sided write needs none",
}

// run starts the peer, measures every way and prints the result.
func run(ctx context.Context, o *options, s cli.Streams) (err error) {
	dev, err := cli.OpenDevice(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if !o.json { // printed first, because the work may take long
		if _, err := fmt.Fprintf(s.Out, "%s in chunks of %s between two processes on loopback\n\n", cli.SizeText(o.job.Size), cli.SizeText(o.job.Chunk)); err != nil {
			return err
		}
	}
	p, err := peerproc.Start(ctx, s.Err, peerCommand)
	if err != nil {
		return err
	}
	rows, err := measureWays(ctx, dev, p, o.job)
	if stopErr := p.Stop(); err == nil || peerproc.Killed(stopErr) { // else the peer's end follows from ours
		err = errors.Join(stopErr, err)
	}
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(s.Out, rows)
	}
	return writeTable(s.Out, rows)
}

// measureWays meets the peer and measures every way.
func measureWays(ctx context.Context, dev *verbs.Device, p *peerproc.Process, job job) ([]row, error) {
	x, err := p.Meet(ctx)
	if err != nil {
		return nil, err
	}
	defer cli.Shut(x)
	c, err := newComparer(dev, x, job)
	if err != nil {
		return nil, err
	}
	rows, err := c.measureAll(ctx)
	return rows, errors.Join(err, c.Close(ctx))
}

// writeJSON prints the rows and the notes.
func writeJSON(w io.Writer, rows []row) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Rows  []row    `json:"rows"`
		Notes []string `json:"notes"`
	}{rows, notes})
}

// writeTable prints one column for each way, so that the eye compares
// along the line.
func writeTable(w io.Writer, rows []row) error {
	t := cli.NewTable(w)
	i := &cli.Printer{W: t}
	for _, l := range lines {
		i.Printf("%s", l.label)
		for n := range rows {
			i.Printf("\t%s", l.value(&rows[n]))
		}
		i.Printf("\n")
	}
	if err := errors.Join(i.Err, t.Flush()); err != nil {
		return err
	}
	i.W = w
	i.Printf("\n")
	for _, n := range notes {
		i.Printf("- %s\n", strings.ReplaceAll(cli.Fold(n, cli.Width-2), "\n", "\n  "))
	}
	return i.Err
}

// lines are the lines of the table.
var lines = []struct {
	label string
	value func(*row) string
}{
	{"", func(r *row) string { return r.Way }},
	{"bytes moved", func(r *row) string { return fmt.Sprint(r.Bytes) }},
	{"seconds", func(r *row) string { return fmt.Sprintf("%.4f", r.Seconds) }},
	{"MiB/s", func(r *row) string { return fmt.Sprintf("%.1f", r.MiBPerSecond) }},
	{"copies in user space", func(r *row) string { return fmt.Sprintf("%.3g", r.UserCopies) }},
	{"copies in the kernel", func(r *row) string { return fmt.Sprint(r.KernelCopies) }},
	{"sender inside calls, % of time", func(r *row) string { return fmt.Sprintf("%.1f", r.SenderInCalls) }},
	{"sender wake-ups", func(r *row) string { return countText(r.SenderWakeups) }},
	{"receiver wake-ups", func(r *row) string { return countText(r.ReceiverWakeups) }},
	{"receiver calls", func(r *row) string { return fmt.Sprint(r.ReceiverCalls) }},
	{"receiver CPU, ms", func(r *row) string { return fmt.Sprintf("%.1f", r.ReceiverCPU) }},
	{"verified by SHA-256", func(r *row) string { return map[bool]string{true: "yes", false: "no"}[r.Verified] }},
}

// countText prints a count that the system may not know.
func countText(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

// wakeups is a process's count, -1 if unknown.
func wakeups(u usage) int64 {
	if !u.Known {
		return -1
	}
	return u.Wakeups
}

// milliseconds is d as the table has it.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
