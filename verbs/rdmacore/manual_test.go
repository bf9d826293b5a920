package rdmacore_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestManual compares the errors that the manual quotes with those of the
// source: the table's first column, and the reasons of the choice of a GID.
func TestManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/real-hardware.md")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, dir := range []string{".", ".."} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(b)
		}
	}
	text := strings.ReplaceAll(source.String(), "port %d of %s is %s", "port 1 of rxe0 is down")
	quote := regexp.MustCompile("^(?:[^|`]*\\|)?[^|`]*`([^`]+)`")
	quoted := 0
	for _, table := range []struct{ from, to string }{{"| Best first |", "Towards a peer"}, {"| Error |", "While a transfer"}} {
		_, rest, _ := strings.Cut(string(page), table.from)
		rest, _, found := strings.Cut(rest, table.to)
		if !found {
			t.Fatalf("the page has no table that begins with %q and ends before %q", table.from, table.to)
		}
		for row := range strings.Lines(rest) {
			m := quote.FindStringSubmatch(strings.TrimPrefix(row, "| "))
			if m == nil {
				continue
			}
			quoted++
			if !strings.Contains(text, m[1]) {
				t.Errorf("the manual quotes %q, which no error says", m[1])
			}
		}
	}
	if quoted < 25 {
		t.Errorf("%d errors found in the manual's tables", quoted)
	}
}
