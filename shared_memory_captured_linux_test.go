package cinnabar

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na/sm"
)

// TestSharedMemoryDescriptors makes descriptors of memory over na+sm, and compares them with those that a program in C has
// made of such memory.
func TestSharedMemoryDescriptors(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	e, err := Listen(t.Context(), "na+sm", &Config{NoEager: true})
	opened(t, e, err)
	segs := [][]byte{make([]byte, 4096), make([]byte, 100), make([]byte, 1)}
	ours := map[uint64]uint64{ // words that differ from process to process
		0x7e0000000000: hostmem.Addr(segs[0]), 0x7e0000002000: hostmem.Addr(segs[1]), 0x7e0000010001: hostmem.Addr(segs[2]),
		1<<32 | 25954: binary.LittleEndian.Uint64(e.net.AppendAddr(nil, e.net.Addr())),
	}
	raw, err := os.ReadFile("internal/hg/testdata/descriptors_sm.txt")
	must(t, err)
	seen := 0
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if words[0] != "bulk" {
			continue
		}
		seen++
		want, err := hex.DecodeString(words[4])
		must(t, err)
		for at := 0; at+8 <= len(want); at += 8 {
			if w, ok := ours[binary.LittleEndian.Uint64(want[at:])]; ok {
				binary.LittleEndian.PutUint64(want[at:], w)
			}
		}
		mode := map[string]Mode{"1": ReadOnly, "2": WriteOnly, "3": ReadWrite}[words[2]]
		b, err := e.Expose(mode, segs[:words[1][0]-'0']...)
		must(t, err)
		d := b.mem.core.Desc()
		if words[3] == "bound" {
			d = b.mem.core.Bind()
		}
		got := d.Append(nil)
		for i := range d.Segments() { // of the list in front of the handle C uses the lengths only, and this package tells no more
			clear(want[16+16*i:][:8])
			clear(got[16+16*i:][:8])
		}
		if diff := cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", strings.Join(words[:4], " "), diff)
		}
		must(t, b.Close())
	}
	if seen != 12 {
		t.Errorf("%d descriptors were compared, want 12", seen)
	}
}
