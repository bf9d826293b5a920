package cli

import (
	"strings"
	"testing"
)

// A version that Go makes of a commit has the commit already.
func TestVersionHasCommitOnce(t *testing.T) {
	const commit = "16797f8aabbccddeeff00112233445566778899a"
	for version, want := range map[string]int{"v0.0.0-20261122190000-16797f8aabbc": 1, "(devel)": 1, "v1.2.3": 1} {
		v := buildVersion{Version: version, Commit: commit, Go: "go1", Platform: "x/y"}
		if got := strings.Count(v.String(), commit[:pseudoCommit]); got != want {
			t.Errorf("%s: the commit is there %d times", v, got)
		}
	}
	if v := (buildVersion{Version: "(devel)", Go: "go1", Platform: "x/y", Mercury: 5}).String(); v != "(devel) go1 x/y, Mercury protocol 5" {
		t.Errorf("without a commit: %q", v)
	}
}
