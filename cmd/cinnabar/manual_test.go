package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/clitest"
)

// codeSpan matches code within a line of a page.
var codeSpan = regexp.MustCompile("`([^`]+)`")

// commandLines returns the command lines of a page without the name of the program: those of its code spans and of its indented blocks. A span without that
// name counts if it begins with the name of a command and has an option.
func commandLines(root *cobra.Command, page string) (list []string) {
	fenced := false
	add := func(text string, named bool) {
		words := strings.Fields(text)
		if len(words) > 0 && (words[0] == "cinnabar" || words[0] == "./cinnabar") {
			words, named = words[1:], true
		}
		if len(words) == 0 {
			return
		}
		cmd, _, err := root.Find(words[:1])
		if named || err == nil && cmd != root && strings.Contains(text, " -") {
			list = append(list, strings.Join(words, " "))
		}
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		if code, ok := strings.CutPrefix(line, "    "); ok {
			if words := strings.Fields(code); len(words) > 0 && (words[0] == "cinnabar" || words[0] == "./cinnabar") {
				add(code, true)
			}
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			add(m[1], false)
		}
	}
	return list
}

// wrongWord returns the first word of a command line that is no command, or no option of the command.
func wrongWord(root *cobra.Command, line string) string {
	words := strings.Fields(line)
	cmd := root
	for len(words) > 0 && cmd.HasSubCommands() && !strings.HasPrefix(words[0], "-") {
		if strings.HasSuffix(words[0], ":") || words[0] == strings.ToUpper(words[0]) {
			return "" // the beginning of an error, or a word that stands for any command
		}
		next, _, err := cmd.Find(words[:1])
		if err != nil || next == cmd {
			return words[0]
		}
		cmd, words = next, words[1:]
	}
	for _, word := range words {
		switch {
		case strings.ContainsAny(word, "|&<>"), word == "#":
			return "" // the rest is for the shell
		case word == "--", !strings.HasPrefix(word, "-"), word == "-":
		case strings.HasPrefix(word, "--"):
			name, _, _ := strings.Cut(strings.TrimRight(word[2:], ".,;:…)]"), "=")
			if cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
				return word
			}
		case word[1] >= '0' && word[1] <= '9': // a number
		default:
			if cmd.Flags().ShorthandLookup(word[1:2]) == nil && cmd.InheritedFlags().ShorthandLookup(word[1:2]) == nil {
				return word
			}
		}
	}
	return ""
}

// TestCommandLinesOfManual fails if a command line on a page of the manual, or an example in the help, has an unknown command or option. It reads code within
// sentences and indented blocks, because CI runs only fenced blocks.
func TestCommandLinesOfManual(t *testing.T) {
	root := newTree((&clitest.Output{}).Streams())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	everyCommand(t, func(t *testing.T, words string, cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "cinnabar "); ok {
				if word := wrongWord(root, rest); word != "" {
					t.Errorf("an example has the unknown command or option %q: %s", word, line)
				}
			}
		}
	})
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/course/*.md", "contrib/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	lines := 0
	for _, page := range pages {
		if base := filepath.Base(page); base == "CHANGELOG.md" || strings.HasPrefix(base, "wire-") {
			continue // it has the command lines of earlier versions, or texts of a protocol
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandLines(root, string(text)) {
			lines++
			if word := wrongWord(root, line); word != "" {
				t.Errorf("%s has the unknown command or option %q: cinnabar %s", page, word, line)
			}
		}
	}
	if lines < 100 {
		t.Errorf("the pages have %d command lines, want at least 100", lines)
	}
	t.Logf("%d command lines", lines)
}
