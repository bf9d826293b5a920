package lint

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

const (
	manualDir   = "docs"
	manualIndex = "docs/README.md"
	pageOpening = "After this page you can "
)

// markdownLink finds the target of a link or picture: [text](target).
var markdownLink = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// checkLinks wants the file of each relative link, and the heading of each fragment. Code has no links.
func checkLinks(t *tree) []finding {
	var found []finding
	headings := map[string]map[string]bool{}
	for _, f := range t.files {
		if path.Ext(f.path) != ".md" {
			continue
		}
		for n, l := range prose(f) {
			for _, m := range markdownLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(l, ""), -1) {
				if text := t.brokenLink(f, m[1], headings); text != "" {
					found = append(found, finding{f.path, n, text})
				}
			}
		}
	}
	return found
}

// brokenLink returns the fault of a link in f, or "". It keeps the headings of the pages that it has read.
func (t *tree) brokenLink(f *file, target string, headings map[string]map[string]bool) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	name, fragment, _ := strings.Cut(target, "#")
	to := f
	if name != "" {
		name = path.Join(f.dir(), name)
		if to = t.file(name); to == nil {
			if t.hasDir(name) && fragment == "" {
				return ""
			}
			return fmt.Sprintf("link to %s, which does not exist", target)
		}
	}
	if fragment == "" || path.Ext(to.path) != ".md" {
		return ""
	}
	if headings[to.path] == nil {
		headings[to.path] = anchors(to)
	}
	if !headings[to.path][fragment] {
		return fmt.Sprintf("link to %s: %s has no such heading", target, to.path)
	}
	return ""
}

// notInAnchor are the characters that GitHub leaves out of the anchor of a heading.
var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors returns the fragments by which links reach the headings of a page.
func anchors(f *file) map[string]bool {
	found := map[string]bool{}
	for _, l := range prose(f) {
		if title := strings.TrimLeft(l, "#"); title != l && strings.HasPrefix(title, " ") {
			title = markdownLink.ReplaceAllString(strings.TrimSpace(title), "]")
			anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
			for n, base := 1, anchor; found[anchor]; n++ {
				anchor = fmt.Sprintf("%s-%d", base, n)
			}
			found[anchor] = true
		}
	}
	return found
}

// prose iterates over the lines of a page outside fenced blocks, with their numbers.
func prose(f *file) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		fenced := false
		for n, l := range f.lines {
			if strings.HasPrefix(strings.TrimSpace(l), "```") {
				fenced = !fenced
			} else if !fenced && !yield(n, l) {
				return
			}
		}
	}
}

// checkManual wants each page of the manual to begin with the abilities that its reader gains, and a link to it in the index.
func checkManual(t *tree) []finding {
	index := t.file(manualIndex)
	if index == nil {
		return []finding{{path: manualIndex, text: "missing"}}
	}
	var found []finding
	for _, f := range t.files {
		if !isManual(f) {
			continue
		}
		lines := strings.SplitN(string(f.data), "\n", 4)
		if len(lines) < 3 || !strings.HasPrefix(lines[0], "# ") || lines[1] != "" || !strings.HasPrefix(lines[2], pageOpening) {
			found = append(found, finding{f.path, 3, fmt.Sprintf("the page does not begin with its title, an empty line, and %q", pageOpening)})
		}
		if base := path.Base(f.path); f != index && !strings.Contains(string(index.data), "]("+base+")") {
			found = append(found, finding{path: f.path, text: manualIndex + " has no link to the page"})
		}
	}
	return found
}

// isManual reports whether f is a page of the manual that an author writes.
func isManual(f *file) bool {
	return f.dir() == manualDir && path.Ext(f.path) == ".md" && f.path != parityFile
}
