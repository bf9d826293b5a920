package filexfer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer"
)

// The intervals of progress reports.
const (
	lineInterval = 10 * time.Second // lines, where there is no terminal
	barNameWidth = 30               // longer names are cut in the middle
	leastName    = 6                // columns that a name has at least, on a narrow terminal
	rateColumns  = 30               // of percentage, rate and time left, or of the time of a stall
	sizeColumns  = 26               // of the bytes that are done and of all
	barInterval  = 100 * time.Millisecond
	barRateAge   = 30              // intervals over which the rate is averaged
	stalledAfter = 2 * time.Second // time without progress after which that is shown instead of the last rate
)

// watch returns an observer of one transfer.
func (r *reporter) watch() xfer.Progress {
	if !r.terminal {
		return &meter{r: r, lines: true}
	}
	if r.json {
		return watchers{&barProgress{r: r}, &meter{r: r}}
	}
	return &barProgress{r: r}
}

// watchers are several observers of one transfer.
type watchers []xfer.Progress

// Start implements [xfer.Progress].
func (w watchers) Start(res xfer.Result) {
	for _, p := range w {
		p.Start(res)
	}
}

// Advance implements [xfer.Progress].
func (w watchers) Advance(n int64) {
	for _, p := range w {
		p.Advance(n)
	}
}

// Finish implements [xfer.Progress].
func (w watchers) Finish(res xfer.Result, err error) {
	for _, p := range w {
		p.Finish(res, err)
	}
}

// barProgress shows a transfer as a bar with rate and time left.
type barProgress struct {
	r    *reporter
	bar  *mpb.Bar
	last time.Time
	more int64 // bytes since then

	moved atomic.Int64 // time at which bytes last moved, in ns since 1970; the goroutine that draws the bars reads it
}

// stalled returns the time since the last bytes moved, and reports whether it has reached stalledAfter.
func (p *barProgress) stalled() (time.Duration, bool) {
	d := p.r.now().Sub(time.Unix(0, p.moved.Load()))
	return d.Truncate(time.Second), d >= stalledAfter
}

// stallDecorator shows the time for which a transfer has stalled. It replaces another decorator, which would show its last value.
type stallDecorator struct {
	decor.Decorator
	p    *barProgress
	text func(time.Duration) string
}

// Decor implements [decor.Decorator].
func (d stallDecorator) Decor(s decor.Statistics) (text string, width int) {
	if took, stalled := d.p.stalled(); stalled {
		return d.Format(d.text(took))
	}
	return d.Decorator.Decor(s)
}

// Unwrap implements [decor.Wrapper].
func (d stallDecorator) Unwrap() decor.Decorator { return d.Decorator }

// suffixDecorator appends ASCII text to that of another decorator, and counts its columns, which decor.Meta does not.
type suffixDecorator struct {
	decor.Decorator
	suffix string
}

// Decor implements [decor.Decorator].
func (d suffixDecorator) Decor(s decor.Statistics) (text string, width int) {
	text, width = d.Decorator.Decor(s)
	return text + d.suffix, width + len(d.suffix)
}

// Unwrap implements [decor.Wrapper].
func (d suffixDecorator) Unwrap() decor.Decorator { return d.Decorator }

// roomDecorator leaves another decorator out if fewer than least columns of the line are left, because a narrow terminal needs them for the rate and the time left.
type roomDecorator struct {
	decor.Decorator
	least int
}

// Decor implements [decor.Decorator].
func (d roomDecorator) Decor(s decor.Statistics) (text string, width int) {
	if s.AvailableWidth < d.least {
		return d.Format("")
	}
	return d.Decorator.Decor(s)
}

// Unwrap implements [decor.Wrapper].
func (d roomDecorator) Unwrap() decor.Decorator { return d.Decorator }

// Start implements [xfer.Progress].
func (p *barProgress) Start(res xfer.Result) {
	p.last = p.r.now()
	p.moved.Store(p.last.UnixNano())
	p.r.noteStart(res)
	p.bar = p.r.addBar(res, p)
}

// Advance implements [xfer.Progress].
func (p *barProgress) Advance(n int64) {
	p.more += n
	p.r.outlook.add(n)
	now := p.r.now()
	p.moved.Store(now.UnixNano())
	if now.Sub(p.last) >= barInterval {
		p.bar.EwmaIncrInt64(p.more, now.Sub(p.last))
		p.last, p.more = now, 0
	}
}

// Finish implements [xfer.Progress]. The bar goes; a line about the result
// comes in its place.
func (p *barProgress) Finish(xfer.Result, error) {
	p.bar.Abort(true) // does nothing to a bar that is full, which goes by itself
	p.r.removeBar()
}

// addBar shows one more bar, that of p.
func (r *reporter) addBar(res xfer.Result, p *barProgress) *mpb.Bar {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown++; r.bars == nil {
		r.bars = mpb.New(mpb.WithOutput(r.s.Err), mpb.WithAutoRefresh())
	}
	text := cli.Printable(res.Name)
	name := decor.Any(func(s decor.Statistics) string {
		return shorten(text, min(max(s.AvailableWidth-rateColumns, leastName), barNameWidth)) + " "
	}, decor.WCSyncSpaceR)
	rate := stallDecorator{decor.EwmaSpeed(decor.SizeB1024(0), "% .1f", barRateAge, decor.WCSyncSpace), p,
		func(d time.Duration) string { return fmt.Sprintf("stalled for %v", d) }}
	left := stallDecorator{suffixDecorator{decor.EwmaETA(decor.ET_STYLE_GO, barRateAge, decor.WCSyncSpace), " left"}, p,
		func(time.Duration) string { return "" }}
	if res.Size < 0 { // the paper's program does not say
		return r.bars.AddSpinner(0, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(name), mpb.AppendDecorators(decor.CurrentKibiByte("% .1f"), rate))
	}
	bar := r.bars.AddBar(res.Size, mpb.BarRemoveOnComplete(), mpb.BarExtender(r.outlook.filler(), false),
		mpb.PrependDecorators(name, roomDecorator{decor.CountersKibiByte("% .1f / % .1f", decor.WCSyncSpace), sizeColumns + rateColumns}),
		mpb.AppendDecorators(decor.Percentage(decor.WCSyncSpace), rate, left))
	return bar
}

// removeBar counts a bar down. With the last one it closes the container, which
// ends the container's goroutines.
func (r *reporter) removeBar() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown--; r.shown == 0 {
		r.bars.Wait()
		r.bars = nil
	}
}

// shorten cuts the middle out of a name that is longer than width characters.
func shorten(name string, width int) string {
	runes := []rune(name)
	if len(runes) <= width {
		return name
	}
	head := width / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-head-1):])
}
