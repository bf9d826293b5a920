package sm

import (
	"bufio"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/na"
)

// TestCaptured reads what a program in C has written, and writes the same.
func TestCaptured(t *testing.T) {
	f, err := os.Open("testdata/serialized.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var ident identity
	counts := map[string]int{}
	for s := bufio.NewScanner(f); s.Scan(); {
		words := strings.Fields(s.Text())
		counts[words[0]]++
		last := words[len(words)-1]
		switch words[0] {
		case "address":
			uri, parsed, err := parseTarget(last, nil)
			if ident = parsed; err != nil || ident.uri() != uri || scheme+uri != last {
				t.Errorf("%s: %v, %v", last, ident, err)
			}
		case "serialized-address":
			if got, err := parseSerialized(unhex(t, last)); err != nil || got != ident {
				t.Errorf("%s: %v, %v; want %v", last, got, err, ident)
			}
			if got := hex.EncodeToString(appendSerialized(nil, ident)); got != last {
				t.Errorf("%v is written %s; want %s", ident, got, last)
			}
		case "handle":
			checkCapturedHandle(t, words[1], words[2], last)
		}
	}
	if diff := cmp.Diff(map[string]int{"#": 2, "address": 1, "serialized-address": 1, "handle": 6}, counts); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func checkCapturedHandle(t *testing.T, segments, access, raw string) {
	t.Helper()
	r, err := parseHandle(unhex(t, raw))
	if err != nil {
		t.Errorf("%s: %v", raw, err)
		return
	}
	segs := []segment{{0x7e0000000000, 4096}, {0x7e0000002000, 100}, {0x7e0000010001, 1}}
	if segments == "1" {
		segs = segs[:1]
	}
	if diff := cmp.Diff(segs, r.segs, cmp.AllowUnexported(segment{})); diff != "" || strconv.Itoa(int(r.access)) != access || r.arena != 0 {
		t.Errorf("%s: access %d, arena %#x, segments (-want +got):\n%s", raw, r.access, r.arena, diff)
	}
	n, _ := strconv.Atoi(access) // it is r.access
	if got := hex.EncodeToString(appendHandle(nil, segs, na.Access(n), 0)); got != raw {
		t.Errorf("written %s; want %s", got, raw)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
