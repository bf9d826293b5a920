package wire

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestJenkins has the hashes that Margo's own ids contain.
// parity: G22
func TestJenkins(t *testing.T) {
	for name, want := range map[string]uint32{
		"sum": 0x1c8857ad, "add": 0xc8c9c5c8, "hello": 0xe0be16ba, "many": 0xb0257ea5, "__shutdown__": 0x788dd320,
		"__identity__": 0x6e31f542, "nullhandler": 0x5d10d231, "a_rather_long_rpc_name_for_testing": 0xfe3ae07d,
	} {
		if got := Jenkins(name); got != want {
			t.Errorf("Jenkins(%q) = %#08x, want %#08x", name, got, want)
		}
	}
}

// parity: H40
func TestDjb2(t *testing.T) {
	for name, want := range map[string]uint64{"sum": 0x0b88ab9a, "bulk": 0x7c94ccb3, "": 0x1505} {
		if got := Djb2(name); got != want {
			t.Errorf("Djb2(%q) = %#x, want %#x", name, got, want)
		}
	}
}

func TestID(t *testing.T) {
	id := ID("sum", 42)
	if want := uint64(0x1c8857ad_0000002a); id != want {
		t.Errorf(`ID("sum", 42) = %#x, want %#x`, id, want)
	}
	if got, want := WithProvider(id, DefaultProvider), uint64(0x1c8857ad_0000ffff); got != want {
		t.Errorf("WithProvider = %#x, want %#x", got, want)
	}
	if got := Provider(id); got != 42 {
		t.Errorf("Provider = %d, want 42", got)
	}
}

// TestIDsOfC compares ids with those that the C libraries gave to the same names.
// parity(recorded): H40 G22
func TestIDsOfC(t *testing.T) {
	data, err := os.ReadFile("testdata/hashids.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		head, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " name=")
		words := strings.Fields(head)
		want, err := strconv.ParseUint(words[len(words)-1], 16, 64)
		if !ok || err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if got := idOfLine(t, words, name); got != want {
			t.Errorf("%s: got %#016x", strings.TrimSpace(line), got)
		}
		n++
	}
	if n < 300 {
		t.Errorf("only %d ids in the file", n)
	}
}

func idOfLine(t *testing.T, words []string, name string) uint64 {
	if words[0] == "mercury" {
		return Djb2(name)
	}
	provider, err := strconv.ParseUint(words[1], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return ID(name, uint16(provider))
}
