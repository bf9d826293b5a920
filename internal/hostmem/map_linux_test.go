//go:build !race

package hostmem

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMappingsLeaveTheProcess compares with the kernel's own list; builds with
// the race detector map nothing.
func TestMappingsLeaveTheProcess(t *testing.T) {
	var addrs []uint64
	var live [][]byte
	for range 16 {
		b, err := Map(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, b)
		addrs = append(addrs, Addr(b))
		if !kernelMaps(t, Addr(b)) {
			t.Errorf("%#x is not in /proc/self/maps", Addr(b))
		}
	}
	for _, b := range live {
		if err := Unmap(b); err != nil {
			t.Error(err)
		}
	}
	for _, a := range addrs {
		if kernelMaps(t, a) {
			t.Errorf("%#x is still in /proc/self/maps", a)
		}
	}
}

// kernelMaps reports whether addr lies in one of the process' mappings.
func kernelMaps(t *testing.T, addr uint64) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		var start, end uint64
		if _, err := fmt.Sscanf(line, "%x-%x ", &start, &end); err != nil {
			t.Fatalf("line %q of /proc/self/maps: %v", line, err)
		}
		if start <= addr && addr < end {
			return true
		}
	}
	return false
}
