package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/parity.md anew")

// TestRepository checks that every row of this repository has a state, that every marker is right, and that docs/parity.md
// follows from both.
func TestRepository(t *testing.T) {
	root := filepath.Join("..", "..")
	tab, err := readTable(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range tab.faults() {
		t.Error(text)
	}
	name := filepath.Join(root, filepath.FromSlash(pageFile))
	if *update {
		if err := os.WriteFile(name, []byte(tab.page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(got), "\n"), strings.Split(tab.page(), "\n")); diff != "" {
		t.Errorf("%s is stale; `go test ./test/parity -update` writes it (-page +rows and markers):\n%s", pageFile, diff)
	}
}

const header = "id\tlevel\tfeature\tneeds\tstate\treason\tnote\n"

// tree returns a repository of rows and further files, name after name and text after text.
func tree(rows string, files ...string) fstest.MapFS {
	fsys := fstest.MapFS{rowsFile: {Data: []byte(header + "# Things\n" + rows)}}
	for i := 0; i < len(files); i += 2 {
		fsys[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return fsys
}

const suite = `package verbstest

var groups = []group{
	{"CQ", []test{
		{"Arm", Options{}, testArm}, {"Poll", exact, testPoll},
	}},
}
`

// TestStates has rows with each kind of proof.
func TestStates(t *testing.T) {
	in := tree("A01\tMUST\tx\t\t\t\t\n",
		"a/a_test.go", "package a\n\n// parity: A01 A02 A03\nfunc TestAll(t *testing.T) {}\n\n"+
			"// TestPeer has words.\n//\n// parity(peer): A02 A04\nfunc TestPeer(t *testing.T) {}\n\n// parity(recorded): A05\nfunc ExampleIt() {}\n\n"+
			"// parity(slow): A06\nfunc FuzzIt(f *testing.F) {}\n",
		"r_test.go", "package cinnabar\n\n// parity: A01\nfunc TestRoot(t *testing.T) {}\n",
		"verbs/verbstest/suite.go", suite+"// parity: A01\n// parity(vm): A07\nfunc testArm(t *testing.T) {}\n",
		"test/rdmavm/rping", "#!/bin/bash\n# parity(vm): A07\n",
		".ci/run", "# parity(slow): A06\n# More words.\nstep_one_two() {\n}\n")
	in[rowsFile].Data = append(in[rowsFile].Data, "A02\tCORE\tx\tC\t\t\t\nA03\tCORE\tx\t\tpartial\thalf\tsome\nA04\tFULL\tx\t\t\t\t\n"+
		"A05\tFULL\tx\tC\t\t\t\nA06\tFULL\tx\t\t\t\t\nA07\tBEYOND\tx\t\t\t\t\nA08\tDEMAND\tx\t\tplanned\tlater\t\nA09\tDEMAND\tx\t\tnot here\tbecause\t\n"...)
	tab, err := readTable(in)
	if err != nil {
		t.Fatal(err)
	}
	if bad := tab.faults(); len(bad) > 0 {
		t.Fatal(strings.Join(bad, "\n"))
	}
	page := tab.page()
	for _, want := range []string{
		"| A01 | MUST | x | by default | `a.TestAll`, `cinnabar.TestRoot`, `verbs/iwarp.TestConformance/CQ/Arm` |  |\n",
		"| A02 | CORE | x | with a C peer | `a.TestAll`; with a C peer: `a.TestPeer` |  |\n",
		"| A03 | CORE | x | partial | `a.TestAll` | half. some |\n",
		"| A04 | FULL | x | with a C peer | with a C peer: `a.TestPeer` |  |\n",
		"| A05 | FULL | x | by default | recorded: `a.ExampleIt` |  |\n",
		"| A06 | FULL | x | slow part of CI | slow part of CI: `.ci/run one-two`, `a.FuzzIt` |  |\n",
		"| A07 | BEYOND | x | virtual machine | virtual machine: `test/rdmavm/rping`, `verbs/rdmacore.TestConformance/CQ/Arm` |  |\n",
		"| A08 | DEMAND | x | planned |  | later |\n",
		"| A09 | DEMAND | x | not here |  | because |\n",
		"| all | 2 | 1 | 2 | 1 | 1 | 1 | 1 | 9 |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if got, want := tab.counts().text(), "MUST             1                0              0                0        0        0         0       1\n"; !strings.Contains(got, want) {
		t.Errorf("counts lack %q:\n%s", want, got)
	}
}

// TestFaults breaks each rule once.
func TestFaults(t *testing.T) {
	const row = "A01\tMUST\tx\t\t\t\t\n"
	test := func(text string) string { return "package a\n\n" + text + "\nfunc TestIt(t *testing.T) {}\n" }
	good := test("// parity: A01")
	for _, tc := range []struct {
		name string
		in   fstest.MapFS
		want string // of the error, or of a fault
	}{
		{"good", tree(row, "a/a_test.go", good), ""},
		{"no state", tree(row), "rows.tsv:3: A01 has no state"},
		{"no peer", tree(strings.Replace(row, "x\t", "x\tC", 1), "a/a_test.go", good), "A01 needs a peer in C"},
		{"twice", tree(row+row, "a/a_test.go", good), "rows.tsv:4: A01 a second time"},
		{"no row", tree(row, "a/a_test.go", test("// parity: A01 A02")), "a.TestIt: marker of A02"},
		{"proven and not here", tree("A01\tMUST\tx\t\tnot here\tno\t\n", "a/a_test.go", good), "is not here, and a.TestIt proves it"},
		{"variant", tree(row, "a/a_test.go", test("// parity(never): A01")), `a/a_test.go:3: marker: unknown variant "never"`},
		{"empty variant", tree(row, "a/a_test.go", test("// parity(): A01")), "unknown variant"},
		{"no ids", tree(row, "a/a_test.go", test("// parity:")), "names no row"},
		{"comma", tree(row, "a/a_test.go", test("// parity: A01, A02")), `"A01," is no id`},
		{"inside", tree(row, "a/a_test.go", "package a\n\nfunc TestIt(t *testing.T) {\n\t// parity: A01\n}\n"), "outside the doc comment"},
		{"helper", tree(row, "a/a_test.go", "package a\n\n// parity: A01\nfunc testIt(t *testing.T) {}\n"), "which is no test"},
		{"method", tree(row, "a/a_test.go", "package a\n\n// parity: A01\nfunc (x) TestIt(t *testing.T) {}\n"), "outside the doc comment"},
		{"benchmark", tree(row, "a/a_test.go", "package a\n\n// parity: A01\nfunc BenchmarkIt(b *testing.B) {}\n"), "which is no test"},
		{"no test file", tree(row, "a/a.go", good), "which is no test"},
		{"tag", tree(row, "a/a_test.go", "//go:build rdma && linux && cgo\n\n"+good), "has the build tag rdma"},
		{"tag not needed", tree(row, "a/a_test.go", "//go:build linux && !rdma\n\n"+good), ""},
		{"no case", tree(row, "verbs/verbstest/suite.go", suite+"// parity: A01\nfunc testOther(t *testing.T) {}\n"), "no case of the suite"},
		{"script by default", tree(row, "test/rdmavm/rping", "# parity: A01\n"), "no test that runs by default"},
		{"no step", tree(row, ".ci/run", "# parity(slow): A01\necho\nstep_x() {\n"), "stands above no step"},
		{"header", fstest.MapFS{rowsFile: {Data: []byte("id\n" + row)}}, "first line"},
		{"no heading", fstest.MapFS{rowsFile: {Data: []byte(header + row)}}, "no heading"},
		{"columns", tree("A01\tMUST\tx\n"), "3 columns"},
		{"id", tree("A1\tMUST\tx\t\t\t\t\n"), `id "A1"`},
		{"level", tree("A01\tHIGH\tx\t\t\t\t\n"), `level "HIGH"`},
		{"feature", tree("A01\tMUST\t\t\t\t\t\n"), "no feature"},
		{"needs", tree("A01\tMUST\tx\tD\t\t\t\n"), `needs "D"`},
		{"state", tree("A01\tMUST\tx\t\tby default\tx\t\n"), `state "by default"`},
		{"no reason", tree("A01\tMUST\tx\t\tplanned\t\t\n"), "without its reason"},
		{"no use for a reason", tree("A01\tMUST\tx\t\t\tx\t\n"), "a reason without a state"},
		{"bar", tree("A01\tMUST\tx|y\t\t\t\t\n"), `cell "x|y"`},
		{"no rows", fstest.MapFS{}, "rows.tsv"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			tab, err := readTable(tc.in)
			if err != nil {
				got = err.Error()
			} else {
				got = strings.Join(tab.faults(), "\n")
			}
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
