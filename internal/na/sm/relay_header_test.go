package sm

import (
	"encoding/binary"
	"strings"
	"testing"

	"cinnabar/internal/na"
)

func TestRelayHead(t *testing.T) {
	h := relayHead{access: na.WriteOnly, segments: 3, bytes: 4096}
	b := appendRelayHead(nil, h)
	if got, err := parseRelayHead(b); err != nil || got != h || len(b) != relayRequest {
		t.Fatalf("%+v, %v; want %+v", got, err, h)
	}
	for _, tc := range []struct {
		name, want string
		at         int
		v          uint32
	}{
		{"magic", "begins with", 0, 0x324e4e43},
		{"access 0", "access 0", 4, 0},
		{"access 3", "access 3", 4, 3},
		{"an arena in three segments", "request for an arena", 4, uint32(relayMap)},
		{"no segments", "0 segments", 8, 0},
		{"too many segments", "1025 segments", 8, maxSegments + 1},
		{"no bytes", "0 bytes", 12, 0},
		{"too many bytes", "1048577 bytes", 12, relayBytes + 1},
	} {
		bad := append([]byte(nil), b...)
		binary.LittleEndian.PutUint32(bad[tc.at:], tc.v)
		if _, err := parseRelayHead(bad); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v; want one with %q", tc.name, err, tc.want)
		}
	}
}

func TestRelaySegments(t *testing.T) {
	raw := func(words ...uint64) (b []byte) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	segs, err := parseRelaySegments(nil, raw(0x1000, 6, 0x2000, 4), relayHead{segments: 2, bytes: 10})
	if err != nil || len(segs) != 2 || segs[1] != (segment{0x2000, 4}) {
		t.Fatalf("%v, %v", segs, err)
	}
	for _, words := range [][]uint64{{0x1000, 0}, {0x1000, 11}, {0x1000, 9}, {0x1000, 6, 0x2000, 5}, {0x1000, 1<<64 - 1, 0x2000, 11}} {
		if _, err := parseRelaySegments(nil, raw(words...), relayHead{bytes: 10}); err == nil {
			t.Errorf("segments %v are accepted for 10 bytes", words)
		}
	}
}

func TestRelayAnswer(t *testing.T) {
	for _, tc := range []struct {
		status byte
		n      uint32
		ok     bool
	}{{relayDone, 100, true}, {relayDone, 99, false}, {relayDone, 101, false}, {relayRefused, 0, true}, {relayRefused, relayText, true},
		{relayRefused, relayText + 1, false}, {2, 100, false}} {
		status, n, err := parseRelayAnswer(appendRelayAnswer(nil, tc.status, int(tc.n)), 100)
		if (err == nil) != tc.ok || tc.ok && (status != tc.status || n != int(tc.n)) {
			t.Errorf("status %d, %d bytes: %d, %d, %v", tc.status, tc.n, status, n, err)
		}
	}
	if _, _, err := parseRelayAnswer(make([]byte, relayAnswer), 0); err == nil {
		t.Error("an answer of zeros is accepted")
	}
}
