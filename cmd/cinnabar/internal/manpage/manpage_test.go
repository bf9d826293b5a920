package manpage

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

func TestMain(m *testing.M) {
	clitest.Main(m, func(s cli.Streams) *cobra.Command { return cli.NewRoot(s, New(s), sample(), sampleGroup()) })
}

// sample is a command with all parts of a page.
func sample() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sample ADDRESS [FILE]...", Short: `Try .dots, 'quotes' and µ`, Args: cobra.ArbitraryArgs,
		Long:    "sample has\nparagraphs.\n\n.TH is not a macro here, nor is\n'this.\n\n  indented  text\n\tand \\a tab\nand a word.",
		Example: "  cinnabar sample 'a b'\n  cinnabar sample --size 4",
		RunE:    func(*cobra.Command, []string) error { return nil },
	}
	f := cmd.Flags()
	f.IntP("size", "s", 5, "the `number` of bytes")
	f.String("text", "a-b", "a text")
	f.Bool("quiet", false, "print nothing")
	f.Int("secret", 1, "hidden")
	if err := f.MarkHidden("secret"); err != nil {
		panic(err)
	}
	return cmd
}

func sampleGroup() *cobra.Command {
	group := &cobra.Command{Use: "group", Short: "Group"}
	for _, n := range []string{"one", "two"} {
		group.AddCommand(&cobra.Command{Use: n, Short: "Do " + n, Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
	}
	group.AddCommand(&cobra.Command{Use: "ghost", Hidden: true, Short: "Hidden", Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
	return group
}

// TestPages compares pages with golden files.
func TestPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1234567890")
	for _, words := range []string{"sample", "group", "group one"} {
		o := clitest.WantRun(t, cli.ExitOK, append([]string{"man"}, strings.Fields(words)...))
		_, rest, _ := strings.Cut(o.Out.String(), "\n")
		head, _, _ := strings.Cut(o.Out.String(), "\n")
		if want := `.TH "CINNABAR\-` + strings.ToUpper(strings.ReplaceAll(words, " ", `\-`)) + `" 1 2009-02-13 "cinnabar `; !strings.HasPrefix(head, want) {
			t.Errorf("head %q, want %q", head, want)
		}
		clitest.Golden(t, strings.ReplaceAll(words, " ", "-")+".golden", rest)
	}
}

// TestWriteAll writes the pages of all commands but the hidden ones, twice the same.
func TestWriteAll(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	one, two := filepath.Join(t.TempDir(), "new", "man1"), t.TempDir()
	clitest.WantRun(t, cli.ExitOK, []string{"man", "--dir", one})
	clitest.WantRun(t, cli.ExitOK, []string{"man", "--dir", two})
	entries, err := os.ReadDir(one)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.Contains(e.Name(), "completion") {
			continue
		}
		names = append(names, e.Name())
		a, err := os.ReadFile(filepath.Join(one, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(two, e.Name())); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v", e.Name(), err)
		}
	}
	if got := strings.Join(names, " "); got != "cinnabar-group-one.1 cinnabar-group-two.1 cinnabar-group.1 cinnabar-help.1 cinnabar-sample.1 cinnabar-version.1 cinnabar.1" {
		t.Errorf("pages %s", got)
	}
}

func TestManRefuses(t *testing.T) {
	clitest.WantExits(t, []clitest.Exit{
		{Args: "man nosuch", Code: cli.ExitUsage, Text: `unknown command "nosuch"`},
		{Args: "man group nosuch", Code: cli.ExitUsage, Text: `unknown command "group nosuch"`},
		{Args: "man --dir x group", Code: cli.ExitUsage, Text: "--dir writes the pages of all commands"},
		{Args: "man --dir manpage.go", Code: cli.ExitFailure, Text: "manpage.go"},
	}, nil)
	for _, text := range []string{"x", "-1", "253402300800"} {
		t.Setenv("SOURCE_DATE_EPOCH", text)
		clitest.WantExit(t, "man group", cli.ExitFailure, "SOURCE_DATE_EPOCH")
	}
}

// FuzzPage prints texts as commands have them. Each page stays ASCII, has no request of roff but those that the package writes, and no control characters.
func FuzzPage(f *testing.F) {
	f.Add("Do it", "text\n  code\n", "  example")
	f.Add(".so /etc/passwd", "'ig\n\n.\n \\X", "\\fB\r\n.de x")
	f.Fuzz(func(t *testing.T, short, long, example string) {
		cmd := &cobra.Command{Use: "x", Short: short, Long: long, Example: example}
		for line := range strings.Lines(string(Page(cmd, time.Unix(0, 0)))) {
			line = strings.TrimSuffix(line, "\n")
			if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
				t.Fatalf("%q has a character that is not printed", line)
			}
			if strings.HasPrefix(line, "'") {
				t.Fatalf("%q is a request of roff", line)
			}
			if macro, _, _ := strings.Cut(line, " "); strings.HasPrefix(line, ".") {
				switch macro {
				case ".TH", ".SH", ".B", ".BR", ".PP", ".TP", ".nf", ".fi":
				default:
					t.Fatalf("%q is a request of roff", line)
				}
			}
		}
	})
}
