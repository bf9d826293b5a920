package filexfer

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer"
)

// The least and the most of --limit, in bytes per second.
const (
	leastRate = 4 << 10
	mostRate  = 1 << 50
)

// chunksPerSecond is the number of chunks that a limited transfer moves in a second at the least, so that both sides see it move long before
// their timeouts. Only the smallest chunk may take longer.
const chunksPerSecond = 8

// limitOption is the option --limit.
type limitOption struct {
	text string
	rate int64 // bytes per second; 0: no limit
}

// parse reads the option. timeout is the time after which a side gives up a transfer that does not move.
func (o *limitOption) parse(timeout time.Duration) error {
	if o.text == "" {
		return nil
	}
	size := strings.TrimSuffix(strings.TrimSpace(o.text), "/s")
	if strings.Contains(strings.ToLower(size), "bit") {
		return cli.Usagef("invalid --limit %q: it counts bytes in a second, such as 100MB/s; 8 bits are a byte", o.text)
	}
	n, err := cli.ParseSize("--limit", size, leastRate, mostRate)
	if err != nil {
		return cli.Usagef("invalid --limit %q: a size for each second, such as 100MB/s, from %s/s to %s/s", o.text, cli.SizeText(leastRate), cli.SizeText(mostRate))
	}
	if took := timeFor(minChunk, n); took > timeout/2 {
		return cli.Usagef("--limit %s takes %v for the smallest chunk of %s, and --timeout %v ends a transfer that does not move: raise one of them", o.text, took.Round(time.Millisecond), cli.SizeText(minChunk), timeout)
	}
	o.rate = n
	return nil
}

// chunk returns the largest chunk that the limit allows, at most most bytes.
func (o *limitOption) chunk(most int64) int64 {
	if o.rate == 0 {
		return most
	}
	return min(max(o.rate/chunksPerSecond/minChunk*minChunk, minChunk), most)
}

// checkChunk refuses a chunk of the command line that takes so long that a side may give the transfer up.
func (o *limitOption) checkChunk(chunk int64, timeout time.Duration) error {
	if o.rate == 0 || timeFor(chunk, o.rate) <= timeout/4 {
		return nil
	}
	return cli.Usagef("a --chunk of %s takes %v with --limit %s, and --timeout %v ends a transfer that does not move: leave --chunk out, or raise --timeout",
		cli.SizeText(chunk), timeFor(chunk, o.rate).Round(time.Millisecond), o.text, timeout)
}

// timeFor returns the time for n bytes at rate bytes per second.
func timeFor(n, rate int64) time.Duration {
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// bucket is a token bucket: bytes pass at a rate, and a burst of an eighth of a second passes at once after a pause. It is safe for concurrent use;
// takers pass in the order in which they came.
type bucket struct {
	rate int64 // bytes per second
	now  func() time.Time

	mu sync.Mutex
	// time at which all bytes that were taken have passed
	// +checklocks:mu
	free time.Time
}

// burst is the length of a pause for which a bucket makes up.
const burst = time.Second / chunksPerSecond

// newBucket returns a bucket for rate bytes per second; nil if rate is 0, which is no limit.
func newBucket(rate int64) *bucket {
	if rate == 0 {
		return nil
	}
	return &bucket{rate: rate, now: time.Now}
}

// reserve counts n bytes and returns the time for which their taker has to wait.
func (b *bucket) reserve(n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if oldest := now.Add(-burst); b.free.Before(oldest) {
		b.free = oldest
	}
	wait := b.free.Sub(now)
	b.free = b.free.Add(timeFor(int64(n), b.rate))
	return wait
}

// take waits until n bytes may pass. After the end of ctx, which is that of a transfer, its error is that of a cancelled one.
func (b *bucket) take(ctx context.Context, n int) error {
	if b == nil {
		return nil
	}
	if ctx.Err() != nil {
		return overLimit(ctx)
	}
	wait := b.reserve(n)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return overLimit(ctx)
	}
}

// overLimit returns the error of a taker of which the transfer has ended.
func overLimit(ctx context.Context) error {
	return fmt.Errorf("%w while it waited for --limit: %w", xfer.CodeCanceled, context.Cause(ctx))
}

// limitedReader is a source that a bucket limits.
type limitedReader struct {
	io.ReaderAt
	ctx context.Context // of the transfer
	b   *bucket
}

// ReadAt implements [io.ReaderAt].
func (r limitedReader) ReadAt(b []byte, offset int64) (int, error) {
	if err := r.b.take(r.ctx, len(b)); err != nil {
		return 0, err
	}
	return r.ReaderAt.ReadAt(b, offset)
}

// limitSource returns src with the limit of b, for a transfer that ends with ctx.
func limitSource(ctx context.Context, src xfer.Source, b *bucket) xfer.Source {
	if b == nil {
		return src
	}
	if src.Choice != nil {
		c := *src.Choice
		c.SumData, src.Choice = src.Data, &c // because these bytes do not cross
	}
	src.Data = limitedReader{src.Data, ctx, b}
	return src
}

// limitedFile is a file with writes that a bucket limits.
type limitedFile struct {
	xfer.File
	ctx context.Context // of Open
	b   *bucket
}

// WriteAt implements [io.WriterAt].
func (f limitedFile) WriteAt(b []byte, offset int64) (int, error) {
	if err := f.b.take(f.ctx, len(b)); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, offset)
}

// chooser has the methods by which an xfer.Chooser chooses.
type chooser interface {
	Choose(xfer.Offer) error
	Want() (xfer.Wanted, error)
	Sum(r xfer.Range, sum [xfer.SumLen]byte) error
	Spare(n int)
}

// limitedChooser is a limitedFile of an xfer.Chooser. Sums pass without limit.
type limitedChooser struct {
	limitedFile
	chooser
}

// Steps implements [xfer.Worker]. A file that is none does no work.
func (f limitedFile) Steps() uint64 {
	if w, ok := f.File.(xfer.Worker); ok {
		return w.Steps()
	}
	return 0
}

// AnyOrder implements [xfer.AnyOrder].
func (f limitedFile) AnyOrder() bool {
	a, ok := f.File.(xfer.AnyOrder)
	return ok && a.AnyOrder()
}

// opener is the type of Open of xfer.Receiver and xfer.Puller.
type opener = func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error)

// files returns open with the limit of b on all its files together.
func (b *bucket) files(open opener) opener {
	if b == nil {
		return open
	}
	return func(ctx context.Context, from netip.AddrPort, name string, meta xfer.Meta, size int64) (xfer.File, error) {
		f, err := open(ctx, from, name, meta, size)
		if err != nil {
			return nil, err
		}
		limited := limitedFile{f, ctx, b}
		if c, ok := f.(xfer.Chooser); ok {
			return limitedChooser{limited, c}, nil
		}
		return limited, nil
	}
}
