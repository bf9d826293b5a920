package perfrpc

import (
	"bytes"
	"testing"

	"cinnabar/codec/hgproc"
)

// procCodec is a type of perf serve that reads its own bytes.
type procCodec interface {
	AppendProc(to []byte) ([]byte, error)
	DecodeProc(from []byte) (int, error)
}

// handleCodec is a remoteHandle, which needs a codec, as a procCodec.
type handleCodec struct{ remoteHandle }

func (h *handleCodec) AppendProc(to []byte) ([]byte, error) {
	return h.AppendProcWith(hgproc.Codec{}, to)
}
func (h *handleCodec) DecodeProc(from []byte) (int, error) {
	return h.DecodeProcWith(hgproc.Codec{}, from)
}

// FuzzBlocks gives the types of perf serve bytes of a hostile client: they take no more than there is, and write accepted
// bytes again as they were.
func FuzzBlocks(f *testing.F) {
	for _, c := range []procCodec{&block{[]byte("data")}, &count{3}, &pattern{300}, &handleCodec{}} {
		b, err := c.AppendProc(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add(bytes.Repeat([]byte{0xff}, 12))
	f.Fuzz(func(t *testing.T, from []byte) {
		for _, c := range []procCodec{new(block), new(count), new(pattern), new(handleCodec)} {
			n, err := c.DecodeProc(from)
			if n < 0 || n > len(from) {
				t.Fatalf("%T took %d of %d bytes", c, n, len(from))
			}
			if err != nil {
				continue
			}
			again, err := c.AppendProc(nil)
			_, keeps := c.(*block) // the others keep a number
			if err != nil || len(again) > n || keeps && !bytes.Equal(again, from[:n]) {
				t.Fatalf("%T read %x and wrote %x, %v", c, from[:n], again, err)
			}
		}
	})
}
