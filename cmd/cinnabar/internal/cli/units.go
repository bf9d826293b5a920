package cli

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// MiB is 2^20 bytes, the unit of every rate that is not one of another program's.
const MiB = 1 << 20

// MiBPerSecond is the rate of n bytes in d, 0 where no time was measured.
func MiBPerSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / MiB / d.Seconds()
}

// PerSecond is the rate of n operations in d, 0 where no time was measured.
func PerSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// SizeText prints n exactly, and rounded with its unit where that is shorter.
func SizeText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	return humanize.IBytes(uint64(n))
}

// ParseSize reads "64MiB", "1 GB" or a plain number of bytes.
func ParseSize(option, text string, least, most int64) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return 0, Usagef("invalid %s %q: a size is a number with an optional unit such as KiB, MiB or GB", option, text)
	}
	if n < uint64(least) || n > uint64(most) {
		return 0, Usagef("invalid %s %q: %s to %s", option, text, SizeText(least), SizeText(most))
	}
	return int64(n), nil
}

// Micros converts nanoseconds to microseconds with two decimals.
func Micros(ns int64) float64 { return Round2(float64(ns) / 1e3) }

// Round2 rounds to two decimals.
func Round2(x float64) float64 { return math.Round(x*100) / 100 }

// ParseSizes reads "64", "1KiB,64KiB" or "1KiB..1MiB", which doubles.
func ParseSizes(text string, least, most int64) ([]int64, error) {
	if low, high, ok := strings.Cut(text, ".."); ok {
		from, err := ParseSize("--size", low, least, most)
		if err != nil {
			return nil, err
		}
		to, err := ParseSize("--size", high, from, most)
		if err != nil {
			return nil, err
		}
		var sizes []int64
		for n := from; n < to; n = max(1, 2*n) {
			sizes = append(sizes, n)
		}
		return append(sizes, to), nil
	}
	var sizes []int64
	for one := range strings.SplitSeq(text, ",") {
		n, err := ParseSize("--size", one, least, most)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, n)
		least = n
	}
	return sizes, nil
}
