package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// variant is how a proof runs.
type variant string

const (
	runsDefault  variant = ""
	runsRecorded variant = "recorded"
	runsPeer     variant = "peer"
	runsVM       variant = "vm"
	runsSlow     variant = "slow"
)

var variants = []variant{runsDefault, runsRecorded, runsSlow, runsPeer, runsVM}

func (v variant) state() state {
	switch v {
	case runsPeer:
		return withPeer
	case runsVM:
		return inVM
	case runsSlow:
		return slow
	case runsDefault, runsRecorded:
	}
	return byDefault
}

// byTests reports whether a test of this variant runs in `go test ./...`.
func (v variant) byTests() bool { return v == runsDefault || v == runsRecorded }

// proof is one test, script or step that shows a feature.
type proof struct {
	name    string // "dir.TestName", "dir.TestName/case", "test/rdmavm/script", ".ci/run step"
	variant variant
}

func compareProofs(a, b proof) int {
	if a.variant != b.variant {
		return cmp.Compare(slices.Index(variants, a.variant), slices.Index(variants, b.variant))
	}
	return cmp.Compare(a.name, b.name)
}

// marker is one proof with the rows that it proves.
type marker struct {
	proof
	ids []string
}

const (
	modulePath = "cinnabar"
	suiteDir   = "verbs/verbstest" // cases of TestConformance, which each device's package runs
	vmDir      = "test/rdmavm"     // scripts that run in the virtual machine
	ciFile     = ".ci/run"
)

var (
	markerLine = regexp.MustCompile(`^\s*(?://|#) parity(?:\(([a-z]*)\))?:(.*)$`)
	testName   = regexp.MustCompile(`^(Test|Fuzz|Example)([^a-z].*)?$`)
	stepLine   = regexp.MustCompile(`^step_([a-z0-9_]+)\(\)`)
)

// readMarkers finds the markers of the repository, and the lines that look like markers and are none.
func readMarkers(fsys fs.FS) (markers []marker, bad []string, err error) {
	cases, err := suiteCases(fsys)
	if err != nil {
		return nil, nil, err
	}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") && name != "." && name != ".ci"
			if hidden || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		inVM := path.Dir(name) == vmDir && path.Ext(name) == ""
		if !d.Type().IsRegular() || path.Ext(name) != ".go" && name != ciFile && !inVM {
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		var found []marker
		var wrong []string
		if path.Ext(name) == ".go" {
			found, wrong, err = goMarkers(name, data, cases)
		} else {
			found, wrong = scriptMarkers(name, data)
		}
		markers, bad = append(markers, found...), append(bad, wrong...)
		return err
	})
	return markers, bad, err
}

// parseMarker returns the variant and the ids of a line, with ok false if it is no marker.
func parseMarker(line string) (v variant, ids []string, ok bool, err error) {
	m := markerLine.FindStringSubmatch(line)
	if m == nil {
		return "", nil, false, nil
	}
	v, ids = variant(m[1]), strings.Fields(m[2])
	if strings.Contains(line, "parity()") || !slices.Contains(variants, v) {
		return v, nil, true, fmt.Errorf("unknown variant %q", m[1])
	}
	if len(ids) == 0 {
		return v, nil, true, fmt.Errorf("names no row")
	}
	for _, id := range ids {
		if !rowID.MatchString(id) {
			return v, nil, true, fmt.Errorf("%q is no id of a row", id)
		}
	}
	return v, ids, true, nil
}

// goMarkers finds the markers in the doc comments of a Go file's tests.
func goMarkers(name string, data []byte, cases map[string]string) (found []marker, bad []string, err error) {
	if !strings.Contains(string(data), "// parity") {
		return nil, nil, nil
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	owner := map[*ast.CommentGroup]*ast.FuncDecl{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Doc != nil && fn.Recv == nil {
			owner[fn.Doc] = fn
		}
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			v, ids, ok, err := parseMarker(c.Text)
			if !ok {
				continue
			}
			where := fmt.Sprintf("%s:%d", name, fset.Position(c.Pos()).Line)
			if err != nil {
				bad = append(bad, where+": marker: "+err.Error())
				continue
			}
			p, err := goProof(name, f, owner[group], v, cases)
			if err != nil {
				bad = append(bad, where+": "+err.Error())
				continue
			}
			found = append(found, marker{p, ids})
		}
	}
	return found, bad, nil
}

// goProof returns the proof that a marker on fn stands for.
func goProof(name string, f *ast.File, fn *ast.FuncDecl, v variant, cases map[string]string) (proof, error) {
	if fn == nil {
		return proof{}, fmt.Errorf("marker outside the doc comment of a test")
	}
	dir := path.Dir(name)
	if dir == "." {
		dir = modulePath
	}
	switch test := fn.Name.Name; {
	case dir == suiteDir && !strings.HasSuffix(name, "_test.go"):
		c, ok := cases[test]
		if !ok {
			return proof{}, fmt.Errorf("marker on %s, which is no case of the suite", test)
		}
		if v == runsVM {
			return proof{"verbs/rdmacore.TestConformance/" + c, v}, nil
		}
		return proof{"verbs/iwarp.TestConformance/" + c, v}, nil
	case !strings.HasSuffix(name, "_test.go") || !testName.MatchString(test):
		return proof{}, fmt.Errorf("marker on %s, which is no test", test)
	case v.byTests() && needsTag(f, "rdma"):
		return proof{}, fmt.Errorf("marker of %s claims a run by default; its file has the build tag rdma", test)
	default:
		return proof{dir + "." + test, v}, nil
	}
}

// needsTag reports whether a file is left out of a build on Linux with cgo without the tag.
func needsTag(f *ast.File, tag string) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() > f.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			e, err := constraint.Parse(c.Text)
			set := func(with bool) func(string) bool {
				return func(t string) bool {
					return t == "linux" || t == "unix" || t == "cgo" || t == "amd64" || with && t == tag
				}
			}
			if err == nil && !e.Eval(set(false)) && e.Eval(set(true)) {
				return true
			}
		}
	}
	return false
}

// scriptMarkers finds the markers of a script of the virtual machine, or of a step of CI, which stand directly above it.
func scriptMarkers(name string, data []byte) (found []marker, bad []string) {
	var above []int // markers that wait for their step
	for n, l := range strings.Split(string(data), "\n") {
		v, ids, ok, err := parseMarker(l)
		switch {
		case err != nil:
			bad = append(bad, fmt.Sprintf("%s:%d: marker: %v", name, n+1, err))
		case ok && v.byTests():
			bad = append(bad, fmt.Sprintf("%s:%d: a script is no test that runs by default", name, n+1))
		case ok && name == ciFile:
			found = append(found, marker{proof{ciFile, v}, ids})
			above = append(above, len(found)-1)
		case ok:
			found = append(found, marker{proof{strings.TrimSuffix(name, "-guest"), v}, ids})
		default:
			if m := stepLine.FindStringSubmatch(l); m != nil {
				for _, i := range above {
					found[i].name += " " + strings.ReplaceAll(m[1], "_", "-")
				}
				above = nil
			}
			if len(above) > 0 && !strings.HasPrefix(l, "#") {
				bad = append(bad, fmt.Sprintf("%s:%d: the marker above stands above no step", name, n+1))
				above = nil
			}
		}
	}
	return found, bad
}

// suiteCases returns the cases of the suite of devices, "Group/Case" by the name of its function.
func suiteCases(fsys fs.FS) (map[string]string, error) {
	names, err := fs.Glob(fsys, suiteDir+"/*.go")
	if err != nil {
		return nil, err
	}
	cases := map[string]string{}
	if len(names) > 0 {
		cases["testLockLimit"] = "LockLimit" // the one case outside the groups
	}
	for _, name := range names {
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, data, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if list, ok := n.(*ast.CompositeLit); ok {
				readGroup(list, cases)
			}
			return true
		})
	}
	return cases, nil
}

// readGroup adds the cases of a group of the suite, a name and a list of cases: {"CQ", []test{{"Arm", Options{}, testArm}}}.
func readGroup(group *ast.CompositeLit, cases map[string]string) {
	if len(group.Elts) != 2 {
		return
	}
	name, isString := stringOf(group.Elts[0])
	list, isList := group.Elts[1].(*ast.CompositeLit)
	if !isString || !isList {
		return
	}
	for _, e := range list.Elts {
		c, ok := e.(*ast.CompositeLit)
		if !ok || len(c.Elts) != 3 {
			continue
		}
		title, isString := stringOf(c.Elts[0])
		if fn, isName := c.Elts[2].(*ast.Ident); isString && isName {
			cases[fn.Name] = name + "/" + title
		}
	}
}

// stringOf returns the text of a string literal.
func stringOf(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	return strings.Trim(lit.Value, `"`), true
}
