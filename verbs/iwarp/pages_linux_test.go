package iwarp_test

import (
	"bytes"
	"testing"

	"cinnabar/verbs/iwarp"
)

// TestGivePagesOfDomain gives the pages of a region back, which is listed twice. It gives none if a region of another device is listed too,
// because that device may have pinned its pages.
func TestGivePagesOfDomain(t *testing.T) {
	const size = 64 << 10
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	own, other := a.region(t, size), b.region(t, size)
	fill(own.Bytes(), 1)
	fill(other.Bytes(), 2)
	ownBytes, otherBytes := bytes.Clone(own.Bytes()), bytes.Clone(other.Bytes())
	if a.qp.GivePages(0, 0, own, other) {
		t.Error("pages were given back although a region is of another device")
	}
	if !bytes.Equal(own.Bytes(), ownBytes) || !bytes.Equal(other.Bytes(), otherBytes) {
		t.Error("bytes have changed although nothing was given back")
	}
	if !a.qp.GivePages(0, 0, own, own) {
		t.Error("the pages of a region that is listed twice were not given back")
	}
	if !bytes.Equal(own.Bytes(), make([]byte, size)) {
		t.Error("bytes have stayed although their pages were given back")
	}
}
