package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// report of a run: a test that passed, one that skipped, one with a passed and a skipped part.
const run1 = `{"Action":"start","Package":"cinnabar/a"}
{"Action":"run","Package":"cinnabar/a","Test":"TestPass"}
{"Action":"output","Package":"cinnabar/a","Test":"TestPass","Output":"=== RUN   TestPass\n"}
{"Action":"output","Package":"cinnabar/a","Test":"TestPass","Output":"    a_test.go:1: words\n"}
{"Action":"pass","Package":"cinnabar/a","Test":"TestPass","Elapsed":0.1}
{"Action":"skip","Package":"cinnabar/a","Test":"TestSkip"}
{"Action":"pass","Package":"cinnabar/a","Test":"TestSome/Group/one"}
{"Action":"skip","Package":"cinnabar/a","Test":"TestSome/Group/two"}
{"Action":"pass","Package":"cinnabar/a","Test":"TestSome/Group"}
{"Action":"pass","Package":"cinnabar/a","Test":"TestSome"}
{"Action":"pass","Package":"cinnabar/a","Test":"Example_it"}
{"Action":"output","Package":"cinnabar/a","Output":"PASS\n"}
{"Action":"output","Package":"cinnabar/a","Output":"ok  \tcinnabar/a\t1.0s\n"}
{"Action":"pass","Package":"cinnabar/a","Elapsed":1}
`

// runHollow has a test with nothing but skips.
const runHollow = `{"Action":"skip","Package":"cinnabar/a","Test":"TestHollow/Group/one"}
{"Action":"pass","Package":"cinnabar/a","Test":"TestHollow/Group"}
{"Action":"skip","Package":"cinnabar/a","Test":"TestHollow/two"}
{"Action":"pass","Package":"cinnabar/a","Test":"TestHollow"}
`

const runFailed = `{"Action":"output","Package":"cinnabar/a","Test":"TestFail","Output":"=== RUN   TestFail\n"}
{"Action":"output","Package":"cinnabar/a","Test":"TestFail","Output":"    a_test.go:1: broken\n"}
{"Action":"fail","Package":"cinnabar/a","Test":"TestFail"}
{"Action":"output","Package":"cinnabar/a","Output":"FAIL\n"}
{"Action":"fail","Package":"cinnabar/a"}
{"ImportPath":"cinnabar/b","Action":"build-output","Output":"b.go:1: syntax error\n"}
{"ImportPath":"cinnabar/b","Action":"build-fail"}
{"Action":"fail","Package":"cinnabar/b","FailedBuild":"cinnabar/b"}
`

// runTimedOut has tests that never end, as a run has whose time is up.
const runTimedOut = `{"Action":"run","Package":"cinnabar/a","Test":"TestHang"}
{"Action":"output","Package":"cinnabar/a","Test":"TestHang","Output":"=== RUN   TestHang\n"}
{"Action":"run","Package":"cinnabar/a","Test":"TestHang/case"}
{"Action":"output","Package":"cinnabar/a","Test":"TestHang/case","Output":"panic: test timed out after 1s\n"}
{"Action":"output","Package":"cinnabar/a","Output":"FAIL\tcinnabar/a\t1.0s\n"}
{"Action":"fail","Package":"cinnabar/a"}
`

// TestClaims compares markers with a run.
func TestClaims(t *testing.T) {
	var text strings.Builder
	text.WriteString("package a\n")
	for _, name := range []string{"TestPass", "TestSkip", "TestSome", "TestHollow", "Example_it", "TestGone", "TestFail"} {
		text.WriteString("\n// parity: A01\nfunc " + name + "() {}\n")
	}
	text.WriteString("\n// parity(peer): A01\nfunc TestNeedsPeer() {}\n")
	tab, err := readTable(tree("A01\tMUST\tx\t\t\t\t\nA02\tMUST\tx\t\t\t\t\n", "a/a_test.go", text.String(),
		"verbs/verbstest/suite.go", suite+"// parity: A02\nfunc testArm() {}\n\n// parity: A02\nfunc testPoll() {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := readReport(strings.NewReader(run1 + runHollow + runFailed +
		`{"Action":"pass","Package":"cinnabar/verbs/iwarp","Test":"TestConformance/CQ/Arm"}
{"Action":"skip","Package":"cinnabar/verbs/iwarp","Test":"TestConformance/CQ/Poll"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.hollow(); len(got) != 1 || got[0] != "a.TestHollow passed with every sub-test skipped; it has to skip itself" {
		t.Errorf("hollow tests: %q", got)
	}
	got := strings.Join(tab.claims(r), "\n")
	want := `A01: marker claims a run by default of a.TestFail, which failed
A01: marker claims a run by default of a.TestGone, which did not run
A01: marker claims a run by default of a.TestHollow, which passed with every sub-test skipped
A01: marker claims a run by default of a.TestSkip, which skipped
A02: marker claims a run by default of verbs/iwarp.TestConformance/CQ/Poll, which skipped`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestReport prints a run as `go test` does, and keeps it.
func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report")
	var out strings.Builder
	if err := run([]string{"report", file}, strings.NewReader(run1), &out); err != nil {
		t.Error(err)
	}
	if got, want := out.String(), "ok  \tcinnabar/a\t1.0s\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != run1 {
		t.Errorf("kept %q, %v", b, err)
	}
	out.Reset()
	err := run([]string{"report", file}, strings.NewReader(runFailed), &out)
	if got, want := fmt.Sprint(err), "failed: cinnabar/a.TestFail, cinnabar/a, cinnabar/b"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	if got, want := out.String(), "    a_test.go:1: broken\nFAIL\nb.go:1: syntax error\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	out.Reset()
	err = run([]string{"report", file}, strings.NewReader(runTimedOut), &out)
	if got, want := fmt.Sprint(err), "failed: cinnabar/a.TestHang (no end), cinnabar/a.TestHang/case (no end), cinnabar/a"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	if got, want := out.String(), "panic: test timed out after 1s\nFAIL\tcinnabar/a\t1.0s\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if err := run([]string{"report", file}, strings.NewReader("no report"), &out); err == nil {
		t.Error("text that is no report gave no error")
	}
	if err := run([]string{"list"}, nil, &out); err == nil {
		t.Error("an unknown command gave no error")
	}
}

// TestCheck runs the check over small repositories.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		rowsFile:      header + "# Things\nA01\tMUST\tx\t\t\t\t\n",
		"a/a_test.go": "package a\n\n// parity: A01\nfunc TestPass() {}\n",
		"report":      run1,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := run([]string{"check", "report"}, nil, &out); err != nil || !strings.Contains(out.String(), "\nMUST ") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if err := os.WriteFile("report", []byte(strings.ReplaceAll(run1, "TestPass", "TestOther")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"check", "report"}, nil, &out); err == nil || !strings.Contains(out.String(), "a.TestPass, which did not run") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if err := os.WriteFile("report", []byte(run1+runHollow), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"check", "report"}, nil, &out); err == nil || !strings.Contains(out.String(), "a.TestHollow passed with every sub-test skipped") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if err := run([]string{"check", "nothing"}, nil, &out); err == nil {
		t.Error("a report that is not there gave no error")
	}
}
