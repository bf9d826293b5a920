//go:build linux

package interop

import (
	"hash/fnv"
	"math"

	"cinnabar"
	"cinnabar/internal/codectest"
)

// The Go side of c/types.h and c/margo_peer.h.
type (
	none   struct{}
	sumIn  struct{ A, B int32 }
	sumOut struct{ Ret int32 }
	count  struct{ Count int32 }
	note   struct {
		Seq  int32
		Text string
	}
	blob struct {
		Len   uint64
		Bytes []byte `proc:"count=Len"`
	}
	blobIn struct {
		Seed  uint32
		Reply uint64
		Blob  blob
	}
	blobOut struct {
		OK   bool
		Blob blob
	}
	all    = codectest.All[cinnabar.BulkHandle]
	moveIn struct {
		Origin        string
		Offset        uint64
		Size          uint64
		LocalSize     uint64
		LocalOffset   uint64
		LocalSegments uint32
		Seed          uint32
		Cancel        bool
		Bulk          cinnabar.BulkHandle
	}
	moveOut struct {
		Ret   int32
		Count uint64
		Hash  uint64
	}
	relayIn struct {
		To   string
		Push bool
		Move moveIn
	}
	idOut    struct{ ID uint64 }
	nestedIn struct {
		To       string
		Provider uint16
		Sum      sumIn
	}
	nestedOut struct{ Code, Ret int32 }
	slowIn    struct{ Millis uint32 }
)

// variants are the values that all_set of c/types.h gives a structure.
var variants = []all{
	{
		I8: -2, U8: 0xa5, I16: -300, U16: 0x1122, I32: -70000, U32: 0x33445566, I64: -5000000000, U64: 0x1122334455667788,
		Flag: true, Size: 99, Ptr: 0x7ffd12345678, ID: 0x0b88ab9a, F32: 1.5, F64: -2.25, Raw: [5]byte{1, 2, 3, 4, 5},
		Text: "hello", Fixed: "const",
	},
	{
		I8: math.MinInt8, I16: math.MinInt16, I32: math.MinInt32, I64: math.MinInt64,
		F32: float32(math.Copysign(0, -1)), F64: math.SmallestNonzeroFloat64, Fixed: "const",
	},
	{
		I8: math.MaxInt8, U8: math.MaxUint8, I16: math.MaxInt16, U16: math.MaxUint16, I32: math.MaxInt32, U32: math.MaxUint32,
		I64: math.MaxInt64, U64: math.MaxUint64, Flag: true, Size: math.MaxUint64, Ptr: math.MaxUint64, ID: math.MaxUint32,
		F32: math.MaxFloat32, F64: math.MaxFloat64, Raw: [5]byte{255, 255, 255, 255, 255}, Text: "grüß 日本", Fixed: "const",
	},
}

// pattern returns n bytes of the test pattern of c/words.h.
func pattern(n int, seed uint32) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(int(seed) + i*31 + i>>8*17 + i>>16*5)
	}
	return b
}

// fnv1a is the hash that c/words.h has too.
func fnv1a(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b) // never fails
	return h.Sum64()
}

// cut returns b in the given number of nearly equal pieces, as local_bulk of the C programs does.
func cut(b []byte, pieces int) [][]byte {
	segs := make([][]byte, pieces)
	each := len(b) / pieces
	for i := range segs {
		segs[i] = b[i*each : (i+1)*each]
	}
	segs[pieces-1] = b[(pieces-1)*each:]
	return segs
}
