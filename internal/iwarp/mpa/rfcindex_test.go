package mpa

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// rule is a MUST of an RFC in our words, and who keeps it: the name of a test, or the reason why there is
// none, which begins with "device:" (the caller with the sockets and queues keeps it), "user:", "kept by
// construction:", "not done:" or "not applicable:".
type rule struct{ section, must, by string }

// checkIndex requires that every test an index names is in the file, and the other way round.
func checkIndex(t *testing.T, file, prefix string, index []rule) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, decl := range parsed.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, prefix) && f.Name.Name != prefix+"Index" {
			tests[f.Name.Name] = false
		}
	}
	for _, r := range index {
		if !strings.HasPrefix(r.by, "Test") {
			if !strings.Contains(r.by, ": ") {
				t.Errorf("section %s, %q: %q names neither a test nor a reason", r.section, r.must, r.by)
			}
			continue
		}
		if _, ok := tests[r.by]; !ok {
			t.Errorf("section %s, %q: no test %s in %s", r.section, r.must, r.by, file)
		}
		tests[r.by] = true
	}
	for name, indexed := range tests {
		if !indexed {
			t.Errorf("%s is not in the index", name)
		}
	}
}
