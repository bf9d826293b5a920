package hgproc_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/internal/codecplan"
)

// checkKept checks that DecodeKept reads the same value and bytes as Decode, or also fails, and that the value refers to b only if DecodeKept says so.
func checkKept[T any](t *testing.T, p codec.Plan, b []byte) {
	t.Helper()
	var copied, kept T
	n, err := p.Decode(b, &copied)
	own := slices.Clone(b)
	m, refers, keptErr := codecplan.DecodeKept(p, own, &kept)
	if n != m || (err == nil) != (keptErr == nil) {
		t.Fatalf("Decode takes %d bytes (%v), DecodeKept %d (%v)", n, err, m, keptErr)
	}
	if err != nil {
		return
	}
	if diff := cmp.Diff(copied, kept, bitwise, exportAll); diff != "" {
		t.Fatalf("DecodeKept reads another value (-Decode +DecodeKept):\n%s", diff)
	}
	for i := range own {
		own[i] ^= 0xff
	}
	if changed := cmp.Diff(copied, kept, bitwise, exportAll) != ""; changed && !refers {
		t.Error("the value refers to the message, and DecodeKept does not say so")
	}
}

type keptOuter struct {
	Head uint32
	In   keptInner
	Last []byte `proc:"counted=uint32"`
}

type keptInner struct {
	Data []byte `proc:"counted=uint64"`
}

// TestDecodeKept checks which parts of a message a value refers to, and that they have no room beyond their end.
func TestDecodeKept(t *testing.T) {
	p := planFor[keptOuter](t)
	for _, test := range []struct {
		name        string
		data, last  int
		kept, other bool
	}{
		{"one large", 1000, 10, true, false},
		{"the other", 10, 1000, false, true},
		{"neither", 500, 500, false, false},
		{"empty", 0, 0, false, false},
	} {
		in := keptOuter{1, keptInner{bytes.Repeat([]byte{2}, test.data)}, bytes.Repeat([]byte{3}, test.last)}
		b, err := p.Append(nil, &in)
		if err != nil {
			t.Fatal(err)
		}
		checkKept[keptOuter](t, p, b)
		var out keptOuter
		n, kept, err := codecplan.DecodeKept(p, b, &out)
		if err != nil || n != len(b) || kept != (test.kept || test.other) {
			t.Fatalf("%s: %d of %d bytes, kept %v, %v", test.name, n, len(b), kept, err)
		}
		for _, part := range []struct {
			b    []byte
			kept bool
		}{{out.In.Data, test.kept}, {out.Last, test.other}} {
			if len(part.b) == 0 {
				continue
			}
			was := part.b[0]
			for i := range b {
				b[i] ^= 0xff
			}
			if refers := part.b[0] != was; refers != part.kept {
				t.Errorf("%s: %d bytes refer to the message: %v, want %v", test.name, len(part.b), refers, part.kept)
			}
			if part.kept && cap(part.b) != len(part.b) {
				t.Errorf("%s: %d bytes have room for %d", test.name, len(part.b), cap(part.b))
			}
		}
	}
}

// TestDecodeKeptHostile checks counts that announce more than the message has.
func TestDecodeKeptHostile(t *testing.T) {
	p := planFor[keptInner](t)
	for _, b := range [][]byte{
		nil, {1}, {1, 0, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 0, 0, 0}, {255, 255, 255, 255, 255, 255, 255, 255}, {255, 255, 255, 255, 255, 255, 255, 255, 1},
		{0, 0, 0, 0, 0, 0, 0, 128, 1, 2}, append([]byte{101, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 100)...),
	} {
		checkKept[keptInner](t, p, b)
		var out keptInner
		if n, kept, err := codecplan.DecodeKept(p, b, &out); !errors.Is(err, codec.ErrOverflow) || kept || n != 0 || out.Data != nil {
			t.Errorf("%x: %d bytes read, kept %v, %v, %d bytes", b, n, kept, err, len(out.Data))
		}
	}
}

// TestKeeps checks which types may refer to their messages.
func TestKeeps(t *testing.T) {
	for _, test := range []struct {
		p    codec.Plan
		want bool
	}{
		{planFor[keptOuter](t), true},
		{planFor[[2]keptInner](t), true},
		{planFor[four](t), false},
		{planFor[struct{ B [9]byte }](t), false},
		{planFor[fourByHand](t), false},
		{planFor[struct{ S string }](t), false},
		{planFor[struct {
			X []keptInner `proc:"counted=uint8"`
		}](t), true},
		{codecplan.OverSharedMemory(planFor[keptInner](t)), true},
	} {
		if got := codecplan.Keeps(test.p); got != test.want {
			t.Errorf("%T: %v, want %v", test.p, got, test.want)
		}
	}
	var v hgproc.ID
	b := []byte{1, 0, 0, 0}
	if n, kept, err := codecplan.DecodeKept(planFor[hgproc.ID](t), b, &v); n != 4 || kept || err != nil || v != 1 {
		t.Errorf("%d bytes, kept %v, %v, value %d", n, kept, err, v)
	}
}

// TestAppendAround checks that the bytes around a []byte that is left out are those that Append writes, and which one is left out.
func TestAppendAround(t *testing.T) {
	text := "text"
	for _, test := range []struct {
		name string
		p    codec.Plan
		v    any
		want int // bytes that are left out
	}{
		{"none", planFor[keptOuter](t), &keptOuter{1, keptInner{make([]byte, 99)}, make([]byte, 99)}, 0},
		{"the first", planFor[keptOuter](t), &keptOuter{1, keptInner{bytes.Repeat([]byte{1}, 100)}, bytes.Repeat([]byte{2}, 200)}, 100},
		{"the last", planFor[keptOuter](t), &keptOuter{1, keptInner{make([]byte, 99)}, bytes.Repeat([]byte{2}, 200)}, 200},
		{"counted by a field", planFor[counted](t), &counted{N: 150, Nums: make([]int32, 150), Data: bytes.Repeat([]byte{3}, 150), Name: "name", Null: &text}, 150},
		{"in an array", planFor[[2]keptInner](t), &[2]keptInner{{make([]byte, 100)}, {make([]byte, 100)}}, 0},
		{"no []byte", planFor[four](t), &four{A: 1}, 0},
		{"custom", planFor[fourByHand](t), &fourByHand{A: 1}, 0},
	} {
		want, err := test.p.Append([]byte("head"), test.v)
		if err != nil {
			t.Fatal(err)
		}
		out, at, lent, err := codecplan.AppendAround(test.p, []byte("head"), test.v, 100)
		if err != nil || len(lent) != test.want {
			t.Errorf("%s: %d bytes are left out, %v, want %d", test.name, len(lent), err, test.want)
			continue
		}
		if got := slices.Concat(out[:at], lent, out[at:]); !bytes.Equal(got, want) {
			t.Errorf("%s: the parts have other bytes than Append writes", test.name)
		}
		if got := codecplan.Lends(test.p, test.v, 100); got != (test.want > 0) {
			t.Errorf("%s: Lends = %v", test.name, got)
		}
	}
	if out, _, _, err := codecplan.AppendAround(planFor[counted](t), []byte("head"), &counted{N: 1, Data: make([]byte, 100)}, 100); err == nil || string(out) != "head" {
		t.Errorf("a wrong count: %q, %v", out, err)
	}
}
