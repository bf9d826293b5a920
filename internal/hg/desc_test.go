package hg

import (
	"bytes"
	"testing"

	"cinnabar/internal/na"
)

// The offsets of descriptors that tests look at, and the size of a word.
const (
	wordSize    = 8
	flagsAt     = 12
	infoSize    = 16
	segmentSize = 16
)

func TestDescNull(t *testing.T) {
	b := golden(t, "proc_null")
	if d, n, err := DecodeProc(b, OverNetwork); d != nil || n != len(b) || err != nil {
		t.Errorf("got %v, %d, %v; want nil, %d, nil", d, n, err, len(b))
	}
	var null *Desc
	if got := null.AppendProc(nil, 100, OverNetwork); !bytes.Equal(got, b) {
		t.Errorf("nil is sent as % x", got)
	}
}

func TestDescAccess(t *testing.T) {
	d, err := ParseDesc(golden(t, "proc_segments")[wordSize:], OverNetwork)
	if err != nil || d.Access() != na.ReadWrite {
		t.Errorf("access %v, %v; want read-write", d.Access(), err)
	}
}
