package lint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

const readmeFile = "README.md"

// shellPages are the pages of which CI runs the shell blocks.
var shellPages = []string{readmeFile, "docs/tour.md", "docs/getting-started.md", "docs/filetransfer.md", "docs/rpc.md", "docs/native.md", "docs/tutorial.md", "docs/doctor.md", "docs/observe.md", "docs/metrics.md", "docs/ten-minutes.md", "docs/wire.md", "docs/service.md", "docs/rpc-verbs.md"}

// ciRun is the script that CI runs.
const ciRun = ".ci/run"

// readmeCommands must stand in a shell block of the README, each on a line of its own, because a newcomer types them first.
var readmeCommands = []string{
	"go run ./cmd/cinnabar demo",
	"go test ./...",
}

// fenceInfo are the info strings that a fenced block of a shell page may have. `sh` blocks are run by .ci/readme, where
// "server=PORT" marks one that keeps listening on PORT while the next block runs; `go`, `go.mod` and `go.work` blocks
// are compiled by .ci/module; `text` is output.
var fenceInfo = regexp.MustCompile(`^(sh|sh server=[0-9]+|go|go\.mod|go\.work|text)$`)

// packageArg finds the packages that a go command names by path.
var packageArg = regexp.MustCompile(`(?:^|\s)\./([A-Za-z0-9_/-]+)`)

// block is one fenced block of a Markdown file.
type block struct {
	info  string
	line  int // of the opening fence
	lines []string
}

// checkReadme wants the newcomer's commands verbatim in the README.
func checkReadme(t *tree) []finding {
	f := t.file(readmeFile)
	if f == nil {
		return []finding{{path: readmeFile, text: "missing"}}
	}
	var found []finding
	for _, want := range readmeCommands {
		if !hasCommand(fencedBlocks(f), want) {
			found = append(found, finding{path: readmeFile, text: fmt.Sprintf("no sh block has the line %q", want)})
		}
	}
	return found
}

// checkShellPages reports commands of the shell pages outside the blocks that CI runs, shell pages that .ci/run does not name, and shell blocks on other pages in
// docs. It leaves out docs/course, because a test in examples/course runs the shell blocks there.
func checkShellPages(t *tree) []finding {
	var found []finding
	for _, name := range shellPages {
		f := t.file(name)
		if f == nil {
			found = append(found, finding{path: name, text: "missing"})
			continue
		}
		for _, b := range fencedBlocks(f) {
			found = append(found, checkBlock(t, f, b)...)
		}
		if run := t.file(ciRun); run == nil || !run.hasLine(".ci/readme "+name) {
			found = append(found, finding{path: ciRun, text: "no line .ci/readme " + name})
		}
	}
	for _, f := range t.files {
		if path.Dir(f.path) != path.Dir(manualIndex) || !strings.HasSuffix(f.path, ".md") || slices.Contains(shellPages, f.path) {
			continue // the pages of the course are in a folder below
		}
		for _, b := range fencedBlocks(f) {
			if b.isShell() {
				found = append(found, finding{f.path, b.line, "a shell block on a page that CI does not run; add the page to shellPages and to .ci/run"})
			}
		}
	}
	return found
}

// hasLine reports whether a file has the line, with any indentation.
func (f *file) hasLine(want string) bool {
	for _, l := range f.lines {
		if strings.TrimSpace(l) == want {
			return true
		}
	}
	return false
}

func hasCommand(blocks []block, want string) bool {
	for _, b := range blocks {
		for _, l := range b.lines {
			if b.isShell() && l == want {
				return true
			}
		}
	}
	return false
}

// checkBlock checks one block's info string, that packages named in it exist, and that no command hides from CI.
func checkBlock(t *tree, f *file, b block) []finding {
	var found []finding
	if !fenceInfo.MatchString(b.info) {
		found = append(found, finding{f.path, b.line, fmt.Sprintf("fence info %q; one of sh, sh server=PORT, go, go.mod, go.work, text", b.info)})
	}
	for i, l := range b.lines {
		line := b.line + 1 + i
		if b.info == "text" && (strings.HasPrefix(l, "$ ") || strings.HasPrefix(l, "go ")) {
			found = append(found, finding{f.path, line, "command in a text block, where CI does not run it"})
		}
		if !b.isShell() {
			continue
		}
		for _, m := range packageArg.FindAllStringSubmatch(l, -1) {
			if !t.hasDir(m[1]) {
				found = append(found, finding{f.path, line, "no package at ./" + m[1]})
			}
		}
	}
	return found
}

func (b block) isShell() bool { return b.info == "sh" || strings.HasPrefix(b.info, "sh ") }

// fencedBlocks returns the blocks between lines of three backquotes.
func fencedBlocks(f *file) []block {
	var blocks []block
	open := false
	for n, l := range f.lines {
		info, fence := strings.CutPrefix(l, "```")
		switch {
		case fence && !open:
			blocks = append(blocks, block{info: info, line: n})
			open = true
		case fence:
			open = false
		case open:
			b := &blocks[len(blocks)-1]
			b.lines = append(b.lines, l)
		}
	}
	return blocks
}
