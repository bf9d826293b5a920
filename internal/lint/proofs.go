package lint

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// proof is a test that a page names, "internal/hg.TestUnreadResponses". The root package's tests stand under its name.
var proof = regexp.MustCompile("`([a-z0-9_/]+)\\.((?:Test|Fuzz|Benchmark|Example)[A-Za-z0-9_]*)`")

// checkProofs finds tests that SECURITY.md and the manual name and that do not exist, because a claim without its test is a promise.
func checkProofs(t *tree) []finding {
	page := t.file("SECURITY.md")
	if page == nil {
		return []finding{{path: "SECURITY.md", text: "the page is missing"}}
	}
	tests := map[string]bool{}
	for _, f := range t.files {
		if f.syntax == nil || !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		dir := path.Dir(f.path)
		if dir == "." {
			dir = modulePath
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[dir+"."+fn.Name.Name] = true
			}
		}
	}
	var found []finding
	for _, f := range t.files {
		if f != page && !isManual(f) {
			continue
		}
		for n, line := range f.lines {
			for _, m := range proof.FindAllStringSubmatch(line, -1) {
				if name := m[1] + "." + m[2]; !tests[name] {
					found = append(found, finding{f.path, n, fmt.Sprintf("there is no test %s; name the one that shows the claim", name)})
				}
			}
		}
	}
	return found
}
