package ddp_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/iwarp/ddp"
)

// goldenHeader is a header as sent by Linux 6.1's siw; the whole conversations
// are in ../testdata.
type goldenHeader struct {
	name string
	hex  string
	want ddp.Header
}

var goldenHeaders = []goldenHeader{
	{
		name: "send, last",
		hex:  "4143 00000000 00000000 00000001 00000000",
		want: ddp.Header{Last: true, Version: 1, ULP: 0x43, MSN: 1},
	},
	{
		name: "read request",
		hex:  "4141 00000000 00000001 00000002 00000000",
		want: ddp.Header{Last: true, Version: 1, ULP: 0x41, QN: 1, MSN: 2},
	},
	{
		name: "terminate",
		hex:  "4147 00000000 00000002 00000001 00000000",
		want: ddp.Header{Last: true, Version: 1, ULP: 0x47, QN: 2, MSN: 1},
	},
	{
		name: "write, not last",
		hex:  "8140 5fea2200 000055ac42098410",
		want: ddp.Header{Tagged: true, Version: 1, ULP: 0x40, STag: 0x5fea2200, TO: 0x55ac42098410},
	},
	{
		name: "write, last",
		hex:  "c140 5fea2200 000055ac42098f38",
		want: ddp.Header{Tagged: true, Last: true, Version: 1, ULP: 0x40, STag: 0x5fea2200, TO: 0x55ac42098f38},
	},
	{
		name: "read response, last",
		hex:  "c142 115abe00 000056025e00e468",
		want: ddp.Header{Tagged: true, Last: true, Version: 1, ULP: 0x42, STag: 0x115abe00, TO: 0x56025e00e468},
	},
	{
		// Not recorded: every field has octets of its own.
		name: "send with invalidate, all fields",
		hex:  "0144 01020304 05060708 090a0b0c 0d0e0f10",
		want: ddp.Header{Version: 1, ULP: 0x44, Rsvd: 0x01020304, QN: 0x05060708, MSN: 0x090a0b0c, MO: 0x0d0e0f10},
	},
	{
		name: "tagged, version 3, all fields",
		hex:  "83ff 01020304 05060708090a0b0c",
		want: ddp.Header{Tagged: true, Version: 3, ULP: 0xff, STag: 0x01020304, TO: 0x05060708090a0b0c},
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHeaderGolden(t *testing.T) {
	for _, g := range goldenHeaders {
		t.Run(g.name, func(t *testing.T) {
			wire := unhex(t, g.hex)
			got, n := ddp.ParseHeader(append(wire, 0xee))
			if n != len(wire) || n != got.Len() || n != ddp.HeaderLen(wire[0]) {
				t.Errorf("got lengths %d, %d, %d, want %d", n, got.Len(), ddp.HeaderLen(wire[0]), len(wire))
			}
			if diff := cmp.Diff(got, g.want); diff != "" {
				t.Errorf("got (-) want (+):\n%s", diff)
			}
			if got := ddp.AppendHeader([]byte("x"), g.want); !bytes.Equal(got[1:], wire) || got[0] != 'x' {
				t.Errorf("got %x, want 78%x", got, wire)
			}
			for n := range wire {
				if h, got := ddp.ParseHeader(wire[:n]); got != 0 || h != (ddp.Header{}) {
					t.Errorf("%d of %d octets: got %+v, %d, want nothing", n, len(wire), h, got)
				}
			}
		})
	}
}

func TestHeaderAllocatesNothing(t *testing.T) {
	wire := unhex(t, goldenHeaders[0].hex)
	buf := make([]byte, 0, ddp.UntaggedHeaderLen)
	var queue ddp.Queue
	got := testing.AllocsPerRun(100, func() {
		h, _ := ddp.ParseHeader(wire)
		buf = ddp.AppendHeader(buf[:0], h)
		h.MSN = queue.Next()
		if _, err := queue.Segment(h, 100, ddp.MaxMessage); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}

func FuzzParseHeader(f *testing.F) {
	for _, g := range goldenHeaders {
		f.Add(unhex(f, g.hex))
	}
	f.Add([]byte{0x7d, 0x43})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n := ddp.ParseHeader(b)
		if n == 0 {
			if len(b) >= ddp.UntaggedHeaderLen {
				t.Fatalf("%x has a whole header, got none", b)
			}
			return
		}
		want := bytes.Clone(b[:n])
		want[0] &^= 0x3c // RFC 5041 section 4.1: ignored here, zero when sent
		if got := ddp.AppendHeader(nil, h); !bytes.Equal(got, want) {
			t.Fatalf("%x encodes again as %x", want, got)
		}
	})
}
