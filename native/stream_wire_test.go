package native

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/codes"
)

// frameKinds are the kinds of frames that each side accepts.
var frameKinds = []string{magicPut, magicGet, magicCredit, magicElements}

var goldenFrames = map[string]frame{
	"frame_put": {
		magic: magicPut, flags: flagEnd, id: 0x0102030405060708, seq: 2, size: credit{3, 19},
		body: []byte{4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 'a', 'b', 'c'},
	},
	"frame_credit":   {magic: magicCredit, id: 0x0102030405060708, seq: 2, size: fullCredit},
	"frame_get":      {magic: magicGet, id: 0x0102030405060708, size: fullCredit},
	"frame_elements": {magic: magicElements, id: 0x0102030405060708, size: credit{1, 8}, body: []byte{4, 0, 0, 0, 1, 0, 0, 0}},
	"frame_over":     {magic: magicElements, flags: flagOver, id: 0x0102030405060708, seq: 1},
}

// TestGoldenFrames compares the frames of streams with the bytes that docs/wire-native.md describes.
// parity: A05
func TestGoldenFrames(t *testing.T) {
	for name, want := range goldenFrames {
		b := golden(t, name)
		if got := appendFrame(nil, &want); !bytes.Equal(got, b) {
			t.Errorf("%s:\ngot  %x\nwant %x", name, got, b)
		}
		got, err := parseFrame(b, frameKinds...)
		if len(got.body) == 0 {
			got.body = nil
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(frame{}, credit{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		for n := range b {
			if _, err := parseFrame(b[:n], frameKinds...); err == nil {
				t.Errorf("%s: the first %d bytes are accepted", name, n)
			}
		}
		if _, err := parseFrame(append(b, 0), frameKinds...); err == nil {
			t.Errorf("%s: a byte more is accepted", name)
		}
	}
}

// TestMalformedFrame has one wrong field in each frame.
func TestMalformedFrame(t *testing.T) {
	put, get, over := golden(t, "frame_put"), golden(t, "frame_get"), golden(t, "frame_over")
	for _, c := range []struct {
		name string
		b    []byte
		code codes.Code
		want string
	}{
		{"nothing", nil, codes.ProtocolError, "0 bytes"},
		{"other magic", with(put, 3, 'x'), codes.ProtocolError, `begin with "cnsx"`},
		{"newer version", with(put, offVersion, 2), codes.ProtoNoSupport, "version 2 of the frames of streams, this program version 1"},
		{"unknown flag", with(put, offFlags, 4), codes.ProtocolError, "flags 0x04"},
		{"flag of an answer", with(put, offFlags, flagOver), codes.ProtocolError, "flags 0x02"},
		{"length", with(put, offLength, 33), codes.ProtocolError, "a header of 33 bytes"},
		{"stream id 0", with(put, prefixSize, make([]byte, 8)...), codes.ProtocolError, "stream id is 0"},
		{"an element more", with(put, 24, 4), codes.ProtocolError, "element 4 of 4 runs past the end"},
		{"an element fewer", with(put, 24, 2), codes.ProtocolError, "7 bytes behind the last element"},
		{"bytes", with(put, 28, 20), codes.ProtocolError, "19 bytes of elements, want 20"},
		{"a long element", with(put, frameSize, 0xff, 0xff, 0xff, 0xff), codes.ProtocolError, "element 1 of 3 runs past the end"},
		{"put of nothing", appendFrame(nil, &frame{magic: magicPut, id: 1}), codes.ProtocolError, "without elements"},
		{"get of nothing", with(get, 24, 0, 0), codes.ProtocolError, "count 0"},
		{"get with elements", append(get[:len(get):len(get)], 0), codes.ProtocolError, "with 1 bytes behind it"},
		{"over with elements", with(over, 24, 1), codes.ProtocolError, "count 1"},
		{"over and the end", with(over, offFlags, flagOver|flagEnd), codes.ProtocolError, "flags 0x03"},
	} {
		_, err := parseFrame(c.b, frameKinds...)
		if codes.Of(err) != c.code || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.code, c.want)
		}
	}
}

// FuzzStreamFrame parses hostile bytes as frames. Those that are accepted are encoded to the same bytes, and have as many elements as they say.
// parity: A05
func FuzzStreamFrame(f *testing.F) {
	for name := range goldenFrames {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseFrame(b, frameKinds...)
		if err != nil {
			if errors.Is(err, codes.OtherError) {
				t.Errorf("error %v has no code", err)
			}
			return
		}
		if got := appendFrame(nil, &h); !bytes.Equal(got, b) {
			t.Errorf("%x becomes\n%x", b, got)
		}
		rest, n := h.body, uint32(0)
		for ; len(rest) > 0; n++ {
			_, rest, _ = cutElement(rest)
		}
		if len(h.body) > 0 && n != h.size.count {
			t.Errorf("%d elements, want %d", n, h.size.count)
		}
	})
}

// TestOutbox checks that frames keep to their credits, and that all elements leave in order.
func TestOutbox(t *testing.T) {
	for _, c := range []struct {
		name   string
		sizes  []int
		credit credit
		want   []uint32 // elements of each frame
	}{
		{"nothing", nil, fullCredit, []uint32{0}},
		{"count", []int{1, 1, 1, 1, 1}, credit{2, 100}, []uint32{2, 2, 1}},
		{"bytes", []int{6, 6, 6, 6}, credit{100, 20}, []uint32{2, 2}},
		{"long ones alone", []int{1, 100, 1, 100}, credit{100, 20}, []uint32{1, 1, 1, 1}},
		{"credit of no bytes", []int{0, 0}, credit{100, 0}, []uint32{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o outbox
			o.mu.Lock()
			defer o.mu.Unlock()
			for i, n := range c.sizes {
				o.buf = binary.LittleEndian.AppendUint32(o.buf, uint32(n))
				o.buf = append(o.buf, bytes.Repeat([]byte{byte(i)}, n)...)
				o.count++
			}
			o.ended = true
			element := 0
			for i, want := range c.want {
				body, size, end := o.takeLocked(c.credit)
				f := frame{magic: magicPut, id: 1, size: size, body: body}
				if end {
					f.flags = flagEnd
				}
				if _, err := parseFrame(appendFrame(nil, &f), magicPut); err != nil || size.count != want || end != (i == len(c.want)-1) || !c.credit.admits(size) && want > 0 {
					t.Errorf("frame %d has %v, end %v, %v, want %d elements", i, size, end, err, want)
				}
				for len(body) > 0 {
					var e []byte
					if e, body, _ = cutElement(body); len(e) != c.sizes[element] || len(e) > 0 && e[0] != byte(element) {
						t.Errorf("element %d has %d bytes", element, len(e))
					}
					element++
				}
			}
			if o.dueLocked() {
				t.Error("a frame is left")
			}
		})
	}
}
