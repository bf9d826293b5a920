package ofiaddr

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

// captured is the address of a process in C, 127.0.0.1:34387, as it stood in a request of Mercury 2.4.1.
var captured = []byte{2, 0, 0x86, 0x53, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}

func TestMalformedAddresses(t *testing.T) {
	b := captured
	for name, bad := range map[string][]byte{
		"empty":          nil,
		"short":          b[:15],
		"family 10":      append([]byte{10, 0}, b[2:]...),
		"port 0":         append([]byte{2, 0, 0, 0}, b[4:]...),
		"any address":    append([]byte{2, 0, 1, 1, 0, 0, 0, 0}, b[8:]...),
		"multicast":      append([]byte{2, 0, 1, 1, 224, 0, 0, 1}, b[8:]...),
		"not zero":       append(bytes.Clone(b[:15]), 1),
		"IPv4 in IPv6":   append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1}, 1, 1),
		"IPv6 any":       append(make([]byte, 16), 1, 1),
		"IPv6 port 0":    append([]byte{0x20, 1}, make([]byte, 16)...),
		"IPv6 multicast": append([]byte{0xff, 2}, append(make([]byte, 14), 1, 1)...),
	} {
		if a, err := Parse(bad); err == nil {
			t.Errorf("%s: accepted as %v", name, a)
		}
	}
}

func TestCompare(t *testing.T) {
	ascending := []string{"9.0.0.9:65535", "10.0.0.1:255", "10.0.0.1:256", "10.0.0.2:1", "127.0.0.1:1", "128.0.0.0:1"}
	for i, a := range ascending {
		for j, b := range ascending {
			got := Compare(netip.MustParseAddrPort(a), netip.MustParseAddrPort(b))
			if (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("Compare(%s, %s) = %d", a, b, got)
			}
		}
	}
}

// TestParseTarget checks that the example of an error text and the scheme are those of the caller.
func TestParseTarget(t *testing.T) {
	cut := func(s string) (string, error) { return s[len("verbs://"):], nil }
	self := netip.MustParseAddr("10.0.0.1")
	host, a, err := ParseTarget("uid://7#verbs://mlx5_0/10.0.0.2:7", "ofi+verbs://", cut, self)
	if want := netip.MustParseAddrPort("10.0.0.2:7"); host != "" || a != want || err != nil {
		t.Errorf("%q, %v, %v, want %v", host, a, err, want)
	}
	if host, a, err = ParseTarget("verbs://Node7:9", "ofi+verbs://", cut, self); host != "node7" || a.Port() != 9 || err != nil {
		t.Errorf("%q, %v, %v, want node7 and port 9", host, a, err)
	}
	if _, _, err = ParseTarget("verbs://10.0.0.2", "ofi+verbs://", cut, self); err == nil || !strings.Contains(err.Error(), "ofi+verbs://127.0.0.1:1234") {
		t.Errorf("an address without a port: %v", err)
	}
}

func FuzzAddr(f *testing.F) {
	f.Add(captured)
	f.Add(append([]byte{16, 0, 0, 0, 0, 0, 0, 0}, captured...))
	f.Add(append([]byte{0x20, 1}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := Parse(b)
		if err == nil && !bytes.Equal(Append(nil, a), b) {
			t.Fatalf("%v encoded is % x, not % x", a, Append(nil, a), b)
		}
		a, err = ParseSerialized(b)
		if err == nil && !bytes.Equal(AppendSerialized(nil, a), b) {
			t.Fatalf("%v serialized is % x, not % x", a, AppendSerialized(nil, a), b)
		}
	})
}
