package wire

import (
	"encoding/hex"
	"testing"
)

func TestMargoRequest(t *testing.T) {
	b := AppendMargoRequest(nil, NoParent)
	if got, want := hex.EncodeToString(b), "ffff000000000000"; got != want {
		t.Errorf("header = %s, want %s", got, want)
	}
	parent, rest, ok := ParseMargoRequest(append(b, 7))
	if parent != NoParent || len(rest) != 1 || !ok {
		t.Errorf("parsed %#x, %d bytes, %v", parent, len(rest), ok)
	}
	for n := range b {
		if _, _, ok := ParseMargoRequest(b[:n]); ok {
			t.Errorf("a header of %d bytes is accepted", n)
		}
	}
}

func TestMargoResponse(t *testing.T) {
	b := AppendMargoResponse(nil, 2)
	if got, want := hex.EncodeToString(b), "02000000"; got != want {
		t.Errorf("header = %s, want %s", got, want)
	}
	code, rest, ok := ParseMargoResponse(append(b, 7, 8))
	if code != 2 || len(rest) != 2 || !ok {
		t.Errorf("parsed %d, %d bytes, %v", code, len(rest), ok)
	}
	for n := range b {
		if _, _, ok := ParseMargoResponse(b[:n]); ok {
			t.Errorf("a header of %d bytes is accepted", n)
		}
	}
}
