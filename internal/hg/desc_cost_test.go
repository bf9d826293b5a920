package hg

import (
	"encoding/binary"
	"runtime"
	"testing"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na/natest"
)

// TestDescriptorCost checks how much memory the descriptors of a peer take that consist of as many segments as fit into
// their bytes, once they are read and used. They once took eight times their bytes.
func TestDescriptorCost(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates too")
	}
	const segments = 1 << 14
	handle := make([]byte, 48) // as natest has it
	binary.LittleEndian.PutUint64(handle, 1)
	binary.LittleEndian.PutUint64(handle[8:], segments)
	binary.LittleEndian.PutUint64(handle[16:], 1)
	for name, build := range map[string]func() []byte{
		"without handles": func() []byte {
			b := appendInfo(nil, 0, segments, flagReadOnly)
			for range segments {
				b = appendSegment(b, 0, 0)
			}
			return append(b, make([]byte, segments*wordSize)...)
		},
		"with handles": func() []byte {
			b := appendInfo(nil, segments, segments, flagReadOnly)
			for range segments {
				b = appendSegment(b, 1, 1)
			}
			for range segments {
				b = binary.LittleEndian.AppendUint64(b, uint64(len(handle)))
			}
			for range segments {
				b = append(b, handle...)
			}
			return b
		},
		"one handle": func() []byte {
			b := appendInfo(nil, segments, segments, flagReadOnly|flagRegV)
			for range segments {
				b = appendSegment(b, 1, 1)
			}
			b = binary.LittleEndian.AppendUint64(b, uint64(len(handle)))
			return append(b, handle...)
		},
	} {
		n := natest.New(natest.Config{Direct: true})
		user := open(t, n, Config{})
		b := build()
		local := [][]byte{make([]byte, segments)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := ParseDesc(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		remotes, _, err := user.remotesOf(d)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		frags := split(nil, d, remotes, 0, local, d.Len())
		runtime.ReadMemStats(&after)
		took := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d bytes take %d, %d pieces", name, len(b), took, len(frags))
		if took > descCost*uint64(len(b)) {
			t.Errorf("%s: a descriptor of %d bytes takes %d", name, len(b), took)
		}
	}
}
