package hg

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden reads testdata/name.hex: lines of hexadecimal bytes with blanks and bars between them; lines that start with #
// say where the bytes come from.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			digits.WriteString(strings.NewReplacer(" ", "", "|", "", "\n", "").Replace(line))
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// goldens returns the names of all files that start with prefix.
func goldens(t testing.TB, prefix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", prefix+"*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata for %q: %v", prefix, err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".hex")
	}
	return files
}
