package ofitcp

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// TestMalformedHeaders has one field wrong in each.
func TestMalformedHeaders(t *testing.T) {
	g := golden(t)
	le := binary.LittleEndian
	for _, tc := range []struct {
		name, of string
		change   func(b []byte)
		want     int
	}{
		{"operation 8", "ack", func(b []byte) { b[offOp] = 8 }, badOp},
		{"operation 255", "ack", func(b []byte) { b[offOp] = 255 }, badOp},
		{"clear to send", "ack", func(b []byte) { b[offOp] = opCTS }, badRendezvous},
		{"data of a rendezvous", "ack", func(b []byte) { b[offOp] = opData }, badRendezvous},
		{"header too short", "request", func(b []byte) { b[offHdrSize] = 15 }, badOp},
		{"header too long", "request", func(b []byte) { b[offHdrSize] = 121 }, badOp},
		{"size below header", "request", func(b []byte) { le.PutUint64(b[offSize:], 23) }, badSize},
		{"no room for completion data", "request", func(b []byte) { b[offHdrSize] = 16 }, badSize},
		{"no room for tag", "response", func(b []byte) { b[offHdrSize] = 16 }, badSize},
		{"no room for tag behind completion data", "response", func(b []byte) { b[offFlags] = flagCQData }, badSize},
		{"acknowledgement with payload", "ack", func(b []byte) { b[offSize] = 17 }, badSize},
		{"no pieces", "read-req", func(b []byte) { b[offIOVs] = 0 }, badIOV},
		{"five pieces", "read-req", func(b []byte) { b[offIOVs] = 5 }, badIOV},
		{"more pieces than header", "read-req", func(b []byte) { b[offIOVs] = 2 }, badIOV},
		{"read with payload", "read-req", func(b []byte) { b[offSize]++ }, badIOV},
		{"write longer than pieces", "write", func(b []byte) { b[offSize]++ }, badIOV},
		{"write shorter than pieces", "write", func(b []byte) { b[offSize]-- }, badIOV},
		{"read whose answer has no size", "read-req", func(b []byte) { le.PutUint64(b[24:], math.MaxUint64) }, badIOV},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := bytes.Clone(g[tc.of])
			tc.change(b)
			var m message
			if got := parseHeader(&m, b); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
	if n := parseHeader(new(message), appendReadReq(nil, []iov{{len: 1 << 63}, {len: 1 << 63}})); n != badIOV {
		t.Errorf("pieces whose lengths wrap: %d", n)
	}
}

// TestIgnored has what upstream leaves undefined.
func TestIgnored(t *testing.T) {
	g := golden(t)
	var want, got message
	for _, name := range []string{"request", "response", "read-rsp", "ack"} {
		parseHeader(&want, g[name])
		b := bytes.Clone(g[name])
		b[offVersion], b[offIOVs], b[offSeq] = 9, 0xfe, 0xab
		if n := parseHeader(&got, b); n != want.hdr || got != want {
			t.Errorf("%s: %d, %+v, want %+v", name, n, got, want)
		}
	}
}

func TestMalformedHandles(t *testing.T) {
	b := golden(t)["handle"]
	for name, change := range map[string]func(b []byte){
		"no access":             func(b []byte) { b[24] = 0 },
		"access 4":              func(b []byte) { b[24] = 4 },
		"no pieces":             func(b []byte) { b[16] = 0 },
		"more pieces than data": func(b []byte) { b[16] = 2 },
		"pieces beyond reason":  func(b []byte) { copy(b[16:24], bytes.Repeat([]byte{255}, 8)) },
		"piece of other length": func(b []byte) { b[40] = 17 },
	} {
		bad := bytes.Clone(b)
		change(bad)
		if r, err := parseHandle(bad); err == nil {
			t.Errorf("%s: accepted as %+v", name, r)
		}
	}
	two := bytes.Clone(b)
	two[16], two[8] = 2, 32
	if r, err := parseHandle(append(two, b[handleHead:]...)); err != nil || r.size != 32 {
		t.Errorf("two pieces: %+v, %v", r, err)
	}
	huge := bytes.Clone(b)
	huge[16] = 2
	copy(huge[40:48], bytes.Repeat([]byte{255}, 8))
	if r, err := parseHandle(append(huge, huge[handleHead:]...)); err == nil {
		t.Errorf("pieces whose lengths wrap: %+v", r)
	}
}
