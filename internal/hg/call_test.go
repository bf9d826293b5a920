package hg

import (
	"bytes"
	"fmt"
	"testing"

	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na/natest"
)

func TestCall(t *testing.T) {
	for _, mode := range []wire.ChecksumMode{wire.NoChecksums, wire.Checksums, wire.Detect} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("mode %d direct %v", mode, direct), func(t *testing.T) {
				n := natest.New(natest.Config{Direct: direct})
				server := open(t, n, Config{Dispatch: handler(echo), Checksums: mode})
				client := open(t, n, Config{Checksums: mode})
				for _, size := range []int{0, 1, 100, 4059, 4060, 4061, 4064, 4065, 4076, 4080, 4081, 10000, 1 << 20} {
					in := bytes.Repeat([]byte{byte(size)}, size)
					out, err := call(t, client, server.ep.Addr(), 7, in)
					if err != nil || !bytes.Equal(out, in) {
						t.Fatalf("size %d: %d bytes came back, error %v", size, len(out), err)
					}
				}
			})
		}
	}
}
