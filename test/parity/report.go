package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a package that does not build
	Test        string
	Output      string
	FailedBuild string
}

// report is how each test of a run ended: "pass", "fail" or "skip", by "import/path.TestName/case".
type report map[string]string

func readReport(in io.Reader) (report, error) {
	r := report{}
	err := eachEvent(in, func(e event) {
		if e.Test == "" {
			return
		}
		switch e.Action {
		case "pass", "fail", "skip":
			r[e.Package+"."+e.Test] = e.Action
		}
	})
	return r, err
}

func eachEvent(in io.Reader, do func(event)) error {
	d := json.NewDecoder(in)
	for {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("report of the tests: %w", err)
		}
		do(e)
	}
}

// printReport prints a report as `go test` without -v does: a line for each package, and the output of tests that failed.
// Its error names them, because a reader sees the end of a long output first.
func printReport(out io.Writer, in io.Reader) error {
	type key struct{ pkg, test string }
	said := map[key]*strings.Builder{}
	var failed []string
	var writeErr error
	print := func(k key, e event) {
		if b := said[k]; b != nil {
			if _, err := io.WriteString(out, shown(b.String(), e)); writeErr == nil {
				writeErr = err
			}
		}
	}
	err := eachEvent(in, func(e event) {
		k := key{e.Package, e.Test}
		if e.Action == "build-output" {
			k.pkg = e.ImportPath
		}
		switch e.Action {
		case "run", "output", "build-output":
			if said[k] == nil {
				said[k] = &strings.Builder{}
			}
			said[k].WriteString(e.Output)
		case "fail", "build-fail":
			if e.Test == "" {
				// A time-out or a crash leaves tests without an end: the traces of the goroutines are among their output.
				for _, open := range slices.SortedFunc(maps.Keys(said), func(a, b key) int { return strings.Compare(a.test, b.test) }) {
					if open.pkg == e.Package && open.test != "" {
						failed = append(failed, open.pkg+"."+open.test+" (no end)")
						print(open, e)
						delete(said, open)
					}
				}
			}
			if e.Action == "build-fail" {
				k.pkg = e.ImportPath
			}
			if e.FailedBuild == "" { // the event "build-fail" named it
				failed = append(failed, strings.TrimSuffix(k.pkg+"."+k.test, "."))
			}
			print(k, e)
			delete(said, k)
		case "pass", "skip":
			if e.Test == "" {
				print(k, e)
			}
			delete(said, k)
		}
	})
	if err == nil {
		err = writeErr
	}
	if err == nil && len(failed) > 0 {
		err = errors.New("failed: " + strings.Join(failed, ", "))
	}
	return err
}

// shown returns the lines of a test's or package's output that are worth printing.
func shown(text string, e event) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		noise := strings.HasPrefix(l, "=== ") || e.Test == "" && e.Action != "fail" && (l == "PASS\n" || strings.HasPrefix(l, "coverage: "))
		if !noise {
			b.WriteString(l)
		}
	}
	return b.String()
}

// parts returns the sub-tests of every level, by each test above them.
func (r report) parts() map[string][]string {
	parts := map[string][]string{}
	for name := range r {
		for at := len(name); ; {
			at = strings.LastIndexByte(name[:at], '/')
			if at < 0 || !strings.Contains(name[:at], ".Test") && !strings.Contains(name[:at], ".Fuzz") {
				break // the rest is the package's path
			}
			parts[name[:at]] = append(parts[name[:at]], name)
		}
	}
	return parts
}

// hollow returns the tests that passed although all of their sub-tests skipped. Such a test has to skip itself, because
// `go test` prints it as passed otherwise.
func (r report) hollow() []string {
	parts := r.parts()
	var bad []string
	for name := range parts {
		last := name[strings.LastIndex(name, ".Test")+1:]
		if !strings.Contains(last, "/") && r.fault(name, parts) == allSkipped {
			bad = append(bad, strings.TrimPrefix(name, modulePath+"/")+" "+allSkipped+"; it has to skip itself")
		}
	}
	slices.Sort(bad)
	return bad
}

// claims returns the markers that claim a run by default and had none, by the report of one.
func (t *table) claims(r report) []string {
	parts := r.parts()
	checked := map[string]bool{}
	var bad []string
	for _, r0 := range t.rows {
		for _, p := range t.proofs[r0.id] {
			if !p.variant.byTests() || checked[p.name] {
				continue
			}
			checked[p.name] = true
			name := modulePath + "/" + p.name
			if strings.HasPrefix(p.name, modulePath+".") {
				name = p.name
			}
			if text := r.fault(name, parts); text != "" {
				bad = append(bad, fmt.Sprintf("%s: marker claims a run by default of %s, which %s", r0.id, p.name, text))
			}
		}
	}
	return bad
}

const allSkipped = "passed with every sub-test skipped"

// fault returns the reason why a test counts as not run, or "".
func (r report) fault(name string, parts map[string][]string) string {
	switch r[name] {
	case "":
		return "did not run"
	case "skip":
		return "skipped"
	case "fail":
		return "failed"
	}
	leaves := slices.DeleteFunc(slices.Clone(parts[name]), func(p string) bool { return len(parts[p]) > 0 })
	if len(leaves) > 0 && !slices.ContainsFunc(leaves, func(l string) bool { return r[l] == "pass" }) {
		return allSkipped
	}
	return ""
}
