package verbs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// exported returns the exported constants, variables, types and functions of
// the package in dir, with whether each has a comment of its own.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				addSpecs(names, g)
			}
		}
	}
	return names
}

// addSpecs adds the exported names of a declaration.
func addSpecs(names map[string]bool, g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for _, n := range s.Names {
				if n.IsExported() {
					names[n.Name] = s.Doc != nil || s.Comment != nil || len(g.Specs) == 1 && g.Doc != nil
				}
			}
		case *ast.TypeSpec:
			if s.Name.IsExported() {
				names[s.Name.Name] = s.Doc != nil || len(g.Specs) == 1 && g.Doc != nil
			}
		}
	}
}

// spi are names of verbs/driver that only devices use: the interfaces, what
// devices are made of, and what package verbs has a type of its own for.
var spi = map[string]bool{
	"QPInit": true, "SRQInit": true, "Region": true, "OptionalAccess": true, "AsyncEvents": true,
}

// Programs find all that they share with devices in this package, each with a
// sentence about it.
func TestEverythingIsReexported(t *testing.T) {
	ours := exported(t, ".")
	for name := range exported(t, "driver") {
		if _, ok := ours[name]; !ok && !spi[name] {
			t.Errorf("driver.%s is not in package verbs", name)
		}
	}
	for name, documented := range ours {
		if !documented {
			t.Errorf("%s has no comment", name)
		}
	}
}
