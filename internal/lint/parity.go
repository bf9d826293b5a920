package lint

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

const (
	parityFile = "docs/parity.md"
	ciFile     = ".ci/run"
)

// parityRow is one line of the table: | Row | Capability | Proof | Notes |.
type parityRow struct {
	line                         int
	id, capability, proof, notes string
}

var (
	rowID     = regexp.MustCompile(`^[A-Z][0-9]{2,3}$`)
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	proofTest = regexp.MustCompile(`^([A-Za-z0-9_/-]+)\.((?:Test|Fuzz|Example|Benchmark)[A-Za-z0-9_]*)(?:/.+)?$`)
	proofCI   = regexp.MustCompile(`^\.ci/run ([a-z0-9-]+)$`)
)

// checkParity wants each feature row once, with a capability in words and a proof that exists: tests as `dir.TestName`
// or `dir.TestName/case`, a CI step as `.ci/run step`, or "n/a" with the reason in the notes.
func checkParity(t *tree) []finding {
	f := t.file(parityFile)
	if f == nil {
		return []finding{{path: parityFile, text: "missing"}}
	}
	tests := testNames(t)
	first := map[string]int{}
	var found []finding
	for _, r := range parityRows(f) {
		if at := first[r.id]; at > 0 {
			found = append(found, finding{parityFile, r.line, fmt.Sprintf("%s stands already in line %d", r.id, at)})
			continue
		}
		first[r.id] = r.line
		for _, text := range r.faults(t, tests) {
			found = append(found, finding{parityFile, r.line, r.id + ": " + text})
		}
	}
	if len(first) == 0 {
		found = append(found, finding{path: parityFile, text: "no rows"})
	}
	return found
}

// parityRows returns the table's lines, told from other tables by the form of their first cell.
func parityRows(f *file) []parityRow {
	var rows []parityRow
	for n, l := range f.lines {
		cells := strings.Split(strings.Trim(strings.TrimSpace(l), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(l, "|") || !rowID.MatchString(cells[0]) {
			continue
		}
		cells = append(cells, make([]string, 4)...)
		rows = append(rows, parityRow{n, cells[0], cells[1], cells[2], cells[3]})
	}
	return rows
}

// faults returns what is wrong with a row.
func (r parityRow) faults(t *tree, tests map[string]bool) []string {
	var bad []string
	if r.capability == "" {
		bad = append(bad, "says no capability")
	}
	if r.proof == "n/a" {
		if r.notes == "" {
			bad = append(bad, "n/a without its reason in the notes")
		}
		return bad
	}
	spans := codeSpan.FindAllStringSubmatch(r.proof, -1)
	if len(spans) == 0 {
		return append(bad, "names no test that proves it")
	}
	for _, s := range spans {
		if text := proofFault(t, tests, s[1]); text != "" {
			bad = append(bad, text)
		}
	}
	return bad
}

// proofFault returns what is wrong with one proof, or "".
func proofFault(t *tree, tests map[string]bool, proof string) string {
	if m := proofTest.FindStringSubmatch(proof); m != nil {
		if !tests[m[1]+"."+m[2]] {
			return "no such test: " + proof
		}
		return ""
	}
	if m := proofCI.FindStringSubmatch(proof); m != nil {
		if !hasStep(t, m[1]) {
			return "no such CI step: " + proof
		}
		return ""
	}
	return fmt.Sprintf("proof %q is neither dir.TestName nor .ci/run step", proof)
}

// hasStep reports whether the CI script defines a step.
func hasStep(t *tree, name string) bool {
	f := t.file(ciFile)
	return f != nil && strings.Contains(string(f.data), "\nstep_"+strings.ReplaceAll(name, "-", "_")+"() {")
}

// testNames returns "dir.Name" for every test, example, benchmark and fuzz target; the root directory is named by its module.
func testNames(t *tree) map[string]bool {
	names := map[string]bool{}
	for _, f := range t.files {
		if f.syntax == nil || !f.isTest() {
			continue
		}
		dir := f.dir()
		if dir == "." {
			dir = modulePath
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				names[dir+"."+fn.Name.Name] = true
			}
		}
	}
	return names
}
