package main

import (
	"slices"
	"strings"
	"testing"
)

// TestPick draws from the whole module: the sample has its size, depends on the seed alone, and holds no test and no empty comment.
func TestPick(t *testing.T) {
	items, err := collect("../../..")
	if err != nil {
		t.Fatal(err)
	}
	first := pick(items, "a seed")
	if want := packages*comments + names; len(first) != want {
		t.Errorf("the sample has %d items, want %d", len(first), want)
	}
	if !slices.Equal(first, pick(items, "a seed")) {
		t.Error("the same seed gave two samples")
	}
	if slices.Equal(first, pick(items, "another seed")) {
		t.Error("two seeds gave the same sample")
	}
	for _, it := range first {
		if it.comment == "" || it.code == "" || strings.HasPrefix(it.name, "Test") {
			t.Errorf("unusable item %+v", it)
		}
	}
}
