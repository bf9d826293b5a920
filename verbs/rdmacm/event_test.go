package rdmacm

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"
)

// parity(recorded): V21
func TestEventTypesEqualC(t *testing.T) {
	f, err := os.Open("testdata/events.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		w := strings.SplitN(s.Text(), " ", 4)
		v, err := strconv.ParseUint(w[2], 10, 32)
		if err != nil || len(w) != 4 {
			t.Fatalf("line %q: %v", s.Text(), err)
		}
		if got := EventType(v).String(); got != w[3] {
			t.Errorf("%s: got text %q, C has %q", w[1], got, w[3])
		}
		if int(v) < NumEventTypes && w[1] != w[3] {
			t.Errorf("%s is number %d, which is %q here", w[1], v, w[3])
		}
		n++
	}
	if want := NumEventTypes + 2; n != want { // USER and INTERNAL have no text
		t.Errorf("%d enumerators, want %d", n, want)
	}
}
