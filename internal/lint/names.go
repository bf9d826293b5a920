package lint

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// goName finds a name of Go in code: "codes.NoEntry", "cinnabar.Engine.Close" or "Engine.Close".
var goName = regexp.MustCompile(`(?:^|[^A-Za-z0-9_./])(?:([a-z][a-z0-9]*)\.)?([A-Z][A-Za-z0-9]*)(?:\.([A-Z][A-Za-z0-9]*))?`)

// api is the exported surface of the public packages.
type api struct {
	packages map[string]bool     // names of packages
	names    map[string]bool     // "codes.NoEntry", "cinnabar.Engine.Close"
	members  map[string][]string // the members of the types with a name, in all packages: "Engine" to "Close"
}

// publicAPI reads the packages that programs may import or copy. Of two packages with one name it has the names of both.
func publicAPI(t *tree) api {
	a := api{packages: map[string]bool{}, names: map[string]bool{}, members: map[string][]string{}}
	for _, f := range t.files {
		if f.syntax == nil || f.isTest() || f.nested || !isPublic(f.dir()) {
			continue
		}
		pkg := f.syntax.Name.Name
		if !strings.HasPrefix(f.dir(), "examples/") { // their names are those of variables, too
			a.packages[pkg] = true
		}
		names := declaredNames(f.syntax)
		for _, d := range f.syntax.Decls {
			if gen, ok := d.(*ast.GenDecl); ok {
				names = append(names, exportedValues(gen)...)
			}
		}
		for _, name := range names {
			a.names[pkg+"."+name] = true
			if typeName, member, ok := strings.Cut(name, "."); ok {
				a.members[typeName] = append(a.members[typeName], member)
			}
		}
	}
	return a
}

func isPublic(dir string) bool {
	first, _, _ := strings.Cut(dir, "/")
	switch first {
	case "cmd", "bench", "test":
		return false
	}
	return !strings.Contains("/"+dir+"/", "/internal/")
}

// checkNames wants the names of Go that the manual has in code to exist: those with the name of a public package, and members of
// types that a public package declares.
func checkNames(t *tree) []finding {
	a := publicAPI(t)
	var found []finding
	for _, f := range t.files {
		if f.path != readmeFile && !isManual(f) {
			continue
		}
		for n, l := range prose(f) {
			for _, span := range codeSpan.FindAllStringSubmatch(l, -1) {
				for _, m := range goName.FindAllStringSubmatch(span[1], -1) {
					if name := a.missing(m[1], m[2], m[3]); name != "" {
						found = append(found, finding{f.path, n, fmt.Sprintf("%s is not exported by a public package", name)})
					}
				}
			}
		}
	}
	return found
}

// missing returns the name that no public package has, or "". It knows nothing of names of other modules.
func (a *api) missing(pkg, name, member string) string {
	switch {
	case pkg != "" && !a.packages[pkg]:
		return ""
	case pkg != "" && isTestName(name):
		return ""
	case pkg != "" && !a.names[pkg+"."+name]:
		return pkg + "." + name
	case member == "":
		return ""
	}
	members, known := a.members[name]
	if !known {
		return ""
	}
	if slices.Contains(members, member) {
		return ""
	}
	return name + "." + member
}

// isTestName reports whether a name is that of a test, which checkProofs looks for.
func isTestName(name string) bool {
	for _, prefix := range []string{"Test", "Fuzz", "Benchmark", "Example"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
