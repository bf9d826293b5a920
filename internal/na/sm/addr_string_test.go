package sm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/na"
)

// parity: H127 D20
func TestParseTarget(t *testing.T) {
	host := func() string { return "8323328" }
	for _, tc := range []struct {
		in, uri string
		ident   identity
	}{
		{"na+sm://23853-0", "23853-0", identity{23853, 0}},
		{"sm://1-255", "1-255", identity{1, 255}},
		{"na+sm://2147483647-7", "2147483647-7", identity{2147483647, 7}},
		{"na+sm://store", "store", identity{}},
		{"na+sm://1-256", "1-256", identity{}}, // ids have 8 bits: a name
		{"na+sm://01-0", "01-0", identity{}},   // as C never prints it
		{"na+sm://-1-0", "-1-0", identity{}},
		{"na+sm://2147483648-0", "2147483648-0", identity{}},
		{"na+sm://0-0", "0-0", identity{}},
		{"uid://8323328#na+sm://23853-0#ofi+tcp://127.0.0.1:46591", "23853-0", identity{23853, 0}},
		{"uid://8323328#na+sm://store#tcp://127.0.0.1:46591", "store", identity{}},
	} {
		uri, ident, err := parseTarget(tc.in, host)
		if err != nil || uri != tc.uri || ident != tc.ident {
			t.Errorf("%s: %q, %v, %v; want %q, %v", tc.in, uri, ident, err, tc.uri, tc.ident)
		}
	}
}

// parity: H127 D20
func TestParseTargetRefuses(t *testing.T) {
	host := func() string { return "8323328" }
	for _, tc := range []struct{ in, want string }{
		{"", "not an address of this network"},
		{"ofi+tcp://127.0.0.1:1", "not an address of this network"},
		{"na+sm", "not an address of this network"},
		{"na+sm:23853-0", "not an address of this network"},
		{"na+sm://", "no address after"},
		{"na+sm://../x", "slash"},
		{"na+sm://a#b", "#"},
		{"na+sm://a\x00b", "zero byte"},
		{"na+sm://a\nb", "control"},
		{"na+sm://" + strings.Repeat("x", maxURI+1), "limit"},
		{"uid://8323328", "not three addresses"},
		{"uid://8323328#na+sm://1-0", "not three addresses"},
		{"uid://#na+sm://1-0#ofi+tcp://127.0.0.1:1", "not three addresses"},
		{"uid://8323328#na+sm://1-0#", "not three addresses"},
		{"uid://8323328#na+sm://1-0#a#b", "not three addresses"},
		{"uid://8323328#ofi+tcp://127.0.0.1:1#na+sm://1-0", "not an address of this network"},
		{"uid://1#na+sm://1-0#ofi+tcp://127.0.0.1:46591", "use ofi+tcp://127.0.0.1:46591"},
	} {
		_, _, err := parseTarget(tc.in, host)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v; want one with %q", tc.in, err, tc.want)
		}
	}
	_, _, err := parseTarget("uid://1#na+sm://1-0#ofi+tcp://127.0.0.1:46591", host)
	if na.KindOf(err) != na.Unsupported {
		t.Errorf("another host's address: kind %v, want %v", na.KindOf(err), na.Unsupported)
	}
}

// TestCombined parses the combined address that C prints, and prints it again.
// parity(recorded): H127 D20
func TestCombined(t *testing.T) {
	const s = "uid://8323328#na+sm://23853-0#ofi+tcp://127.0.0.1:46591"
	c, ok, err := ParseCombined(s)
	want := Combined{Host: "8323328", Shared: "na+sm://23853-0", Other: "ofi+tcp://127.0.0.1:46591"}
	if !ok || err != nil || c != want {
		t.Fatalf("%+v, %v, %v; want %+v", c, ok, err, want)
	}
	if got := c.String(); got != s {
		t.Errorf("printed %q, want %q", got, s)
	}
	if _, ok, err := ParseCombined("na+sm://23853-0"); ok || err != nil {
		t.Errorf("a simple address is taken for a combined one: %v, %v", ok, err)
	}
}

func TestSerializedAddress(t *testing.T) {
	// As NA_Addr_serialize of process 4215 wrote it.
	golden := []byte{0x77, 0x10, 0, 0, 0, 0, 0, 0}
	ident, err := parseSerialized(golden)
	if err != nil || ident != (identity{4215, 0}) {
		t.Fatalf("%v, %v", ident, err)
	}
	if diff := cmp.Diff(golden, appendSerialized(nil, ident)); diff != "" {
		t.Errorf("written again (-want +got):\n%s", diff)
	}
	if ident, err := parseSerialized([]byte{1, 0, 0, 0, 255, 0xaa, 0xbb, 0xcc}); err != nil || ident != (identity{1, 255}) {
		t.Errorf("with padding that is not zero: %v, %v", ident, err)
	}
	for n := range len(golden) {
		if _, err := parseSerialized(golden[:n]); err == nil {
			t.Errorf("%d bytes are accepted", n)
		}
	}
	for _, b := range [][]byte{append(golden[:8:8], 0), {0, 0, 0, 0, 1, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}} {
		if _, err := parseSerialized(b); err == nil {
			t.Errorf("% x is accepted", b)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	f.Add("na+sm://23853-0")
	f.Add("sm://store")
	f.Add("uid://8323328#na+sm://23853-0#ofi+tcp://127.0.0.1:46591")
	f.Fuzz(func(t *testing.T, s string) {
		uri, ident, err := parseTarget(s, func() string { return "8323328" })
		if err != nil {
			return
		}
		if uri == "" || len(uri) > maxURI && ident == (identity{}) || strings.ContainsAny(uri, "/\x00") {
			t.Fatalf("%q gives %q", s, uri)
		}
		again, whoAgain, err := parseTarget(scheme+uri, nil)
		if err != nil || again != uri || whoAgain != ident {
			t.Fatalf("%q gives %q, %v, and that %q, %v, %v", s, uri, ident, again, whoAgain, err)
		}
	})
}
