package filexfer

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/xfer/tree"
)

// outlook is the text beside the bar of a transfer: all files of the command, and the files of a tree that are being read. A nil outlook shows nothing.
type outlook struct {
	files, size int64        // of the whole command; files is 0 if there is one file only
	ended       atomic.Int64 // files that were sent or have failed
	done        atomic.Int64 // bytes, those of failed files included

	// tree is the tree that is being read; nil: there is none. The goroutine of the command changes it between transfers only.
	tree readTree
}

// readTree is a [tree.Tree].
type readTree interface {
	Reading() (p tree.Place, ok bool)
	Active() []tree.Place
}

// add counts bytes that the receiver has stored.
func (o *outlook) add(n int64) {
	if o != nil {
		o.done.Add(n)
	}
}

// bytes returns the bytes of the files that have ended, and of the one under way.
func (o *outlook) bytes() int64 {
	if o == nil {
		return 0
	}
	return o.done.Load()
}

// finish counts a file as ended. The bytes before it and all of its own count as done then, even if it has failed.
func (o *outlook) finish(before int64, path string) {
	if o == nil {
		return
	}
	o.ended.Add(1)
	if info, err := os.Stat(path); err == nil {
		o.done.Store(before + info.Size())
	}
}

// file returns the file of a tree that was read last.
func (o *outlook) file() (p tree.Place, ok bool) {
	if o == nil || o.tree == nil {
		return tree.Place{}, false
	}
	return o.tree.Reading()
}

// active returns the files of a tree that are being read.
func (o *outlook) active() []tree.Place {
	if o.tree == nil {
		return nil
	}
	return o.tree.Active()
}

// filler returns the lines below a bar; nil: there are none.
func (o *outlook) filler() mpb.BarFiller {
	if o == nil {
		return nil
	}
	return mpb.BarFillerFunc(func(w io.Writer, st decor.Statistics) error {
		for _, line := range o.lines(st.AvailableWidth) {
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				return err
			}
		}
		return nil
	})
}

// lines returns the lines below a bar, none longer than width columns.
func (o *outlook) lines(width int) (lines []string) {
	for _, p := range o.active() {
		lines = append(lines, lineBar("  "+shorten(cli.Printable(p.Path), barNameWidth), p.Done, p.Size, width))
	}
	if o.files > 0 {
		n := min(o.ended.Load()+1, o.files)
		lines = append(lines, lineBar(fmt.Sprintf("all files, %d of %d", n, o.files), min(o.done.Load(), o.size), o.size, width))
	}
	return lines
}

// lineBarWidth is the number of columns of a bar in lines below the bar of a transfer.
const lineBarWidth = 20

// lineBar draws a line with a bar.
func lineBar(name string, done, size int64, width int) string {
	share := 1.0
	if size > 0 {
		share = float64(done) / float64(size)
	}
	full := int(share * lineBarWidth)
	line := fmt.Sprintf("%s %s / %s [%s%s] %d %%", name, cli.SizeText(done), cli.SizeText(size), strings.Repeat("=", full), strings.Repeat("-", lineBarWidth-full), int(share*100))
	if runes := []rune(line); len(runes) > width {
		line = string(runes[:max(width, 0)])
	}
	return line
}
