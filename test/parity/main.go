// Command parity keeps the table of features and their proofs.
//
// rows.tsv lists the features. A test that proves one names it in its doc comment:
//
//	// parity: ID ID            the test runs in `go test ./...`
//	// parity(recorded): ID     it runs there too, and plays the recording of a program in C or C++
//	// parity(peer): ID         it needs programs in C or C++
//	// parity(vm): ID           it needs an RDMA device of the kernel, which the virtual machine of test/rdmavm has
//	// parity(slow): ID         it runs in a step of .ci/run of its own
//
// A case of verbs/verbstest carries markers in the same way; its test is the one of that name on the software device, and
// with (vm) the one of verbs/rdmacore. In the scripts of test/rdmavm and in .ci/run a marker is a comment line; the latter
// stands directly above its step.
//
// docs/parity.md is generated from rows and markers:
//
//	go test ./test/parity -update
//
// A test fails while that page is stale, a row has no state, or a marker is wrong. Markers claim how a test runs, and the
// program compares the claim with the tests' own report:
//
//	go test -json ./... | go run ./test/parity report FILE     keeps the report in FILE, prints it as go test does
//	go run ./test/parity check FILE                            fails for a test that skipped or did not run; counts rows
//
// The check fails, too, for every test that passed although all of its sub-tests skipped.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "parity:", err)
		os.Exit(1)
	}
}

// run executes one command in the repository's root.
func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) == 2 {
		switch args[0] {
		case "report":
			return keepReport(args[1], in, out)
		case "check":
			return check(args[1], out)
		}
	}
	return fmt.Errorf("usage: parity report|check FILE")
}

// keepReport copies the report to the file called name and prints it as `go test` would.
func keepReport(name string, in io.Reader, out io.Writer) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	err = printReport(out, io.TeeReader(in, f))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// check compares the claims of the markers with the report in the file called name, and prints the number of rows in each state.
func check(name string, out io.Writer) error {
	t, err := readTable(os.DirFS("."))
	if err != nil {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was read only
	r, err := readReport(f)
	if err != nil {
		return err
	}
	faults := slices.Concat(t.faults(), t.claims(r), r.hollow())
	for _, text := range faults {
		_, _ = fmt.Fprintln(out, text) // the exit status has the result, too
	}
	_, _ = fmt.Fprint(out, t.counts().text())
	if len(faults) > 0 {
		return fmt.Errorf("%d faults", len(faults))
	}
	return nil
}
