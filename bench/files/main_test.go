package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/blake3"

	"cinnabar/bench/internal/record"
)

// parsed returns a setting with the options of a command line.
func parsed(t *testing.T, args ...string) *setting {
	t.Helper()
	s := &setting{out: io.Discard, log: io.Discard, lines: io.Discard, sync: func() {}}
	f := flag.NewFlagSet("files", flag.ContinueOnError)
	s.register(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return s
}

// -case and -paths choose cases and paths without a change of their order, because the table compares all paths with the first one.
func TestSelected(t *testing.T) {
	for _, c := range []struct {
		args []string
		want map[string][]string
	}{
		{nil, map[string][]string{
			"tree":   {"cinnabar", "cinnabar-blake3", "tar", "rsync", "copy"},
			"synced": {"cinnabar", "tar", "rsync"},
			"large":  {"cinnabar", "tcp", "copy", "cinnabar-blake3", "tcp-blake3", "copy-blake3", "tar", "rsync"},
		}},
		{[]string{"-case", "tree", "-paths", "tar,cinnabar"}, map[string][]string{"tree": {"cinnabar", "tar"}}},
		{[]string{"-paths", "copy-blake3"}, map[string][]string{"large": {"copy-blake3"}}},
	} {
		list, err := parsed(t, c.args...).selected()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, k := range list {
			for _, p := range k.paths {
				got[k.name] = append(got[k.name], p.name)
			}
		}
		if d := cmp.Diff(got, c.want); d != "" {
			t.Errorf("%v: %s", c.args, d)
		}
	}
}

// Impossible options fail before anything is written.
func TestRunRefuses(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-files", "0"}, {"-size", "-1"}, {"-large", "-1"}, {"-case", "trees"}, {"-paths", "cp"}, {"-case", "large", "-paths", "cinnabar-sha256"}} {
		dir := t.TempDir()
		if err := parsed(t, append(args, "-dir", dir)...).run(t.Context()); err == nil {
			t.Errorf("%v has no error", args)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v leaves %v, %v", args, left, err)
		}
	}
}

// Every second round measures the paths in the opposite order. Each figure stands with its path, in the table and in the record.
func TestMeasure(t *testing.T) {
	s := parsed(t, "-rounds", "3", "-files", "502", "-size", "8")
	s.work = t.TempDir()
	var out, lines bytes.Buffer
	s.out, s.lines = &out, &lines
	var order []string
	copies := func(name string) path {
		return path{name, func(_ context.Context, from, to string) error {
			order = append(order, name)
			return os.CopyFS(filepath.Join(to, sourceName), os.DirFS(from))
		}}
	}
	c := &benchCase{name: "tree", files: s.files, bytes: int64(s.files) * s.size, make: s.makeTree, paths: []path{copies("first"), copies("second"), copies("third")}}
	if err := s.measure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(order, strings.Fields("first second third third second first first second third")); d != "" {
		t.Error(d)
	}
	if left, err := os.ReadDir(s.work); err != nil || len(left) > 0 {
		t.Errorf("the measurement leaves %v, %v", left, err)
	}
	var names []string
	for line := range strings.Lines(lines.String()) {
		var r record.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		names = append(names, r.Path)
		if len(r.Rounds) != 3 || r.Op != "tree" || r.Files != 502 || r.Size != 8 {
			t.Errorf("recorded %+v", r)
		}
		if !strings.Contains(out.String(), "\n"+r.Path+" ") {
			t.Errorf("the table has no path %s:\n%s", r.Path, out.String())
		}
	}
	if d := cmp.Diff(names, []string{"first", "second", "third"}); d != "" {
		t.Error(d)
	}
}

// measure prints no table if a copy fails or is incomplete.
func TestMeasureFails(t *testing.T) {
	broken := errors.New("broken")
	for name, copies := range map[string]func(to string) error{
		"error": func(string) error { return broken },
		"none":  func(string) error { return nil },
		"files": func(to string) error { return os.WriteFile(filepath.Join(to, sourceName), make([]byte, 16), 0o600) },
		"bytes": func(to string) error {
			at := filepath.Join(to, sourceName)
			return errors.Join(os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, "1"), nil, 0o600), os.WriteFile(filepath.Join(at, "2"), make([]byte, 15), 0o600))
		},
	} {
		s := parsed(t, "-files", "2", "-size", "8")
		s.work = t.TempDir()
		var out bytes.Buffer
		s.out = &out
		c := &benchCase{name: "tree", files: 2, bytes: 16, make: s.makeTree, paths: []path{{"path", func(_ context.Context, _, to string) error { return copies(to) }}}}
		err := s.measure(t.Context(), c)
		if err == nil || !strings.HasPrefix(err.Error(), "path: ") || name == "error" && !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		if out.Len() > 0 {
			t.Errorf("%s prints %s", name, out.String())
		}
	}
}

// The table has medians, rates, and the ratio to the first path.
func TestPrint(t *testing.T) {
	var out bytes.Buffer
	s := setting{out: &out}
	err := s.print(&benchCase{name: "tree", files: 4, bytes: 8 << 20}, []outcome{
		{"cinnabar", []time.Duration{4 * time.Second, time.Second, 2 * time.Second}},
		{"tar", []time.Duration{time.Second, 2 * time.Second}},
	})
	want := `
tree: 4 files, 8388608 bytes in all
path                        s      MiB/s  ours/this  rounds, s
cinnabar                 2.00        4.0       1.00  4.00 1.00 2.00
tar                      1.50        5.3       1.33  1.00 2.00
`
	if d := cmp.Diff(out.String(), want); err != nil || d != "" {
		t.Error(err, d)
	}
}

// The sources have the number and the sizes of files that the options name, and no two files are equal.
func TestSources(t *testing.T) {
	s := parsed(t, "-files", "1001", "-size", "16", "-large", "1048577")
	at := filepath.Join(t.TempDir(), "tree")
	if err := s.makeTree(at); err != nil {
		t.Fatal(err)
	}
	seen, dirs := map[string]bool{}, 0
	err := fs.WalkDir(os.DirFS(at), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			dirs++
			return err
		}
		b, err := os.ReadFile(filepath.Join(at, p))
		if len(b) != 16 {
			t.Errorf("%s has %d bytes", p, len(b))
		}
		seen[string(b)] = true
		return err
	})
	if err != nil || len(seen) != 1001 || dirs != 1+3 {
		t.Errorf("%d different files in %d directories, %v", len(seen), dirs, err)
	}
	at = filepath.Join(t.TempDir(), "large")
	if err := s.makeLarge(at); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(at); err != nil || info.Size() != 1<<20+1 {
		t.Errorf("the large file: %v, %v", info, err)
	}
}

// untar, which takes the place of tar x, stores what an archive has, and nothing but directories and files.
func TestUntar(t *testing.T) {
	when := time.Unix(1e9, 0)
	archive := func(list ...tar.Header) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range list {
			if err := w.WriteHeader(&list[i]); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(bytes.Repeat([]byte("x"), int(list[i].Size))); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	dir := t.TempDir()
	b := archive(tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o640, Size: 5, ModTime: when})
	if err := untar(dir, b); err != nil || b.Len() > 0 {
		t.Fatalf("%d bytes left, %v", b.Len(), err)
	}
	info, err := os.Stat(filepath.Join(dir, "d/f"))
	if err != nil || info.Size() != 5 || info.Mode() != 0o640 || !info.ModTime().Equal(when) {
		t.Errorf("stored %v, %v", info, err)
	}
	if err := untar(t.TempDir(), archive(tar.Header{Name: "l", Linkname: "f", Typeflag: tar.TypeSymlink})); err == nil {
		t.Error("a link has no error")
	}
}

// The role copy writes the bytes of a file or of its input, and the right digest, for SHA-256 and BLAKE3.
func TestRoles(t *testing.T) {
	dir := t.TempDir()
	from, sum, data := filepath.Join(dir, "from"), filepath.Join(dir, "sum"), randomBytes(3*copyBlock+1)
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	bySHA256, byBLAKE3 := sha256.Sum256(data), blake3.Sum256(data)
	for digest, want := range map[string][]byte{"sha256": bySHA256[:], "blake3": byBLAKE3[:]} {
		for _, source := range []string{from, "-"} {
			to := filepath.Join(dir, "to")
			if err := runRole("copy", []string{digest, source, to, sum}, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(to); err != nil || !slices.Equal(got, data) {
				t.Errorf("%s of %s: %d bytes of %d, %v", digest, source, len(got), len(data), err)
			}
			if got, err := os.ReadFile(sum); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s of %s is %x, want %x, %v", digest, source, got, want, err)
			}
			if err := os.Remove(to); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, args := range [][]string{{"copy", "md5", from, from + "2", sum}, {"copy", "sha256", from, from + "2"}, {"untar", "x"}, {"tar"}} {
		if err := runRole(args[0], args[1:], nil); err == nil {
			t.Errorf("%v has no error", args)
		}
	}
	failing := iotest.ErrReader(io.ErrClosedPipe)
	if err := runRole("copy", []string{"sha256", "-", from + "2", sum}, failing); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("an input that fails gives %v", err)
	}
}
