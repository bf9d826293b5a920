package hgproc_test

import (
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"cinnabar/codec"
	"cinnabar/codec/hgproc"
)

type put struct {
	Key    []byte   `proc:"counted=uint64"`
	Sizes  []uint32 `proc:"counted=int16"`
	Kind   int32
	Number int64  `proc:"when=Kind:1|2"`
	Text   string `proc:"when=Kind:3"`
	HasTTL bool
	TTL    uint32   `proc:"when=HasTTL"`
	Names  []string `proc:"counted=uint8,when=!HasTTL"`
}

func TestCountedAndConditional(t *testing.T) {
	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[put]())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		in   put
		want string
	}{
		{put{Key: []byte("ab"), Sizes: []uint32{5}, Kind: 2, Number: 9, HasTTL: true, TTL: 7},
			"02000000000000006162" + "010005000000" + "02000000" + "0900000000000000" + "01" + "07000000"},
		{put{Kind: 3, Text: "t", Names: []string{"n"}},
			"0000000000000000" + "0000" + "03000000" + "020000000000000074000000" + "00" + "01" + "02000000000000006e000000"},
		{put{}, "0000000000000000" + "0000" + "00000000" + "00" + "00"},
	} {
		b, err := plan.Append(nil, &test.in)
		if got := hex.EncodeToString(b); err != nil || got != test.want {
			t.Errorf("%+v has the bytes %s, %v, want %s", test.in, got, err, test.want)
			continue
		}
		out := put{Number: 1, Text: "old", TTL: 1, Names: []string{"old"}} // what does not travel becomes zero
		if n, err := plan.Decode(b, &out); err != nil || n != len(b) {
			t.Errorf("read %d of %d bytes: %v", n, len(b), err)
		}
		if again, err := plan.Append(nil, &out); err != nil || hex.EncodeToString(again) != test.want {
			t.Errorf("read back as %+v, %v", out, err)
		}
		for n := range b {
			if _, err := plan.Decode(b[:n], new(put)); !errors.Is(err, codec.ErrOverflow) {
				t.Errorf("cut to %d of %d bytes: %v, want ErrOverflow", n, len(b), err)
			}
		}
	}
}

func TestCountedRefused(t *testing.T) {
	for _, test := range []struct {
		v    any
		want string
	}{
		{new(struct {
			A []byte `proc:"counted=int"`
		}), "no integer type that a count can have"},
		{new(struct {
			A string `proc:"counted=uint8"`
		}), "takes no count"},
		{new(struct {
			N uint8
			A []byte `proc:"counted=uint8,count=N"`
		}), "unknown tag"},
		{new(struct {
			OK bool
			N  uint8  `proc:"when=OK"`
			A  []byte `proc:"count=N"`
		}), "no integer field"},
		{new(struct {
			A []byte `proc:"counted=uint8,when=B"`
			B bool
		}), "no field"},
		{new(struct {
			OK bool
			B  bool  `proc:"when=OK"`
			C  uint8 `proc:"when=B"`
		}), "no field"},
		{new(struct {
			A []struct{} `proc:"counted=uint8"`
		}), "take no bytes"},
	} {
		if _, err := (hgproc.Codec{}).Plan(reflect.TypeOf(test.v).Elem()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %v, want %q", test.v, err, test.want)
		}
	}
}

func TestCountedHostile(t *testing.T) {
	type lists struct {
		A []uint32 `proc:"counted=int32"`
		B []byte   `proc:"counted=uint64"`
	}
	plan, err := hgproc.Codec{}.Plan(reflect.TypeFor[lists]())
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"ffffffff":                           "its count is -1",
		"02000000" + "01000000":              "2 elements of at least 4 bytes exceed the 4 bytes that remain",
		"00000000" + "ffffffffffffffff":      "exceed the 0 bytes that remain",
		"00000000" + "00000000":              "its count takes 8 bytes, 4 remain",
		"ffffff7f" + "0000000000000000":      "exceed the 8 bytes that remain",
		"01000000" + "00000000" + "02000000": "its count takes 8 bytes, 4 remain",
	} {
		b, err := hex.DecodeString(in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Decode(b, new(lists)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
	short, err := hgproc.Codec{}.Plan(reflect.TypeFor[struct {
		A []byte `proc:"counted=int8"`
	}]())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := short.Append(nil, &struct {
		A []byte `proc:"counted=int8"`
	}{make([]byte, 128)}); err == nil || !strings.Contains(err.Error(), "reaches 127") {
		t.Errorf("128 elements for an int8: %v", err)
	}
}
