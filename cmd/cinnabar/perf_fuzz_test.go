package main

import (
	"bytes"
	"testing"
)

// procCodec is a type of perf serve that reads its own bytes.
type procCodec interface {
	AppendProc(to []byte) ([]byte, error)
	DecodeProc(from []byte) (int, error)
}

// FuzzPerfBlocks gives the types of perf serve bytes of a hostile client: they take no more than there is, and write accepted
// bytes again as they were.
func FuzzPerfBlocks(f *testing.F) {
	for _, c := range []procCodec{&perfBlock{[]byte("data")}, &perfCount{3}, &perfPattern{300}, &perfRemote{}} {
		b, err := c.AppendProc(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add(bytes.Repeat([]byte{0xff}, 12))
	f.Fuzz(func(t *testing.T, from []byte) {
		for _, c := range []procCodec{new(perfBlock), new(perfCount), new(perfPattern), new(perfRemote)} {
			n, err := c.DecodeProc(from)
			if n < 0 || n > len(from) {
				t.Fatalf("%T took %d of %d bytes", c, n, len(from))
			}
			if err != nil {
				continue
			}
			again, err := c.AppendProc(nil)
			_, keeps := c.(*perfBlock) // the others keep a number
			if err != nil || len(again) > n || keeps && !bytes.Equal(again, from[:n]) {
				t.Fatalf("%T read %x and wrote %x, %v", c, from[:n], again, err)
			}
		}
	})
}
