package rdmap_test

import (
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

// BenchmarkInbound is what these layers cost a segment on its way in: parse its
// header and check it.
func BenchmarkInbound(b *testing.B) {
	for _, op := range []rdmap.Opcode{rdmap.OpWrite, rdmap.OpSend} {
		b.Run(op.String(), func(b *testing.B) {
			var r rdmap.Receiver
			var msns rdmap.MSNs
			h := whole(op)
			wire := make([]byte, 0, ddp.UntaggedHeaderLen)
			b.ReportAllocs()
			for b.Loop() {
				if !h.Tagged {
					h.MSN = msns.Next(h.QN)
				}
				wire = ddp.AppendHeader(wire[:0], h)
				parsed, _ := ddp.ParseHeader(wire)
				if _, term := r.Segment(parsed, 1448); term != nil {
					b.Fatal(term)
				}
			}
		})
	}
}
