//go:build linux

package interop

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const margoPage = "../../docs/from-margo.md"

// declared are what Margo's headers have for programs; what begins with underscores is Margo's own.
var (
	declared = regexp.MustCompile(`\b(margo_[a-z0-9_]+|MARGO_REGISTER[A-Z_]*|(?:DECLARE|DEFINE)_MARGO_RPC_HANDLER)\s*\(`)
	comment  = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	codeSpan = regexp.MustCompile("`[^`\n]+`")
)

// TestMargoPage wants each function of Margo's, and no other, in the page that says what takes its place.
// parity: G96
func TestMargoPage(t *testing.T) {
	page, err := os.ReadFile(margoPage)
	must(t, err)
	told := map[string]bool{}
	for _, span := range codeSpan.FindAllString(string(page), -1) {
		told[strings.Trim(span, "`")] = true
	}
	functions := recorded(t, "margo_functions.txt")
	if len(functions) < 200 {
		t.Errorf("%d functions are recorded", len(functions))
	}
	for _, name := range functions {
		if !told[name] {
			t.Errorf("%s is missing in %s", name, margoPage)
		}
	}
	for name := range told {
		if strings.HasPrefix(name, "margo_") && !slices.Contains(functions, name) {
			t.Errorf("%s has %s, which Margo has not", margoPage, name)
		}
	}
}

// TestMargoFunctions compares the recorded names with the installed headers.
func TestMargoFunctions(t *testing.T) {
	flags, err := pkgConfig("margo")
	if err != nil {
		t.Skipf("the headers of Margo: %v", err)
	}
	var headers []string
	for _, f := range flags {
		if dir, ok := strings.CutPrefix(f, "-I"); ok {
			found, err := filepath.Glob(filepath.Join(dir, "margo*.h"))
			must(t, err)
			headers = append(headers, found...)
		}
	}
	names := map[string]bool{}
	for _, h := range headers {
		text, err := os.ReadFile(h)
		must(t, err)
		for _, m := range declared.FindAllSubmatch(comment.ReplaceAll(text, nil), -1) {
			names[string(m[1])] = true
		}
	}
	want := recorded(t, "margo_functions.txt")
	for _, name := range want {
		if !names[name] {
			t.Errorf("%s is not in the headers", name)
		}
		delete(names, name)
	}
	if diff := cmp.Diff(names, map[string]bool{}); diff != "" {
		t.Errorf("in the headers only: %s", diff)
	}
}
