package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// proseCeiling is how many riddle words may stand among 10,000 words of prose. Five well-written Go projects have between 1 and 14.
const proseCeiling = 14

// riddles finds words that stand in place of a name: a sentence with one of them often leaves its subject to be guessed.
var riddles = regexp.MustCompile(`(?i)\b(what|whatever|who|whoever|whom|whose|nobody|somebody|anybody|everybody|told|tell|tells|telling)\b`)

// proseQuote marks a comment that quotes an RFC or a C name, whose words are not counted.
const proseQuote = "prose:quote"

var proseWord = regexp.MustCompile(`[A-Za-z][A-Za-z'-]*`)

// proseCount is a number of words, and how many of them are riddle words.
type proseCount struct{ words, riddles int }

func (c *proseCount) add(text string) {
	c.words += len(proseWord.FindAllString(text, -1))
	c.riddles += len(riddles.FindAllString(text, -1))
}

// rate is the number of riddle words among 10,000 words.
func (c proseCount) rate() float64 {
	if c.words == 0 {
		return 0
	}
	return 10_000 * float64(c.riddles) / float64(c.words)
}

// checkProse compares the riddle words of all prose with proseCeiling: comments and string literals with a space of Go files that are no
// tests, and Markdown outside code blocks. Its finding lists the folders with most of them.
func checkProse(t *tree) []finding {
	byDir := make(map[string]*proseCount)
	var all proseCount
	for _, f := range t.files {
		c := countProse(f)
		all.words += c.words
		all.riddles += c.riddles
		d := byDir[f.dir()]
		if d == nil {
			d = new(proseCount)
			byDir[f.dir()] = d
		}
		d.words += c.words
		d.riddles += c.riddles
	}
	if all.rate() <= proseCeiling {
		return nil
	}
	dirs := make([]string, 0, len(byDir))
	for dir, c := range byDir {
		if c.riddles > 0 {
			dirs = append(dirs, dir)
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return byDir[b].riddles - byDir[a].riddles })
	var list []string
	for _, dir := range dirs {
		list = append(list, fmt.Sprintf("%s %d", dir, byDir[dir].riddles))
	}
	return []finding{{path: ".", text: fmt.Sprintf("%d of %d words are riddles (%s), %.1f of 10,000; at most %d: name the subject instead (%s)",
		all.riddles, all.words, "what, who, nobody, tell ...", all.rate(), proseCeiling, strings.Join(list, ", "))}}
}

// countProse counts the prose of one file.
func countProse(f *file) (c proseCount) {
	switch {
	case f.syntax != nil && !f.isTest():
		for _, group := range f.syntax.Comments {
			if text := group.Text(); !quotes(group) {
				c.add(text)
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(s, " ") {
				c.add(s)
			}
			return true
		})
	case path.Ext(f.path) == ".md":
		fenced := false
		f.lines(func(_ int, line string) bool {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			} else if !fenced && !strings.HasPrefix(line, "    ") {
				c.add(line)
			}
			return true
		})
	}
	return c
}

// quotes reports whether a comment carries the mark of a quotation. ast.CommentGroup.Text leaves such marks out.
func quotes(group *ast.CommentGroup) bool {
	return slices.ContainsFunc(group.List, func(c *ast.Comment) bool { return strings.Contains(c.Text, proseQuote) })
}
