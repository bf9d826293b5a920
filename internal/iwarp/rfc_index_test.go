package iwarp_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rule is a line of an index of testdata: a requirement of an RFC and who keeps
// it.
type rule struct {
	section string
	keeper  string // "ddp", "rdmap" or "device" with a test; or "mpa", "tcp", "none"
	test    string // the test's name, if there is one
	text    string
}

// TestRFCIndex holds the indexes of the rules of RFC 5040, 5041 and 7306 to the
// tests: each test that they name exists, each test of a rule is named, and the
// section in its name is the section of a rule that names it.
func TestRFCIndex(t *testing.T) {
	tests := map[string]map[string]bool{
		"ddp":   testNames(t, "ddp"),
		"rdmap": testNames(t, "rdmap"),
		// The device stands above this package: its tests are only looked up.
		"device": testNames(t, filepath.Join("..", "..", "verbs", "iwarp")),
	}
	sections := make(map[string][]string) // of each test, "RFC section"
	for _, rfc := range []string{"5040", "5041", "7306"} {
		for _, r := range readIndex(t, rfc) {
			if r.test == "" {
				continue
			}
			if !tests[r.keeper][r.test] {
				t.Errorf("RFC %s section %s: package %s has no test %s", rfc, r.section, r.keeper, r.test)
			}
			sections[r.test] = append(sections[r.test], rfc+" "+r.section)
		}
	}
	for pkg, names := range tests {
		for name := range names {
			if place, ok := placeOf(name); ok && !slices.Contains(sections[name], place) {
				t.Errorf("package %s: %s is not in the index of RFC %s", pkg, name, place)
			}
		}
	}
}

// readIndex reads lines "section | keeper | rule".
func readIndex(t *testing.T, rfc string) []rule {
	t.Helper()
	name := filepath.Join("testdata", "rfc"+rfc+".index")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, "|", 3)
		if len(fields) != 3 {
			t.Fatalf("%s: bad line %q", name, line)
		}
		r := rule{section: strings.TrimSpace(fields[0]), text: strings.TrimSpace(fields[2])}
		r.keeper, r.test, _ = strings.Cut(strings.TrimSpace(fields[1]), " ")
		switch r.keeper {
		case "ddp", "rdmap", "device":
			if r.test == "" {
				t.Errorf("%s: section %s: no test named", name, r.section)
			}
		case "mpa", "tcp":
		case "none":
			if !strings.Contains(r.text, ": ") {
				t.Errorf("%s: section %s: %q has no reason", name, r.section, r.text)
			}
		default:
			t.Errorf("%s: section %s: unknown keeper %q", name, r.section, r.keeper)
		}
		rules = append(rules, r)
	}
	return rules
}

// testNames returns the tests of the package in folder dir.
func testNames(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: got %d test files, error %v", dir, len(files), err)
	}
	names := make(map[string]bool)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

// placeOf turns TestRFC5040_5_2_1_Words into "5040 5.2.1".
func placeOf(test string) (place string, ok bool) {
	rest, ok := strings.CutPrefix(test, "TestRFC")
	if !ok || strings.HasPrefix(rest, "5042_") { // its tests are named by the resource that is attacked
		return "", false
	}
	words := strings.Split(rest, "_")
	return words[0] + " " + strings.Join(words[1:len(words)-1], "."), true
}
