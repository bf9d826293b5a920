package course_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/testproc"
)

// pages is the folder with the lessons.
const pages = "../../docs/course"

// programs is the folder with the programs of all lessons and the command cinnabar, built once.
var programs string

func TestMain(m *testing.M) {
	exit := testproc.BuildInto(&programs, "-ldflags=-s -w", "./...", "../../cmd/cinnabar") // without symbols the linker takes less time
	exit(m.Run())
}

// lesson is a page of the course with a program.
type lesson struct {
	name    string // of the program's folder
	text    string
	program string
}

// lessons returns the pages with numbers in their order.
func lessons(t *testing.T) []lesson {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pages, "[0-9][0-9]-*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var list []lesson
	for _, file := range files {
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".md"), "-", "_")
		program := filepath.Join(name, "main.go")
		if _, err := os.Stat(program); err != nil {
			continue // a closing page
		}
		list = append(list, lesson{name, read(t, file), read(t, program)})
	}
	return list
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// block is a fenced block of a page.
type block struct{ info, text string }

// fence matches a fenced block.
var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks returns the fenced blocks of a page in their order.
func blocks(page string) []block {
	var list []block
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		list = append(list, block{m[1], m[2]})
	}
	return list
}

// commands returns the shell blocks of a page, and with each one the block behind it, if that has output.
func commands(list []block) (shell, output []string) {
	for i, b := range list {
		if b.info != "sh" {
			continue
		}
		shell, output = append(shell, b.text), append(output, "")
		if i+1 < len(list) && list[i+1].info == "text" {
			output[len(output)-1] = list[i+1].text
		}
	}
	return shell, output
}

// TestLessons runs the commands of each lesson, and compares the output of the program and the lines of its capture with those of the page.
// The test of the exercise, the third command, is a test of its own.
// parity: P06
func TestLessons(t *testing.T) {
	for _, l := range lessons(t) {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			list := blocks(l.text)
			shell, output := commands(list)
			want := []string{
				"go run ./examples/course/" + l.name + "\n",
				"go run ./examples/course/" + l.name + " -capture - | go run ./cmd/cinnabar wire -\n",
				"go test -v ./examples/course/" + l.name + "/exercise\n",
			}
			if diff := cmp.Diff(shell, want); diff != "" {
				t.Fatalf("the commands of the page differ: %s", diff)
			}
			program := filepath.Join(programs, l.name)
			if diff := cmp.Diff(mask(output[0]), mask(run(t, program))); diff != "" {
				t.Errorf("the page and the output of the program differ: %s", diff)
			}
			capture := filepath.Join(t.TempDir(), "capture")
			if err := os.WriteFile(capture, []byte(run(t, program, "-capture", "-")), 0o600); err != nil {
				t.Fatal(err)
			}
			if !opening.MatchString(output[1]) {
				t.Error("the page does not show the empty write that opens the connection")
			}
			lines := run(t, filepath.Join(programs, "cinnabar"), "wire", capture)
			if diff := cmp.Diff(directions(output[1]), directions(lines)); diff != "" {
				t.Errorf("the page and the lines of the capture differ: %s", diff)
			}
			for _, b := range list {
				if b.info == "go" && !strings.Contains(l.program, b.text) {
					t.Errorf("the program does not have this block of the page:\n%s", b.text)
				}
			}
		})
	}
}

// run returns the standard output of a program that must succeed.
func run(t *testing.T, path string, args ...string) string {
	t.Helper()
	p := testproc.Run(t, testproc.Command{Path: path, Args: args})
	if code := p.ExitCode(); code != 0 || p.Stderr.String() != "" {
		t.Errorf("%s: exit code %d, %q on standard error", filepath.Base(path), code, p.Stderr)
	}
	return p.Stdout.String()
}

// The parts that differ from run to run: keys and addresses, the columns packet and time of a capture's lines, and the length of private
// data that end with a random number, because zeros at the end do not count. A device that hears nothing from its peer for a while repeats
// the empty write that opens a connection, so a slow machine has more of them.
var (
	random  = regexp.MustCompile(`0x[0-9a-f]{2,}|private=[0-9]+`)
	clock   = regexp.MustCompile(`(?m)^ *[0-9]+ +[0-9]+\.[0-9]+ `)
	opening = regexp.MustCompile(`(?m)^.* iwarp size=0 write key=0x0 address=0x0 length=0\n`)
)

// mask replaces keys, addresses and lengths of private data.
func mask(s string) string { return random.ReplaceAllString(s, "...") }

// directions returns the lines of a capture without the parts that differ, those of each direction together: the order of two messages
// that cross each other differs too.
func directions(s string) []string {
	lines := slices.Collect(strings.Lines(clock.ReplaceAllString(mask(opening.ReplaceAllString(s, "")), "")))
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(ends(a), ends(b)) })
	return lines
}

// ends returns the source and the destination of a line.
func ends(line string) string {
	text, _, _ := strings.Cut(line, " iwarp ")
	text, _, _ = strings.Cut(text, " xfer ")
	return text
}

// TestPages compares the folders with the pages, and the pages with the course's index. Each page begins as all pages of the manual do,
// links its program and its exercise, and has a picture.
func TestPages(t *testing.T) {
	folders, err := filepath.Glob("[0-9][0-9]_*")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range lessons(t) {
		names = append(names, l.name)
		folder := "../../examples/course/" + l.name + "/"
		for _, part := range []string{"(" + folder + "main.go)", "(" + folder + "exercise/exercise.go)", "\n![", "\n```go\n"} {
			if !strings.Contains(l.text, part) {
				t.Errorf("the page of %s does not have %q", l.name, part)
			}
		}
		if n := strings.Count(l.program, "\n"); n > 85 { // most have 60 or less; that of the paper's transfer is the longest
			t.Errorf("the program of %s has %d lines, which do not fit on one screen", l.name, n)
		}
	}
	if diff := cmp.Diff(names, folders); diff != "" {
		t.Errorf("the pages and the folders differ: %s", diff)
	}
	index := read(t, filepath.Join(pages, "README.md"))
	files, err := filepath.Glob(filepath.Join(pages, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, text, ok := strings.Cut(read(t, file), "\n\n"); !ok || !strings.HasPrefix(text, "After this ") {
			t.Errorf("%s does not begin with its title, an empty line, and the abilities that its reader gains", file)
		}
		if base := filepath.Base(file); base != "README.md" && !strings.Contains(index, "]("+base+")") {
			t.Errorf("the index has no link to %s", base)
		}
	}
}
