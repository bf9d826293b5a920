//go:build linux

package interop

import (
	"strconv"
	"strings"
	"testing"
)

// line is what a peer program says: a word and values by name.
type line string

// value returns the value that the line has under key, "" if none.
func (l line) value(key string) string {
	for _, w := range strings.Fields(string(l)) {
		if v, ok := strings.CutPrefix(w, key+"="); ok {
			return v
		}
	}
	return ""
}

// number returns a value that must be a number.
func (l line) number(t *testing.T, key string) int {
	t.Helper()
	n, err := strconv.Atoi(l.value(key))
	if err != nil {
		t.Fatalf("%q has no number %q", l, key)
	}
	return n
}

// has reports whether the line has all of the words, which blanks separate.
func (l line) has(words string) bool {
	have := strings.Fields(string(l))
	for _, w := range strings.Fields(words) {
		found := false
		for _, h := range have {
			found = found || h == w
		}
		if !found {
			return false
		}
	}
	return true
}
