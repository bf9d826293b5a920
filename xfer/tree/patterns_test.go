package tree

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		patterns, path string
		dir, want      bool
	}{
		{"*.o", "a.o", false, true}, {"*.o", "d/a.o", false, true}, {"*.o", "a.c", false, false},
		{"/a.o", "a.o", false, true}, {"/a.o", "d/a.o", false, false}, {"d/a", "d/a", false, true}, {"d/a", "x/d/a", false, false},
		{"build/", "build", true, true}, {"build/", "build", false, false}, {"build/", "x/build", true, true},
		{"**/foo", "foo", false, true}, {"**/foo", "a/b/foo", false, true}, {"a/**/b", "a/b", false, true}, {"a/**/b", "a/x/y/b", false, true},
		{"abc/**", "abc", true, false}, {"abc/**", "abc/x", false, true}, {"abc/**", "abc/x/y", false, true},
		{"*.o,!keep.o", "keep.o", false, false}, {"*.o,!keep.o", "a.o", false, true}, {"!keep.o,*.o", "keep.o", false, true},
		{"#x", "#x", false, false}, {`\#x`, "#x", false, true}, {`\!x`, "!x", false, true}, {"x ", "x", false, true}, {`x\ `, "x ", false, true},
		{"[a-c]x", "bx", false, true}, {"[!a-c]x", "bx", false, false}, {"[^a-c]x", "zx", false, true}, {"[]]", "]", false, true}, {"[c-a]", "c", false, true}, {"[c-a]", "b", false, false}, {"[", "[", false, false},
		{"[[:digit:]]", "7", false, true}, {"[[:nothing:]]", "7", false, false}, {`[\]]`, "]", false, true}, {"a?c", "abc", false, true}, {"a?c", "a/c", false, false},
		{`a\`, `a\`, false, false}, {"a*b*c", "aXbYbc", false, true}, {"*", "x", true, true}, {"/", "x", false, false}, {"", "x", false, false},
		{"**", "a/b", false, true}, {"a**b", "axxb", false, true}, {"x/", "x/y", false, false},
	} {
		p := must(ParsePatterns(strings.Split(tt.patterns, ",")...))(t)
		if got := p.Excludes(tt.path, tt.dir); got != tt.want {
			t.Errorf("%q excludes %q: %v, want %v", tt.patterns, tt.path, got, tt.want)
		}
	}
	if _, err := ParsePatterns("a\nb"); err == nil {
		t.Error("a pattern of two lines was taken")
	}
	if (*Patterns)(nil).Excludes("a", false) {
		t.Error("no patterns exclude something")
	}
}

// A pattern of many stars takes no more than the product of its length and that of the path.
func TestPatternsOfManyStars(t *testing.T) {
	p := must(ParsePatterns(strings.Repeat("**/", 1000)+"x", strings.Repeat("*a", 1000)+"b"))(t)
	if p.Excludes(strings.Repeat("a/", 1000)+strings.Repeat("a", 4000), false) {
		t.Error("excluded")
	}
}

// A directory that is excluded is not looked into, and one that is included again has its entries.
func TestScanWithPatterns(t *testing.T) {
	fsys := fstest.MapFS{"a.o": {}, "keep.o": {}, "d/a.o": {}, "d/a.c": {}, "build/x": {}, "build/pipe": {Mode: fs.ModeNamedPipe}}
	tree := must(Scan(testContext(t), fsys, "photos", ScanOptions{Patterns: must(ParsePatterns("*.o", "!keep.o", "build/"))(t)}))(t)
	var got []string
	for p := range tree.Manifest().All() {
		got = append(got, p)
	}
	if want := []string{".", "d", "d/a.c", "keep.o"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Git leaves the same entries out.
func TestPatternsAsGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git on this machine")
	}
	repo := t.TempDir()
	run := func(stdin []byte, args ...string) []byte {
		cmd := exec.CommandContext(testContext(t), git, args...)
		cmd.Dir, cmd.Stdin = repo, bytes.NewReader(stdin)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "GIT_DIR="+filepath.Join(repo, ".git"), "GIT_WORK_TREE="+repo)
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != 0 && code != 1 {
			t.Fatal(err)
		}
		return out
	}
	run(nil, "init", "-q")
	names := []string{"a", "b", "ab", "a.o", "a]", "-", "a b", "B"}
	var paths []string
	for _, one := range names {
		paths = append(paths, one)
		for _, two := range names[:5] {
			paths = append(paths, one+"/"+two)
			for _, three := range names[:2] {
				if two != "ab" {
					paths = append(paths, one+"/"+two+"/"+three)
				}
			}
		}
	}
	isDir := map[string]bool{}
	for _, p := range paths {
		for _, dir := range above(p) {
			isDir[dir] = true
		}
	}
	for _, p := range paths {
		at := filepath.Join(repo, filepath.FromSlash(p))
		if isDir[p] {
			check(t, os.MkdirAll(at, 0o700))
			continue
		}
		check(t, os.MkdirAll(filepath.Dir(at), 0o700))
		check(t, os.WriteFile(at, nil, 0o600))
	}
	r := rand.New(rand.NewPCG(5, 5))
	parts := []string{"a", "b", "*", "?", "**", "[ab]", "[!a]", "[^b]", "a*", "*.o", "[a-", "[]a]", `\a`, "ab", "[[:upper:]]", "a]", "***", "-", "a[^[:alpha:]]", `[\]a]`}
	for range 60 {
		var lines []string
		for range 1 + r.IntN(4) {
			var line strings.Builder
			line.WriteString([]string{"", "", "", "!", "/"}[r.IntN(5)])
			for i := range 1 + r.IntN(3) {
				if i > 0 {
					line.WriteString("/")
				}
				line.WriteString(parts[r.IntN(len(parts))])
			}
			line.WriteString([]string{"", "", "/", " ", `\ `}[r.IntN(5)])
			lines = append(lines, line.String())
		}
		check(t, os.WriteFile(filepath.Join(repo, ".git/info/exclude"), []byte(strings.Join(lines, "\n")+"\n"), 0o600))
		out := run([]byte(strings.Join(paths, "\x00")+"\x00"), "check-ignore", "--no-index", "-z", "--stdin")
		want := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		p := must(ParsePatterns(lines...))(t)
		for _, at := range paths {
			excluded := slices.ContainsFunc(above(at), func(dir string) bool { return p.Excludes(dir, true) }) || p.Excludes(at, isDir[at])
			if ignored := slices.Contains(want, at); excluded != ignored {
				t.Errorf("%s: %q is left out: %v, by git: %v", fmt.Sprintf("%q", lines), at, excluded, ignored)
			}
		}
	}
}

// A tree is stored as rsync stores it, in a new directory and again after some of its files have changed.
func TestTreesAsRsync(t *testing.T) {
	rsync, err := exec.LookPath("rsync")
	if err != nil {
		t.Skip("there is no rsync on this machine")
	}
	opt := all
	opt.Overwrite, opt.AllowOutsideLinks = true, true
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 11))
		from, theirs := filepath.Join(t.TempDir(), "photos"), filepath.Join(t.TempDir(), "photos")
		randomTree(t, r, from)
		d, to := openDir(t, opt)
		for range 2 {
			out, err := exec.CommandContext(testContext(t), rsync, "-aHS", "--ignore-times", from+"/", theirs).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			check(t, store(d.Open, scanDir(t, from, ScanOptions{Preserve: true}).Source(), 10000))
			wantSame(t, theirs, filepath.Join(to, "photos"), true)
			changeFiles(t, r, from)
		}
	}
}

// changeFiles writes to some files of a tree.
func changeFiles(t *testing.T, r *rand.Rand, path string) {
	t.Helper()
	check(t, filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || r.IntN(2) == 0 {
			return err
		}
		if err := os.Chmod(p, 0o600); err != nil {
			return err
		}
		return os.WriteFile(p, []byte(strings.Repeat("changed", r.IntN(1000))), 0o600)
	}))
}
