// Package clitest runs the command lines of tests: command lines that run in the process of the test, or in a process that is the
// test's executable again.
package clitest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"cinnabar/cmd/cinnabar/internal/cli"
)

// runAsMain makes the test binary behave as the command, so that tests can
// start processes of it.
const runAsMain = "CINNABAR_TEST_RUN_MAIN"

// testTree builds the commands that the tests of this package run. Main sets it.
var testTree cli.Tree

// Main runs the tests of a package, which are about the commands of tree. A goroutine that is left when they end is a failure.
func Main(m *testing.M, tree cli.Tree) {
	testTree = tree
	if os.Getenv(runAsMain) != "" {
		os.Exit(cli.Main(tree)) //nolint:forbidigo // the process is the command, not a test
	}
	goleak.VerifyTestMain(m)
}

// WantExit runs a command line, with arguments that are separated by spaces, and checks the exit code and that standard error contains text.
func WantExit(t *testing.T, args string, code int, text string) *Output {
	t.Helper()
	var o Output
	if got := Run(t.Context(), strings.Fields(args), o.Streams()); got != code {
		t.Errorf("exit code %d, want %d; stderr: %s", got, code, &o.Err)
	}
	if !strings.Contains(o.Err.String(), text) {
		t.Errorf("stderr %q does not mention %q", &o.Err, text)
	}
	return &o
}

// Exit is a command line with the exit code and a text on standard error that a test expects.
type Exit struct {
	Args string // separated by spaces
	Code int
	Text string
}

// WantExits runs the command lines as WantExit does, each in a test of its own. It calls check, unless that is nil, with each output.
func WantExits(t *testing.T, list []Exit, check func(t *testing.T, e Exit, o *Output)) {
	t.Helper()
	for _, e := range list {
		t.Run(e.Args, func(t *testing.T) {
			o := WantExit(t, e.Args, e.Code, e.Text)
			if check != nil {
				check(t, e, o)
			}
		})
	}
}

// Run carries out one command line in this process and returns the exit code.
func Run(ctx context.Context, args []string, s cli.Streams) int {
	return cli.Run(ctx, testTree, args, s)
}

// Output collects the output of a command.
type Output struct{ Out, Err bytes.Buffer }

// Streams returns streams that collect the output, and have an empty input.
func (o *Output) Streams() cli.Streams {
	return cli.Streams{In: strings.NewReader(""), Out: &o.Out, Err: &o.Err}
}

// Both runs two sides of a conversation and returns their errors.
func Both(one, two func() error) (errOne, errTwo error) {
	done := make(chan error)
	go func() { done <- two() }()
	errOne = one()
	return errOne, <-done
}

// WantError fails unless err mentions every one of texts.
func WantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", texts)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not mention %q", err, text)
		}
	}
}

// WantRun runs a command line that ends with code and says text on standard output, or for a failure on standard error.
func WantRun(t *testing.T, code int, args []string, text ...string) *Output {
	t.Helper()
	var o Output
	if got := Run(t.Context(), args, o.Streams()); got != code {
		t.Errorf("%q: exit code %d, want %d; stderr: %s", args, got, code, &o.Err)
	}
	where := &o.Out
	if code != 0 {
		where = &o.Err
	}
	for _, want := range text {
		if !strings.Contains(where.String(), want) {
			t.Errorf("%q says %q, want %q in it", args, where, want)
		}
	}
	return &o
}

// Numbers returns the numbers that the groups of a match have; the match itself is texts[0].
func Numbers(t *testing.T, texts []string) []float64 {
	t.Helper()
	var list []float64
	for _, text := range texts[1:] {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}

// Golden compares got with a file of testdata.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, string(want)); d != "" {
		t.Errorf("%s (-got +want):\n%s", name, d)
	}
}

type WriterFunc func([]byte) (int, error)

func (f WriterFunc) Write(b []byte) (int, error) { return f(b) }

// WriteTemp writes a file of that name into a new directory.
func WriteTemp(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
