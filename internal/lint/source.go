package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"path"
	"slices"
	"strings"
)

// maxLines is the length from which a source file must be split by concern.
const maxLines = 800

// checkDocComments reports packages without a file that has a doc comment in the form that godoc shows:
// "Package x ..." or, for a program, "Command x ...".
func checkDocComments(t *tree) []finding {
	documented := map[string]bool{}
	first := map[string]*file{}
	for _, f := range t.files {
		if f.syntax == nil {
			continue
		}
		if first[f.dir()] == nil {
			first[f.dir()] = f
		}
		if hasPackageDoc(f) {
			documented[f.dir()] = true
		}
	}
	var found []finding
	for dir, f := range first {
		if !documented[dir] {
			name := strings.TrimSuffix(f.syntax.Name.Name, "_test")
			found = append(found, finding{path: dir, text: fmt.Sprintf("package %s has no doc comment; begin one with %q in doc.go", name, "Package "+name)})
		}
	}
	slices.SortFunc(found, func(a, b finding) int { return strings.Compare(a.path, b.path) })
	return found
}

func hasPackageDoc(f *file) bool {
	text := f.syntax.Doc.Text()
	if f.syntax.Name.Name == "main" {
		return strings.HasPrefix(text, "Command "+path.Base(f.dir())+" ")
	}
	return strings.HasPrefix(text, "Package "+strings.TrimSuffix(f.syntax.Name.Name, "_test")+" ")
}

// checkFormat compares every Go file with gofmt's output.
func checkFormat(t *tree) []finding {
	var found []finding
	for _, f := range t.files {
		if f.syntax == nil {
			continue
		}
		want, err := format.Source(f.data)
		if err != nil {
			found = append(found, finding{path: f.path, text: err.Error()})
		} else if !bytes.Equal(want, f.data) {
			found = append(found, finding{path: f.path, text: "not formatted; run gofmt -w"})
		}
	}
	return found
}

// checkLength bounds the length of Go files.
func checkLength(t *tree) []finding {
	var found []finding
	for _, f := range t.files {
		if n := bytes.Count(f.data, []byte("\n")); f.syntax != nil && n > maxLines {
			found = append(found, finding{path: f.path, text: fmt.Sprintf("%d lines, limit %d; split it by concern", n, maxLines)})
		}
	}
	return found
}

// checkSleeps refuses waiting by the clock outside tests. A sleeping goroutine can be neither cancelled nor driven by
// a fake clock, and the timer of time.After or time.Tick cannot be stopped.
func checkSleeps(t *tree) []finding {
	var found []finding
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && isSleep(sel) {
				found = append(found, finding{f.path, t.line(sel.Pos()), "time." + sel.Sel.Name + " outside a test; wait for the event, or use a time.Timer that is stopped"})
			}
			return true
		})
	}
	return found
}

// countedLocks are the packages on the path of an RPC. They declare their locks by the types of internal/invariants, which count them.
var countedLocks = []string{".", "internal/hg", "internal/hg/wire", "internal/na", "internal/na/ofitcp", "internal/sched", "internal/hostquota", "internal/rundown", "internal/audit", "internal/sockio"}

func checkLocks(t *tree) []finding {
	var found []finding
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() || !slices.Contains(countedLocks, path.Dir(f.path)) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "sync" && (sel.Sel.Name == "Mutex" || sel.Sel.Name == "RWMutex") {
				found = append(found, finding{f.path, t.line(sel.Pos()), "sync." + sel.Sel.Name + " on the path of an RPC; use invariants." + sel.Sel.Name + ", so that tests count its locks"})
			}
			return true
		})
	}
	return found
}

func isSleep(sel *ast.SelectorExpr) bool {
	pkg, ok := sel.X.(*ast.Ident)
	if !ok || pkg.Name != "time" {
		return false
	}
	switch sel.Sel.Name {
	case "Sleep", "After", "Tick":
		return true
	}
	return false
}
