// Builds with the race detector leave out the rules over the whole tree, because they would take 15 times as long, and start no goroutines.

//go:build !race

package lint

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// repository loads the tree once for all tests that look at it.
var repository = sync.OnceValues(func() (*tree, error) {
	return load(os.DirFS(filepath.Join("..", "..")))
})

// check runs a rule over this repository.
func check(t *testing.T, rule func(*tree) []finding) {
	t.Helper()
	repo, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	if repo.file("go.mod") == nil {
		t.Fatal("no go.mod at the root of the tree: the rules looked at nothing")
	}
	for _, f := range rule(repo) {
		t.Error(f)
	}
}

func TestLayers(t *testing.T) {
	check(t, func(tr *tree) []finding { return checkArrows(tr, layers) })
}

// parity: D40
func TestUnsafeCorners(t *testing.T)  { check(t, checkCorners) }
func TestDocComments(t *testing.T)    { check(t, checkDocComments) }
func TestFormat(t *testing.T)         { check(t, checkFormat) }
func TestFileLength(t *testing.T)     { check(t, checkLength) }
func TestFileCounts(t *testing.T)     { check(t, checkFileCounts) }
func TestRootSize(t *testing.T)       { check(t, checkRoot) }
func TestNoSleeps(t *testing.T)       { check(t, checkSleeps) }
func TestCountedLocks(t *testing.T)   { check(t, checkLocks) }
func TestNoOpenMarkers(t *testing.T)  { check(t, checkMarkers) }
func TestNoMachinePaths(t *testing.T) { check(t, checkPaths) }
func TestNoPackageHosts(t *testing.T) { check(t, checkHosts) }
func TestFeatureIDs(t *testing.T)     { check(t, checkRowIDs) }
func TestReadme(t *testing.T)         { check(t, checkReadme) }
func TestShellPages(t *testing.T)     { check(t, checkShellPages) }
func TestProofs(t *testing.T)         { check(t, checkProofs) }
func TestLinks(t *testing.T)          { check(t, checkLinks) }
func TestManual(t *testing.T)         { check(t, checkManual) }
func TestWalks(t *testing.T)          { check(t, checkWalks) }
func TestNames(t *testing.T)          { check(t, checkNames) }
func TestProse(t *testing.T)          { check(t, checkProse) }

// parity: S04
func TestVerbsPage(t *testing.T) { check(t, checkVerbsPage) }
