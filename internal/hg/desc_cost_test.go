package hg

import (
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"cinnabar/internal/hg/wire"
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
	described := func(flags uint32, s wire.Segment) []byte {
		d := wire.NewBulk(flags, slices.Repeat([]wire.Segment{s}, segments), func(b []byte, _ int) []byte {
			if s.Base == 0 {
				return b
			}
			return append(b, handle...)
		}, nil)
		return d.Append(nil)
	}
	for name, b := range map[string][]byte{
		"without handles": described(wire.BulkReadOnly, wire.Segment{}),
		"with handles":    described(wire.BulkReadOnly, wire.Segment{Base: 1, Length: 1}),
		"one handle":      described(wire.BulkReadOnly|wire.BulkRegV, wire.Segment{Base: 1, Length: 1}),
	} {
		n := natest.New(natest.Config{Direct: true})
		user := open(t, n, Config{})
		local := [][]byte{make([]byte, segments)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := ParseDesc(b, OverNetwork)
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
