package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var sampleTime = time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)

// sampleEntries are in no order.
var sampleEntries = []entry{{name: "share/b", data: []byte("text")}, {name: "cinnabar", data: []byte{0, 1, 2}, executable: true}}

// TestPackTar packs in another order and another zone, and gets equal archives with the time and the rights that it gave.
func TestPackTar(t *testing.T) {
	one := packed(t, packTar)
	z, err := gzip.NewReader(bytes.NewReader(one))
	if err != nil {
		t.Fatal(err)
	}
	if !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("gzip has the time %v and the name %q", z.ModTime, z.Name)
	}
	r := tar.NewReader(z)
	for _, want := range []string{"x/cinnabar 755 \x00\x01\x02", "x/share/b 644 text"} {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if got := fmt.Sprintf("%s %o %s", h.Name, h.Mode, data); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
		if !h.ModTime.Equal(sampleTime) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%+v", h)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("more files: %v", err)
	}
}

func TestPackZip(t *testing.T) {
	one := packed(t, packZip)
	r, err := zip.NewReader(bytes.NewReader(one), int64(len(one)))
	if err != nil || len(r.File) != 2 {
		t.Fatal(err)
	}
	if f := r.File[0]; f.Name != "x/cinnabar" || f.Mode() != 0o755 || !f.Modified.Equal(sampleTime) {
		t.Errorf("%+v", f.FileHeader)
	}
}

// packed packs the entries in two orders and zones, and returns the archive.
func packed(t *testing.T, pack func(io.Writer, string, []entry, time.Time) error) []byte {
	t.Helper()
	var one, two bytes.Buffer
	other := []entry{sampleEntries[1], sampleEntries[0]}
	if err := errors.Join(pack(&one, "x", sampleEntries, sampleTime), pack(&two, "x", other, sampleTime.In(time.FixedZone("", 7200)))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two archives of the same files differ")
	}
	return one.Bytes()
}

// sampleInfo describes a binary with two modules.
var sampleInfo = &buildinfo.BuildInfo{
	GoVersion: "go1.26.8", Main: debug.Module{Path: "cinnabar", Version: "v1.2.3"},
	Deps: []*debug.Module{
		{Path: "golang.org/x/sys", Version: "v0.49.0", Sum: "h1:abc="},
		{Path: "example.org/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/a b", Version: "v1.0.1+x"}},
	},
}

// TestSBOM decodes a list strictly, and compares its parts with the specification's forms.
func TestSBOM(t *testing.T) {
	data, err := sbom(sampleInfo, platform{"linux", "arm64"}, []byte("binary"), sampleTime)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := sbom(sampleInfo, platform{"linux", "arm64"}, []byte("binary"), sampleTime.In(time.FixedZone("", 3600))); err != nil || !bytes.Equal(again, data) {
		t.Errorf("a second list differs: %v", err)
	}
	var b bom
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		t.Fatal(err)
	}
	if b.Format != "CycloneDX" || b.SpecVersion != "1.5" || b.Version != 1 || b.Metadata.Timestamp != "2026-01-02T03:04:06Z" {
		t.Errorf("%+v", b)
	}
	if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(b.Serial) {
		t.Errorf("serial number %s", b.Serial)
	}
	if c := b.Metadata.Component; c.Version != "1.2.3" || c.Hashes[0].Content != fmt.Sprintf("%x", sha256.Sum256([]byte("binary"))) {
		t.Errorf("%+v", c)
	}
	var urls []string
	for _, c := range b.Components {
		urls = append(urls, c.PURL)
	}
	if got := strings.Join(urls, " "); got != "pkg:golang/example.org/a%20b@v1.0.1%2Bx pkg:golang/golang.org/x/sys@v0.49.0 pkg:golang/std@1.26.8" {
		t.Errorf("packages %s", got)
	}
	if got := b.Dependencies[0].DependsOn; len(got) != 3 {
		t.Errorf("dependencies %q", got)
	}
}

func TestParsePlatforms(t *testing.T) {
	if list, err := parsePlatforms(defaultPlatforms); err != nil || len(list) != 5 || list[4] != (platform{"windows", "amd64"}) {
		t.Errorf("%v, %v", list, err)
	}
	for _, text := range []string{"", "linux", "linux/", "linux/amd64,linux/amd64", "linux/../x", "Linux/amd64"} {
		if list, err := parsePlatforms(text); err == nil {
			t.Errorf("%q: %v", text, list)
		}
	}
}

// TestSums compares the sums with the files.
func TestSums(t *testing.T) {
	r := &release{out: t.TempDir()}
	if err := errors.Join(r.write("b", []byte("two")), r.write("a", []byte("one")), r.writeSums([]string{"b", "a"})); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(r.out, "SHA256SUMS"))
	if want := fmt.Sprintf("%x  a\n%x  b\n", sha256.Sum256([]byte("one")), sha256.Sum256([]byte("two"))); err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if names, err := filepath.Glob(filepath.Join(r.out, ".*")); err != nil || len(names) > 0 {
		t.Errorf("left %q, %v", names, err)
	}
}

// TestReadDir reads the units of the repository.
func TestReadDir(t *testing.T) {
	list, err := readDir(filepath.Join("..", "..", "contrib", "systemd"), "lib/systemd/system")
	if err != nil || len(list) != 5 || list[0].name != "lib/systemd/system/cinnabar-mem.service" || len(list[0].data) == 0 {
		t.Errorf("%d units, %v", len(list), err)
	}
	if _, err := readDir("nosuch", "x"); err == nil {
		t.Error("a directory that does not exist is read")
	}
}

// TestForPlatform leaves out units outside of Linux.
func TestForPlatform(t *testing.T) {
	list := []entry{{name: "LICENSE"}, {name: "lib/systemd/system/a.service"}, {name: "share/man/man1/a.1"}}
	for os, want := range map[string]int{"linux": 3, "darwin": 2, "windows": 1} {
		if got := forPlatform(list, platform{os, "amd64"}); len(got) != want {
			t.Errorf("%s: %d files, want %d", os, len(got), want)
		}
	}
}

// TestEpoch refuses times that no archive has.
func TestEpoch(t *testing.T) {
	for text, want := range map[string]int64{"0": 315532800, "1700000000": 1700000000} {
		t.Setenv("SOURCE_DATE_EPOCH", text)
		r := &release{stderr: io.Discard}
		if err := r.findCommit(t.Context()); err != nil || r.time.Unix() != want {
			t.Errorf("%s: %v, %v", text, r.time, err)
		}
	}
	for _, text := range []string{"x", "-1", "99999999999"} {
		t.Setenv("SOURCE_DATE_EPOCH", text)
		if err := (&release{stderr: io.Discard}).findCommit(t.Context()); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
