package perfverbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/regmem"
	"cinnabar/regmem/arena"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Sizes that perf registration measures, in bytes.
const (
	costLeast = 4 << 10
	costMost  = 256 * cli.MiB
	costSlack = cli.MiB // by which the pool exceeds the largest block
)

// costOptions are the options of perf registration.
type costOptions struct {
	most, device string
	lock, json   bool
}

// NewRegistration returns the command registration of perf.
func NewRegistration(s cli.Streams) *cobra.Command {
	o := &costOptions{}
	cmd := &cobra.Command{
		Use:   "registration",
		Short: "Cost of registering memory for each transfer, against a pool",
		Long: `registration writes blocks of several sizes to a peer on loopback, and gets their memory in
three ways: it registers and deregisters the memory each time, it takes a block of
a pool that is registered once, or it keeps registrations in a cache. Each time is
the median of one operation: memory, transfer, and giving the memory back.

Other devices than the software device are reached by their first address, from this
machine itself.`,
		Example: "  cinnabar perf registration\n  cinnabar perf registration --most 1MiB --json",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.most, "most", "16MiB", "largest size; the least is 4KiB")
	cli.DeviceFlag(f, &o.device)
	f.BoolVar(&o.lock, "lock", false, "have the software device lock registered memory, as hardware does")
	cli.JSONFlag(f, &o.json)
	return cmd
}

// costRow is the result for one size.
type costRow struct {
	Bytes      int64   `json:"bytes"`
	Operations int     `json:"operations"` // measured each way
	Each       float64 `json:"register_each_microseconds"`
	Registers  float64 `json:"of_it_registration_microseconds"` // both ways: register and deregister
	Pool       float64 `json:"pool_microseconds"`
	Cache      float64 `json:"cache_microseconds"`
}

// costReport is the result of perf registration, in the form of --json.
type costReport struct {
	Device        string    `json:"device"`
	Locked        bool      `json:"locked"`
	Rows          []costRow `json:"rows"`
	Registrations uint64    `json:"cache_registrations"` // number of registrations by the cache; the pool makes 1
}

// costNote is the note below the figures of the software device.
const costNote = "The software device registers by pinning Go's memory and making a key. Hardware pins pages and fills the adapter's tables as well: --lock shows the part of that which a kernel does."

func (o *costOptions) run(ctx context.Context, s cli.Streams) (err error) {
	most, err := cli.ParseSize("--most", o.most, costLeast, costMost)
	if err != nil {
		return err
	}
	dev, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err := measureCost(ctx, dev, most)
	if err != nil {
		return err
	}
	r.Locked = o.lock || r.Device != cli.SoftwareDevice
	if o.json {
		return cli.WriteJSON(s.Out, r)
	}
	return r.print(s.Out)
}

func (o *costOptions) open(ctx context.Context) (*verbs.Device, error) {
	name := cmp.Or(o.device, cli.SoftwareDevice)
	switch {
	case !o.lock:
		return cli.OpenDevice(ctx, name)
	case name == cli.SoftwareDevice:
		return iwarp.Open(iwarp.Config{Name: cli.SoftwareDevice, LockMemory: true, Logger: cli.LoggerOf(ctx)})
	}
	return nil, cli.Usagef("--lock is for %s; %s locks registered memory anyway", cli.SoftwareDevice, name)
}

func (r *costReport) print(out io.Writer) error {
	t := cli.NewTable(out)
	i := &cli.Printer{W: t}
	i.Printf("SIZE\tCOUNT\tEACH, µs\tREGISTERING, µs\tPOOL, µs\tCACHE, µs\tEACH/POOL\n")
	for _, row := range r.Rows {
		i.Printf("%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\n", cli.SizeText(row.Bytes), row.Operations, row.Each, row.Registers, row.Pool, row.Cache, row.Each/row.Pool)
	}
	if err := errors.Join(i.Err, t.Flush()); err != nil {
		return err
	}
	i.W = out
	i.Printf("\n%s\n", cli.Fold(fmt.Sprintf("device %s, memory locked: %t. The pool was registered once, the cache registered %d times.", r.Device, r.Locked, r.Registrations), cli.Width))
	if r.Device == cli.SoftwareDevice {
		i.Printf("%s\n", cli.Fold(costNote, cli.Width))
	}
	return i.Err
}

// coster measures registration on a connection of a device with itself.
type coster struct {
	from, to *link.Link
	target   *verbs.MR
	pool     *arena.Arena[*verbs.MR]
	cache    *regmem.Cache[*verbs.MR]
	data     []byte // the program's memory, which each and cached register
	message  int    // longest message of the device, in bytes
}

// measureCost measures all sizes up to most bytes.
func measureCost(ctx context.Context, dev *verbs.Device, most int64) (_ *costReport, err error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	c, err := newCoster(ctx, dev, &attr, int(most))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	r := &costReport{Device: attr.Name}
	for n := int64(costLeast); ; n = min(4*n, most) {
		row, err := c.measure(ctx, int(n))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cli.SizeText(n), err)
		}
		if r.Rows = append(r.Rows, row); n == most {
			break
		}
	}
	r.Registrations = c.cache.Stats().Registrations
	return r, nil
}

// newCoster connects a device with itself, and registers the pool and the target of the writes.
func newCoster(ctx context.Context, dev *verbs.Device, attr *verbs.DeviceAttr, most int) (_ *coster, err error) {
	c := &coster{data: make([]byte, most), message: most}
	if n := attr.Ports[0].MaxMsgSize; n > 0 && n < uint64(most) {
		c.message = int(n)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	if err := c.connect(ctx, dev, ownAddress(attr)); err != nil {
		return nil, err
	}
	if c.target, err = c.to.Alloc(most, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return nil, err
	}
	mr, err := c.from.Alloc(most+costSlack, 0)
	if err != nil {
		return nil, err
	}
	if c.pool, err = arena.New(arena.Config[*verbs.MR]{}, mr); err != nil {
		return nil, err
	}
	c.cache, err = regmem.NewCache(regmem.CacheConfig[*verbs.MR]{Register: c.register, Release: (*verbs.MR).Close, MaxBytes: 2 * costMost})
	return c, err
}

func (c *coster) register(b []byte) (*verbs.MR, error) { return c.from.PD.RegMR(b, 0) }

// ownAddress returns the address by which a device connects to itself: the loopback if the device has it or lists no address, and
// otherwise its first address that is not link-local.
func ownAddress(attr *verbs.DeviceAttr) netip.Addr {
	addrs := attr.Ports[0].Addrs
	if i := slices.IndexFunc(addrs, func(ip netip.Addr) bool { return !ip.IsLinkLocalUnicast() }); i >= 0 && !slices.ContainsFunc(addrs, netip.Addr.IsLoopback) {
		return addrs[i]
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// connect connects both ends.
func (c *coster) connect(ctx context.Context, dev *verbs.Device, at netip.Addr) (err error) {
	if c.from, err = link.New(dev, link.Config{Sends: 1, Receives: 1}); err != nil {
		return err
	}
	if c.to, err = link.New(dev, link.Config{Sends: 1, Receives: 1}); err != nil {
		return err
	}
	l, err := verbs.Listen(dev, netip.AddrPortFrom(at, 0))
	if err != nil {
		return err
	}
	defer cli.Shut(l)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = c.to.Accept(ctx, r, verbs.ConnParam{})
		}
		if err != nil {
			cancel(err)
		}
		accepted <- err
	}()
	err = c.from.Dial(ctx, l.Addr(), verbs.ConnParam{})
	if err != nil {
		cancel(err)
	}
	return cmp.Or(err, <-accepted)
}

// close closes the connection and all registered memory.
func (c *coster) close(ctx context.Context) error {
	var errs []error
	if c.cache != nil {
		errs = append(errs, c.cache.Close())
	}
	if c.pool != nil {
		errs = append(errs, c.pool.Close())
	}
	for _, l := range []*link.Link{c.from, c.to} {
		if l != nil {
			errs = append(errs, l.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// costOperations returns the number of operations with which a size is measured.
func costOperations(n int) int { return min(max(64*cli.MiB/n, 5), 500) }

// measure measures one size in each way. It alternates between the ways, so that other work of the machine affects all alike.
func (c *coster) measure(ctx context.Context, n int) (row costRow, err error) {
	row = costRow{Bytes: int64(n), Operations: costOperations(n)}
	var each, registers, pool, cache []time.Duration
	for range row.Operations {
		all, registration, err := c.each(ctx, n)
		if err != nil {
			return row, err
		}
		each, registers = append(each, all), append(registers, registration)
		if all, err = timed(func() error { return c.pooled(ctx, n) }); err != nil {
			return row, err
		}
		pool = append(pool, all)
		if all, err = timed(func() error { return c.cached(ctx, n) }); err != nil {
			return row, err
		}
		cache = append(cache, all)
	}
	row.Each, row.Registers, row.Pool, row.Cache = medianMicroseconds(each), medianMicroseconds(registers), medianMicroseconds(pool), medianMicroseconds(cache)
	return row, nil
}

func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

func medianMicroseconds(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2]) / float64(time.Microsecond)
}

// each registers the memory, writes it, and deregisters it.
func (c *coster) each(ctx context.Context, n int) (all, registration time.Duration, err error) {
	start := time.Now()
	mr, err := c.register(c.data[:n])
	if err != nil {
		return 0, 0, err
	}
	registered := time.Now()
	err = c.write(ctx, mr, 0, n)
	written := time.Now()
	if err := errors.Join(err, mr.Close()); err != nil {
		return 0, 0, err
	}
	end := time.Now()
	return end.Sub(start), registered.Sub(start) + end.Sub(written), nil
}

// pooled writes a block of the pool.
func (c *coster) pooled(ctx context.Context, n int) error {
	b, err := c.pool.Alloc(n)
	if err != nil {
		return err
	}
	return errors.Join(c.write(ctx, b.Region(), b.Offset(), n), b.Free())
}

// cached writes the program's memory under a registration of the cache.
func (c *coster) cached(ctx context.Context, n int) error {
	l, err := c.cache.Acquire(c.data[:n])
	if err != nil {
		return err
	}
	return errors.Join(c.write(ctx, l.Region(), l.Offset(), n), l.Release())
}

// write writes n bytes of a region in as few messages as the device permits.
func (c *coster) write(ctx context.Context, mr *verbs.MR, off, n int) error {
	for done := 0; done < n; {
		part := min(n-done, c.message)
		to := c.target.Remote()
		to.Addr += uint64(done)
		wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(off+done, part)}, Remote: to}
		if err := c.from.Post(wr); err != nil {
			return err
		}
		if err := c.from.Sent(ctx, 1); err != nil {
			return err
		}
		done += part
	}
	return nil
}
