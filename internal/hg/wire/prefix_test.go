package wire

import (
	"encoding/hex"
	"testing"
)

func TestRequestHeader(t *testing.T) {
	b := AppendRequestHeader(nil, NoParent)
	if got, want := hex.EncodeToString(b), "ffff000000000000"; got != want {
		t.Errorf("header = %s, want %s", got, want)
	}
	parent, rest, ok := ParseRequestHeader(append(b, 7))
	if parent != NoParent || len(rest) != 1 || !ok {
		t.Errorf("parsed %#x, %d bytes, %v", parent, len(rest), ok)
	}
	for n := range b {
		if _, _, ok := ParseRequestHeader(b[:n]); ok {
			t.Errorf("a header of %d bytes is accepted", n)
		}
	}
}

func TestResponseHeader(t *testing.T) {
	b := AppendResponseHeader(nil, 2)
	if got, want := hex.EncodeToString(b), "02000000"; got != want {
		t.Errorf("header = %s, want %s", got, want)
	}
	code, rest, ok := ParseResponseHeader(append(b, 7, 8))
	if code != 2 || len(rest) != 2 || !ok {
		t.Errorf("parsed %d, %d bytes, %v", code, len(rest), ok)
	}
	for n := range b {
		if _, _, ok := ParseResponseHeader(b[:n]); ok {
			t.Errorf("a header of %d bytes is accepted", n)
		}
	}
}
