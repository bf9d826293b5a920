package tutorial_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/testproc"
)

const page = "../../docs/tutorial.md"

// programs is the folder with the fourteen programs, built once.
var programs string

func TestMain(m *testing.M) {
	dir, err := testproc.Build("./...")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// heading begins the section of a tutorial; its number is the name of the program's folder.
var heading = regexp.MustCompile(`(?m)^## ([0-9]+)\. .*\n`)

// section is the part of the page about one tutorial.
type section struct {
	number string // two digits
	text   string
}

// sections returns the page's sections in their order. The last one ends at the next heading without number.
func sections(t *testing.T) []section {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var all []section
	for _, m := range heading.FindAllSubmatchIndex(b, -1) {
		text, _, _ := strings.Cut(string(b[m[1]:]), "\n## ")
		all = append(all, section{fmt.Sprintf("%02s", b[m[2]:m[3]]), text})
	}
	return all
}

// blocks returns the fenced blocks of a section with an info string.
func (s section) blocks(info string) []string {
	var found []string
	for _, b := range strings.Split(s.text, "```"+info+"\n")[1:] {
		text, _, _ := strings.Cut(b, "```")
		found = append(found, text)
	}
	return found
}

// TestPrograms runs the program of each section and compares the program and its output with the section's blocks: the command, lines
// of the program, and the output.
// parity: G85 G86 G96
func TestPrograms(t *testing.T) {
	for _, s := range sections(t) {
		t.Run(s.number, func(t *testing.T) {
			t.Parallel()
			p := testproc.Run(t, testproc.Command{Path: filepath.Join(programs, s.number)})
			if code := p.ExitCode(); code != 0 || p.Stderr.String() != "" {
				t.Errorf("exit code %d, %q on standard error", code, p.Stderr)
			}
			if diff := cmp.Diff(s.blocks("text"), []string{p.Stdout.String()}); diff != "" {
				t.Errorf("the page and the program's output differ: %s", diff)
			}
			if diff := cmp.Diff(s.blocks("sh"), []string{"go run ./examples/tutorial/" + s.number + "\n"}); diff != "" {
				t.Errorf("the page's command differs: %s", diff)
			}
			source, err := os.ReadFile(filepath.Join(s.number, "main.go"))
			if err != nil {
				t.Fatal(err)
			}
			blocks := s.blocks("go")
			if len(blocks) == 0 {
				t.Error("the page has no lines of the program")
			}
			for _, b := range blocks {
				if !strings.Contains(string(source), b) {
					t.Errorf("the program does not have this block of the page:\n%s", b)
				}
			}
		})
	}
}

// TestEveryProgramIsOnThePage compares the folders with the page's headings.
func TestEveryProgramIsOnThePage(t *testing.T) {
	want, err := filepath.Glob("[0-9][0-9]")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range sections(t) {
		got = append(got, s.number)
	}
	if diff := cmp.Diff(got, want); diff != "" || len(want) != 14 {
		t.Errorf("%d programs; the page's headings differ: %s", len(want), diff)
	}
}
