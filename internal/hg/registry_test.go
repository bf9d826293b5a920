package hg

import (
	"errors"
	"strings"
	"testing"

	"cinnabar/internal/hg/wire"
)

func TestRegistry(t *testing.T) {
	var r Registry[int]
	if _, ok := r.Lookup(1); ok {
		t.Fatal("the empty registry knows an id")
	}
	for i, name := range []string{"b", "a"} {
		if err := r.Add(wire.ID(name, 7), name, i); err != nil {
			t.Fatal(err)
		}
	}
	if e, ok := r.Lookup(wire.ID("a", 7)); !ok || e.Name != "a" || e.Value != 1 {
		t.Errorf("Lookup = %+v, %v", e, ok)
	}
	if es := r.Entries(); len(es) != 2 || es[0].Name != "a" || es[1].Name != "b" {
		t.Errorf("Entries = %+v", es)
	}
	if !r.Remove(wire.ID("a", 7)) || r.Remove(wire.ID("a", 7)) {
		t.Error("Remove does not report what it does")
	}
	if _, ok := r.Lookup(wire.ID("a", 7)); ok {
		t.Error("a removed id is known")
	}
}

// TestRegistryTaken checks that both RPCs are named.
// parity: G24
func TestRegistryTaken(t *testing.T) {
	var r Registry[int]
	if err := r.Add(9, "first", 0); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		err := r.Add(9, name, 0)
		if _, ok := errors.AsType[*ExistsError](err); !ok {
			t.Fatalf("Add = %v, want an ExistsError", err)
		}
		if text := err.Error(); !strings.Contains(text, `"first"`) || !strings.Contains(text, `"`+name+`"`) {
			t.Errorf("error %q does not name both", text)
		}
	}
}
