package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

const sample = "testdata/sample.json"

// TestGolden draws all charts of a sample, twice the same, and as the golden files have them.
func TestGolden(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		if err := run([]string{"-out", dir, sample}, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(first)
	if err != nil || len(files) < 5 {
		t.Fatalf("%d charts, %v", len(files), err)
	}
	for _, f := range files {
		got, err := os.ReadFile(filepath.Join(first, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(filepath.Join(second, f.Name())); err != nil || !bytes.Equal(got, again) {
			t.Errorf("%s differs between two runs: %v", f.Name(), err)
		}
		checkPicture(t, f.Name(), got)
		golden := filepath.Join("testdata", f.Name())
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s: %s", f.Name(), d)
		}
	}
}

// box is the room of a text.
type box struct {
	text                     string
	left, top, right, bottom float64
}

// checkPicture fails unless a picture is well-formed, has both sets of colours, and its texts are inside and beside each other.
func checkPicture(t *testing.T, name string, svg []byte) {
	t.Helper()
	if !bytes.Contains(svg, []byte("prefers-color-scheme: dark")) {
		t.Errorf("%s has no dark colours", name)
	}
	var boxes []box
	var element string
	var attributes map[string]string
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			element, attributes = x.Name.Local, map[string]string{}
			for _, a := range x.Attr {
				attributes[a.Name.Local] = a.Value
			}
			for _, key := range []string{"x", "y", "x1", "y1", "x2", "y2", "cx", "cy"} {
				if v := attributes[key]; v != "" && !(number(t, v) >= 0 && number(t, v) <= width) {
					t.Errorf("%s: <%s %s=%q> is outside", name, element, key, v)
				}
			}
		case xml.EndElement:
			element = ""
		case xml.CharData:
			if element == "text" {
				boxes = append(boxes, boxOf(t, attributes, string(x)))
			}
		}
	}
	for i, a := range boxes {
		if a.left < 0 || a.right > width || a.top < 0 || a.bottom > height {
			t.Errorf("%s: %+v is outside", name, a)
		}
		for _, b := range boxes[:i] {
			if a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom {
				t.Errorf("%s: %q and %q overlap", name, a.text, b.text)
			}
		}
	}
	if len(boxes) < 8 {
		t.Errorf("%s has %d texts", name, len(boxes))
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) {
		t.Errorf("coordinate %q: %v", text, err)
	}
	return v
}

func boxOf(t *testing.T, attributes map[string]string, text string) box {
	t.Helper()
	each, high := charWidth, 12.0
	if attributes["class"] == "title" {
		each, high = titleWidth, 16
	}
	x, y, wide := number(t, attributes["x"]), number(t, attributes["y"]), each*float64(len([]rune(text)))
	switch attributes["text-anchor"] {
	case "middle":
		x -= wide / 2
	case "end":
		x -= wide
	}
	return box{text, x, y - high + 2, x + wide, y + 2}
}

// TestScale covers the values, ends at marks, and has at most nine of them.
func TestScale(t *testing.T) {
	for _, tt := range []struct{ least, most, from, to float64 }{
		{1, 10, 1, 10}, {3, 4, 2, 5}, {5, 5, 5, 10}, {9, 11, 5, 20}, {0.3, 2e6, 0.2, 2e6}, {1e-9, 1e15, 1e-9, 1e15},
	} {
		a, marks := scale(tt.least, tt.most)
		if math.Abs(a.from/tt.from-1) > 1e-6 || math.Abs(a.to/tt.to-1) > 1e-6 {
			t.Errorf("%g to %g: an axis of %g to %g, want %g to %g", tt.least, tt.most, a.from, a.to, tt.from, tt.to)
		}
		if len(marks) < 2 || len(marks) > 14 {
			t.Errorf("%g to %g: marks %v", tt.least, tt.most, marks)
		}
	}
}

const head = `{"kind":"machine","format":1,"date":"2026-11-23","go":"go1.26","system":"linux/amd64","processors":2,"commit":"<b>&\"\u0001","rounds":1,"seconds":1}` + "\n"

// TestHostileTexts draws a file whose texts hold markup and control characters, and whose figures are as far apart as the form allows.
func TestHostileTexts(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, strings.Repeat("long", 40)+"<x>.json")
	text := head
	for _, r := range []string{`"size":1,"rounds":[{"usec":1e-9}]`, `"size":1099511627776,"rounds":[{"usec":1e15}]`} {
		text += `{"kind":"result","op":"rate","transport":"ofi+tcp","path":"cinnabar","load":"quiet","inflight":1,"clients":1,` + r + "}\n"
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-out", dir, name}, io.Discard); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "latency-tcp.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(svg, []byte("<b>")) || bytes.Contains(svg, []byte("<x>")) || bytes.ContainsRune(svg, 1) {
		t.Error("a text of the file is markup of the picture")
	}
	checkPicture(t, "hostile", svg)
}

// TestRefuses names file and line of a result that is none, and writes nothing for a chart without figures.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "x.json")
	for _, tt := range []struct{ text, want string }{
		{"", name + ":1: "},
		{head + "# a table\n", name + ":2: "},
	} {
		if err := os.WriteFile(name, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{"-out", dir, name}, io.Discard); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.text, err, tt.want)
		}
	}
	if err := os.WriteFile(name, []byte(head), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{"-out", filepath.Join(dir, "charts"), name}, &out); err != nil || !strings.Contains(out.String(), "latency-tcp.svg: not written") {
		t.Errorf("%v after %q", err, out.String())
	}
	if files, err := os.ReadDir(filepath.Join(dir, "charts")); err != nil || len(files) > 0 {
		t.Errorf("%d charts of nothing, %v", len(files), err)
	}
	for _, args := range [][]string{nil, {"a", "b"}, {filepath.Join(dir, "missing")}, {"-nonsense"}} {
		if run(args, io.Discard) == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}

func TestTexts(t *testing.T) {
	for v, want := range map[float64]string{8: "8 B", 1024: "1 KiB", 1536: "1536 B", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 1 << 40: "1 TiB"} {
		if got := sizeText(v); got != want {
			t.Errorf("%g bytes: %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0.5: "0.5", 0.0002: "0.0002", 1e-9: "1e-09", 20: "20", 123: "123", 5000: "5,000", 1e6: "1,000,000", 1e15: "1e+15", 0.30000000000000004: "0.3"} {
		if got := numberText(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
}

// TestRecorded draws the charts of the recorded results as they stand in the repository.
// parity: P07
func TestRecorded(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	results := filepath.Join("bench", "results")
	want := map[string]string{} // by name
	sources := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(results, "charts", "*.svg"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d charts, %v", len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source := regexp.MustCompile(`bench/results/[^,]*\.json`).FindString(string(text))
		if source == "" {
			t.Fatalf("%s does not name its source", name)
		}
		want[filepath.Base(name)], sources[source] = string(text), true
	}
	got, dir := map[string]string{}, t.TempDir()
	for source := range sources {
		if err := run([]string{"-out", dir, source}, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	for name := range want {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(text)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for chart, path := range map[string]string{"bandwidth-read-tcp.svg": "Mercury (C)", "latency-tcp.svg": "gRPC-Go", "bandwidth-write-tcp.svg": "plain TCP"} {
		if !strings.Contains(want[chart], path) {
			t.Errorf("%s has no line of %s", chart, path)
		}
	}
}
