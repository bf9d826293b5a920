package lint

import (
	"fmt"
	"regexp"
	"strings"
)

// openMarkers finds the usual marks of work left open. The words are split so that this file does not hold them.
var openMarkers = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

// checkMarkers reports marks of unfinished work, because such work belongs in the tracker.
func checkMarkers(t *tree) []finding {
	return grep(t, openMarkers, func(m []string) string { return m[1] + " in the tree; finish it or file it" })
}

// absolutePath finds a path of two elements or more that begins at the root, where a word may begin.
var absolutePath = regexp.MustCompile("(?:^|[\\s\"'`(=:,])/([a-z][a-z0-9_.-]*)/[A-Za-z0-9_.$*{-]")

// systemRoots are the first elements of paths that mean the same on every machine.
var systemRoots = map[string]bool{
	"bin": true, "dev": true, "etc": true, "lib": true, "proc": true, "run": true, "sys": true, "tmp": true, "usr": true, "var": true,
}

// checkPaths refuses paths that exist on one machine only.
func checkPaths(t *tree) []finding {
	return grep(t, absolutePath, func(m []string) string {
		if systemRoots[m[1]] {
			return ""
		}
		return fmt.Sprintf("path of one machine: /%s/...", m[1])
	})
}

// packageHosts finds hosts that serve packages. Where modules come from is the user's setting, not this repository's.
var packageHosts = regexp.MustCompile(`\b((?:go)?proxy|sum|registry|artifactory|nexus|mirrors?)(\.[a-z0-9-]+)+\.[a-z]{2,}\b`)

func checkHosts(t *tree) []finding {
	return grep(t, packageHosts, func(m []string) string { return "host of a package registry: " + strings.TrimSpace(m[0]) })
}

// featureRow finds the ids of the feature inventory.
var featureRow = regexp.MustCompile(`\b[VSY][0-9]{2}\b`)

// parityFile explains the ids of features, which test/parity and the markers of tests use.
const parityFile = "docs/parity.md"

// markerOfTest is a line by which a test names the features that it proves.
var markerOfTest = regexp.MustCompile(`^(//|#) parity(\([a-z]+\))?: `)

// checkRowIDs keeps feature ids out of all other text, because they mean nothing to its readers.
func checkRowIDs(t *tree) []finding {
	return grep(t, featureRow, func(m []string) string {
		return "feature id " + m[0] + " outside " + parityFile + "; name the feature instead"
	})
}

// grep reports each line of the tree's text that matches re and that explain does not wave through with "".
// Checksums of modules are no text.
func grep(t *tree, re *regexp.Regexp, explain func(match []string) string) []finding {
	var found []finding
	for _, f := range t.files {
		if strings.HasSuffix(f.path, "go.sum") || re == featureRow && (f.path == parityFile || f.dir() == "test/parity") {
			continue
		}
		for n, line := range f.lines {
			if re == featureRow && markerOfTest.MatchString(line) {
				continue
			}
			for _, m := range re.FindAllStringSubmatch(line, -1) {
				if text := explain(m); text != "" {
					found = append(found, finding{f.path, n, text})
				}
			}
		}
	}
	return found
}
