package hg

import (
	"slices"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// revocable is memory that records the calls of its methods.
type revocable struct {
	na.Memory
	name string
	log  *[]string
}

func (m *revocable) Revoke() { *m.log = append(*m.log, "revoke "+m.name) }
func (m *revocable) Close()  { *m.log = append(*m.log, "close "+m.name) }

// TestCloseRevokesAllKeysFirst checks the order in which the segments of a Bulk are given up. They once were closed one by
// one, each of which may wait for a slow peer, and the keys of the later ones were valid meanwhile.
func TestCloseRevokesAllKeysFirst(t *testing.T) {
	c := open(t, natest.New(natest.Config{Direct: true}), Config{})
	b, err := c.Expose([][]byte{make([]byte, 1), make([]byte, 2)}, na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	real := b.mems
	b.mems = []na.Memory{&revocable{name: "a", log: &log}, &revocable{name: "b", log: &log}}
	b.Close()
	if want := []string{"revoke a", "revoke b", "close a", "close b"}; !slices.Equal(log, want) {
		t.Errorf("order is %v, want %v", log, want)
	}
	for _, m := range real {
		m.Close()
	}
}
