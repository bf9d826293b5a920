package mpa

import (
	"bytes"
	"fmt"
	"testing"
)

var sizes = []int{18, 64, 1442, 8942, 64768}

// BenchmarkTrailer is what CRCs cost the sender of an FPDU.
func BenchmarkTrailer(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("size=%d", n), func(b *testing.B) {
			buf := append(AppendHeader(nil, n), make([]byte, n)...)
			var trailer []byte
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				trailer = AppendTrailer(trailer[:0], n, Update(0, buf), true)
			}
		})
	}
}

// BenchmarkFramer reads FPDUs that come whole, and cut in the middle.
func BenchmarkFramer(b *testing.B) {
	for _, crc := range []bool{false, true} {
		for _, n := range sizes {
			fpdu := appendFPDU(nil, bytes.Repeat([]byte{1}, n), crc)
			for _, cut := range []bool{false, true} {
				b.Run(fmt.Sprintf("crc=%t/cut=%t/size=%d", crc, cut, n), func(b *testing.B) {
					first := len(fpdu)
					if cut {
						first /= 2
					}
					f := Framer{CRC: crc}
					deliver := func([]byte) error { return nil }
					b.SetBytes(int64(n))
					b.ReportAllocs()
					for b.Loop() {
						if f.Feed(fpdu[:first], deliver) != nil || f.Feed(fpdu[first:], deliver) != nil {
							b.Fatal(f.End())
						}
					}
				})
			}
		}
	}
}

// BenchmarkParseFrame reads a request with private data.
func BenchmarkParseFrame(b *testing.B) {
	req := wire(b, keyRequest, "50020009 00100010", []byte("hello")...)
	b.ReportAllocs()
	for b.Loop() {
		if _, n, err := ParseFrame(req); n == 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}
