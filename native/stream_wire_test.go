package native

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
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
				f := frame{magic: magicPut, id: 1}
				o.takeLocked(c.credit, &f)
				body, size, end := f.body, f.size, f.end()
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

// bytesPlan is the encoding of []byte as it is.
type bytesPlan struct{}

func (bytesPlan) Append(b []byte, v any) ([]byte, error) { return append(b, *v.(*[]byte)...), nil }
func (bytesPlan) Decode(b []byte, _ any) (int, error)    { return len(b), nil }

func takeFrame(o *outbox, c credit, f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.takeLocked(c, f)
}

// TestOutboxMemory fills outboxes and takes frames of all sizes from them, while other frames are under way. Each frame has its own bytes until it is sent,
// although frames that are sent give their memory to others, and none can be encoded after that.
// parity: A05
func TestOutboxMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var boxes [3]outbox
	var added, taken [len(boxes)]uint32 // numbers of elements
	var pending []frame                 // that are under way; their id is the number of the outbox
	check := func(f *frame) {
		b, err := f.encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseFrame(b, magicPut)
		if err != nil {
			t.Fatal(err)
		}
		for n, rest := uint32(f.seq), got.body; len(rest) > 0; n++ {
			var e []byte
			if e, rest, _ = cutElement(rest); binary.LittleEndian.Uint32(e) != n || e[4] != byte(f.id) || e[len(e)-1] != byte(f.id) {
				t.Fatalf("element %d of outbox %d has bytes %x, of %d", n, f.id, e[:8], len(e))
			}
		}
	}
	pooled := 0
	for range 20000 {
		i := r.IntN(len(boxes))
		o := &boxes[i]
		if r.IntN(16) > 0 {
			v := bytes.Repeat([]byte{byte(i + 1)}, 8+r.IntN(1<<r.IntN(17)))
			binary.LittleEndian.PutUint32(v, added[i])
			var slot []byte
			if full, err := tryAdd(o, bytesPlan{}, &slot, v); err != nil {
				t.Fatal(err)
			} else if full == nil {
				added[i]++
			}
		} else {
			f := frame{magic: magicPut, id: uint64(i + 1), seq: uint64(taken[i])}
			if takeFrame(o, credit{1 + uint32(r.IntN(creditCount)), uint32(r.IntN(creditBytes))}, &f); f.size.count == 0 {
				continue
			}
			taken[i] += f.size.count
			if f.memory != nil {
				pooled++
			}
			pending = append(pending, f)
		}
		if len(pending) > 4 {
			k := r.IntN(len(pending))
			f := pending[k]
			pending = slices.Delete(pending, k, k+1)
			check(&f)
			if f.memory.exit(); f.memory != nil {
				if _, err := f.encode(nil); err == nil {
					t.Fatal("a frame is encoded after it was sent")
				}
			}
		}
	}
	if pooled == 0 {
		t.Error("no frame has memory of the pool")
	}
}

// scarce is a budget of some bytes.
type scarce struct{ left int64 }

func (s *scarce) Charge(n int64) error {
	if n > s.left {
		return codes.Again
	}
	s.left -= n
	return nil
}

// TestOutboxBudget fills the outbox of a server. It is full at outboxFree while the host of the client has no room for more, and counts once.
// parity: A05
func TestOutboxBudget(t *testing.T) {
	budget := &scarce{}
	o := outbox{budget: budget}
	fill := func() (n int) {
		var slot []byte
		for {
			full, err := tryAdd(&o, bytesPlan{}, &slot, make([]byte, 1020))
			if err != nil {
				t.Fatal(err)
			}
			if full != nil {
				return n
			}
			n++
		}
	}
	if n := fill(); n != outboxFree>>10 {
		t.Errorf("%d elements without a budget", n)
	}
	budget.left = outboxBytes + 7
	if n := fill(); n != (outboxBytes-outboxFree)>>10 || budget.left != 7 {
		t.Errorf("%d elements more, and %d bytes of the budget are left", n, budget.left)
	}
	o.fail(errOver)
	if _, err := tryAdd(&o, bytesPlan{}, new([]byte), nil); !errors.Is(err, errOver) || budget.left != 7 {
		t.Errorf("after the end: %v, %d bytes are left", err, budget.left)
	}
}
