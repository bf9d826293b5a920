package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "64MiB": 64 << 20, "1 MB": 1e6, "1.5KiB": 1536} {
		if got, err := ParseSize("--size", text, 1, 1<<40); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "2TiB", "MiB", "1 parsec"} {
		if got, err := ParseSize("--size", text, 1, 1<<40); err == nil {
			t.Errorf("%q was taken for %d", text, got)
		}
	}
}

func TestParseSizes(t *testing.T) {
	for _, tt := range []struct {
		text  string
		least int64
		want  []int64
	}{
		{"64", 1, []int64{64}},
		{"1KiB,64KiB", 1, []int64{1024, 65536}},
		{"0..5", 0, []int64{0, 1, 2, 4, 5}},
		{"4KiB..16KiB", 1, []int64{4096, 8192, 16384}},
		{"7..7", 1, []int64{7}},
		{"0..5", 1, nil},
		{"64,32", 1, nil},
		{"8..4", 1, nil},
		{"1..2GiB", 1, nil},
		{"", 1, nil},
		{"..", 1, nil},
		{"x", 1, nil},
	} {
		got, err := ParseSizes(tt.text, tt.least, 1<<30)
		if d := cmp.Diff(got, tt.want); d != "" || (err == nil) != (tt.want != nil) {
			t.Errorf("%q: %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}
