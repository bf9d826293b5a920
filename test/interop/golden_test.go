//go:build linux

package interop

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codec/hgproc"

	"github.com/google/go-cmp/cmp"
)

// recorded returns the lines of a file in testdata without its comments.
func recorded(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dropComments(string(b))
}

func dropComments(s string) []string {
	var lines []string
	for l := range strings.Lines(s) {
		if !strings.HasPrefix(l, "#") {
			lines = append(lines, strings.TrimSuffix(l, "\n"))
		}
	}
	return lines
}

// output runs a program to its end and returns what it says.
func output(t *testing.T, p *program, stdin string) []string {
	t.Helper()
	cmd := exec.Command(p.executable(t))
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	return dropComments(string(out))
}

// TestIDs compares the ids of names with those that the C libraries have given them.
// parity(recorded): H40 G22
func TestIDs(t *testing.T) {
	lines := recorded(t, "hashids.txt")
	for _, l := range lines {
		head, name, _ := strings.Cut(l, " name=")
		f := strings.Fields(head)
		want, err := strconv.ParseUint(f[len(f)-1], 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		var got uint64
		if f[0] == "mercury" {
			got = cinnabar.NewRPC[none, none](name, cinnabar.WithFlavor(cinnabar.Mercury)).ID(0)
		} else {
			provider, err := strconv.ParseUint(f[1], 10, 16)
			if err != nil {
				t.Fatalf("%q: %v", l, err)
			}
			got = cinnabar.NewRPC[none, none](name).ID(uint16(provider))
		}
		if got != want {
			t.Errorf("%s: the id is %#x", l, got)
		}
	}
	if len(lines) != 700 {
		t.Errorf("%d ids were recorded; want 700", len(lines))
	}
}

// TestRecordedIDs shows that the recorded ids are what the installed libraries say.
func TestRecordedIDs(t *testing.T) {
	names, err := os.ReadFile("testdata/names.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(recorded(t, "hashids.txt"), output(t, hashIDs, string(names))); diff != "" {
		t.Errorf("-recorded +installed:\n%s", diff)
	}
}

// TestRecordedProcs shows that the recorded encodings are what the installed Mercury writes. Bulk handles are left out:
// they have addresses in them.
// parity(peer): H100
func TestRecordedProcs(t *testing.T) {
	plain := func(lines []string) (rest []string) {
		for _, l := range lines {
			if !strings.HasPrefix(l, "hg_bulk_t mode") {
				rest = append(rest, l)
			}
		}
		return rest
	}
	if diff := cmp.Diff(plain(recorded(t, "procs.txt")), plain(output(t, procs, ""))); diff != "" {
		t.Errorf("-recorded +installed:\n%s", diff)
	}
}

// TestProcs encodes and decodes what Mercury's routines have encoded.
// parity(recorded): H48 H100
func TestProcs(t *testing.T) {
	checked := 0
	for _, l := range recorded(t, "procs.txt") {
		f := strings.Fields(l)
		if len(f) != 3 {
			t.Fatalf("%q has not three fields", l)
		}
		want, err := hex.DecodeString(f[2])
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		if v := procValue(t, f[0], f[1]); v != nil {
			checkProc(t, f[0]+" "+f[1], v, want)
			checked++
		}
		if f[0] == "hg_bulk_t" {
			checkHandle(t, f[1], want)
			checked++
		}
	}
	if checked < 70 {
		t.Errorf("only %d encodings were checked", checked)
	}
}

// procValue returns a pointer to the Go value of a line in procs.txt, nil for bulk handles.
func procValue(t *testing.T, ctype, text string) any {
	t.Helper()
	switch ctype {
	case "hg_string_t":
		return stringValue(text, func(s string) any { return &s }, new(*string))
	case "hg_const_string_t":
		return stringValue(text, func(s string) any { return new(hgproc.ConstString(s)) }, new(*hgproc.ConstString))
	case "cin_blob_t":
		n := atoi(t, text)
		return &blob{uint64(n), pattern(n, 1)}
	case "sum_in_t":
		return &sumIn{42, -7}
	case "note_in_t":
		return &note{3, "bob"}
	case "move_out_t":
		return &moveOut{0, 16, 0x0123456789abcdef}
	case "all_t":
		return &variants[atoi(t, text)]
	case "hg_bulk_t":
		return nil
	}
	return numberValue(t, ctype, text)
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stringValue makes the value of a quoted string, or null for NULL.
func stringValue(text string, some func(string) any, null any) any {
	if text == "NULL" {
		return null
	}
	return some(strings.Trim(text, `"`))
}

// numberValue makes the value of a numeric type from its text.
func numberValue(t *testing.T, ctype, text string) any {
	t.Helper()
	makers := map[string]any{
		"int8_t": new(int8), "int16_t": new(int16), "int32_t": new(int32), "int64_t": new(int64),
		"uint8_t": new(uint8), "uint16_t": new(uint16), "uint32_t": new(uint32), "uint64_t": new(uint64),
		"hg_size_t": new(uint64), "hg_ptr_t": new(uint64), "cin_f32_t": new(float32), "cin_f64_t": new(float64),
	}
	switch ctype {
	case "hg_bool_t":
		return new(text == "1")
	case "hg_id_t": // the routine writes the low half
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return new(hgproc.ID(id))
	}
	v, ok := makers[ctype]
	if !ok {
		t.Fatalf("no Go type is known for %s", ctype)
	}
	if _, err := fmt.Sscan(text, v); err != nil {
		t.Fatalf("%s %s: %v", ctype, text, err)
	}
	return v
}

// checkProc encodes *v and decodes it again.
func checkProc(t *testing.T, what string, v any, want []byte) {
	t.Helper()
	plan, err := hgproc.Codec{}.Plan(reflect.TypeOf(v).Elem())
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	got, err := plan.Append(nil, v)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%.60s is encoded as %x, %v; want %x", what, got, err, want)
	}
	back := reflect.New(reflect.TypeOf(v).Elem())
	if n, err := plan.Decode(want, back.Interface()); err != nil || n != len(want) {
		t.Errorf("%.60s: %d of %d bytes are decoded, %v", what, n, len(want), err)
	}
	again, err := plan.Append(nil, back.Interface())
	if err != nil || !bytes.Equal(again, want) {
		t.Errorf("%.60s is decoded as something else: %x, %v", what, again, err)
	}
}

// checkHandle decodes a bulk handle whose label says what is in it, and encodes it again.
func checkHandle(t *testing.T, label string, want []byte) {
	t.Helper()
	var h cinnabar.BulkHandle
	n, err := h.DecodeProc(want)
	if err != nil || n != len(want) {
		t.Fatalf("handle %s: %d of %d bytes are decoded, %v", label, n, len(want), err)
	}
	got, err := h.AppendProc(nil)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("handle %s is encoded as %x, %v; want %x", label, got, err, want)
	}
	if label == "NULL" {
		if h != (cinnabar.BulkHandle{}) {
			t.Errorf("the null handle is %v", h)
		}
		return
	}
	says := line(strings.ReplaceAll(label, ",", " "))
	segments := says.number(t, "segments")
	size := int64(16)
	if segments == 3 {
		size = 16 + 20 + 30
	}
	text := fmt.Sprintf("%v bulk of %d bytes in %d segments", cinnabar.Mode(says.number(t, "mode")), size, segments)
	if says.value("bound") == "1" {
		text += ", bound"
	}
	if h.String() != text || h.Len() != size || int(h.Mode()) != says.number(t, "mode") {
		t.Errorf("handle %s is %v of %d bytes, mode %v; want %s", label, h, h.Len(), h.Mode(), text)
	}
}
