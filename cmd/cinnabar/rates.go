package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Units, and the labels that stand beside every rate: MiB/s are 2^20 bytes per
// second, Mbit/sec 10^6 bits per second as ibv_rc_pingpong has it.
const mebibyte = 1 << 20

// pingpongResult is the measurement of ibv_rc_pingpong.
type pingpongResult struct {
	size  int // bytes of a message
	iters int
	took  time.Duration
}

// pingpongJSON is what pingpong --json prints.
type pingpongJSON struct {
	Size        int     `json:"size"` // bytes of a message
	Iterations  int     `json:"iterations"`
	Seconds     float64 `json:"seconds"`
	MbitSeconds float64 `json:"mbit_per_second"` // both ways, 10^6 bits
	Usec        float64 `json:"usec_per_iteration"`
}

// print writes the result as JSON, if there is a writer for that, or else for people.
func (r pingpongResult) print(asJSON, people io.Writer) error {
	if asJSON == nil {
		return r.write(people)
	}
	us := r.took.Seconds() * 1e6
	return json.NewEncoder(asJSON).Encode(pingpongJSON{
		Size: r.size, Iterations: r.iters, Seconds: r.took.Seconds(),
		MbitSeconds: round2(float64(r.size) * float64(r.iters) * 2 * 8 / us), Usec: round2(us / float64(r.iters)),
	})
}

// write prints the two lines of ibv_rc_pingpong. Bytes count both directions.
func (r pingpongResult) write(w io.Writer) error {
	seconds := r.took.Seconds()
	micros := seconds * 1e6
	bytes := int64(r.size) * int64(r.iters) * 2
	_, err := fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n%d iters in %.2f seconds = %.2f usec/iter\n",
		bytes, seconds, float64(bytes)*8/micros, r.iters, seconds, micros/float64(r.iters))
	return err
}

// mibPerSecond is the rate of n bytes in d, 0 where no time was measured.
func mibPerSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / mebibyte / d.Seconds()
}

// perSecond is the rate of n operations in d, 0 where no time was measured.
func perSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// sizeText prints n exactly, and rounded with its unit where that is shorter.
func sizeText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	return humanize.IBytes(uint64(n))
}

// parseSize reads "64MiB", "1 GB" or a plain number of bytes.
func parseSize(option, text string, least, most int64) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return 0, usagef("invalid %s %q: a size is a number with an optional unit such as KiB, MiB or GB", option, text)
	}
	if n < uint64(least) || n > uint64(most) {
		return 0, usagef("invalid %s %q: %s to %s", option, text, sizeText(least), sizeText(most))
	}
	return int64(n), nil
}

// newTable aligns columns separated by tabs, two spaces apart.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
