package ofiverbs

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofiaddr"
	"cinnabar/verbs"
)

// golden returns the captured bytes by name.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/rxm.hex")
	if err != nil {
		t.Fatal(err)
	}
	m, name := map[string][]byte{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] != ' ' {
			name, line, _ = strings.Cut(line, ":")
		}
		b, err := hex.DecodeString(strings.ReplaceAll(line, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m[name] = append(m[name], b...)
	}
	return m
}

var (
	goldenRequest = cmRequest{port: 45483, flow: flowOn, eager: 16384, receives: 128, id: connID{index: 1, process: 0xd4}}
	goldenAccept  = cmAccept{id: connID{index: 1, process: 0xbe}, receives: 128, flow: flowOn}
	goldenHandle  = remote{at: verbs.RemoteAddr{Addr: 0x557471_4a7830, RKey: 0x1ae0}, size: 40, access: na.ReadOnly}
)

// TestGoldenConnection compares the private data of connections with the captured ones. The padding of RoCE is no part of them.
func TestGoldenConnection(t *testing.T) {
	g := golden(t)
	overIWARP := goldenRequest
	overIWARP.port, overIWARP.id.process = 59569, 0xf2
	for name, want := range map[string]cmRequest{"cm-request": goldenRequest, "iwarp-request": overIWARP} {
		if got, err := parseRequest(g[name]); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
		if enc := appendRequest(nil, want); !bytes.Equal(enc, g[name][:1+requestLen]) {
			t.Errorf("%s: encoded as\n%x, want\n%x", name, enc, g[name])
		}
	}
	overIWARP2 := goldenAccept
	overIWARP2.id.process = 0xbd
	for name, want := range map[string]cmAccept{"cm-accept": goldenAccept, "iwarp-accept": overIWARP2} {
		if got, err := parseAccept(g[name]); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
		if enc := appendAccept(nil, want); !bytes.Equal(enc, g[name][:1+acceptLen]) {
			t.Errorf("%s: encoded as\n%x, want\n%x", name, enc, g[name])
		}
	}
	if got := parseReject(g["cm-reject"]); got != rejectAlready {
		t.Errorf("refusal: %v, want %v", got, rejectAlready)
	}
	if enc := appendReject(nil, rejectAlready); !bytes.Equal(enc, g["cm-reject"][:1+rejectLen]) {
		t.Errorf("refusal: encoded as %x", enc)
	}
}

func TestGoldenPackets(t *testing.T) {
	g := golden(t)
	for name, want := range map[string]message{
		"credit":   {conn: 1, credits: 127},
		"request":  {conn: 1, kind: kindRequest, tag: 1, payload: g["request"][headerLen:]},
		"response": {conn: 1, kind: kindExpected, tag: 1, payload: g["response"][headerLen:]},
	} {
		got, err := parsePacket(g[name])
		if d := cmp.Diff(want, got, cmp.AllowUnexported(message{})); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
	from, err := ofiaddr.Parse(g["request"][headerLen:][:ofiaddr.Len4])
	if want := netip.MustParseAddrPort("10.7.0.2:45483"); err != nil || from != want {
		t.Errorf("the sender of the request is %v, %v, want %v", from, err, want)
	}

	p := make(packet, headerLen)
	fill := func() { copy(p, bytes.Repeat([]byte{0xee}, headerLen)) } // an earlier packet in the same buffer
	for name, put := range map[string]func(){
		"credit":   func() { p.putCredit(1, 127) },
		"request":  func() { p.putRequest(1, 1, 180) },
		"response": func() { p.putExpected(1, 1, 24) },
	} {
		fill()
		put()
		want := bytes.Clone(g[name][:headerLen])
		if name != "credit" {
			want[offCtrlData] = 0 // stale in the capture
		}
		if !bytes.Equal(p, want) {
			t.Errorf("%s: encoded as\n%x, want\n%x", name, p, want)
		}
	}
}

func TestGoldenHandle(t *testing.T) {
	b := golden(t)["handle"]
	if got, err := parseHandle(b); err != nil || got != goldenHandle {
		t.Errorf("%+v, %v, want %+v", got, err, goldenHandle)
	}
	if enc := appendHandle(nil, goldenHandle); !bytes.Equal(enc, b) {
		t.Errorf("encoded as\n%x, want\n%x", enc, b)
	}
	if request := golden(t)["request"]; !bytes.Contains(request, b) {
		t.Error("the handle is not in the request that it is said to come from")
	}
}

// TestAddressStrings checks the spellings that Mercury knows.
func TestAddressStrings(t *testing.T) {
	self, want := netip.MustParseAddr("10.7.0.2"), netip.MustParseAddrPort("10.7.0.1:5555")
	for _, s := range []string{
		"verbs://10.7.0.1:5555", "ofi+verbs://10.7.0.1:5555", "verbs;ofi_rxm://10.7.0.1:5555", "ofi+verbs;ofi_rxm://10.7.0.1:5555",
		"ofi+verbs://rxe0/10.7.0.1:5555", "uid://1#na+sm://2/0#ofi+verbs;ofi_rxm://10.7.0.1:5555",
	} {
		if host, got, err := parseTarget(s, self); host != "" || got != want || err != nil {
			t.Errorf("%s: %q, %v, %v, want %v", s, host, got, err, want)
		}
	}
	if got := formatAddr(want); got != "ofi+verbs;ofi_rxm://10.7.0.1:5555" {
		t.Errorf("the canonical form is %s", got)
	}
	for _, s := range []string{"", "ofi+tcp://10.7.0.1:5555", "verbs:/10.7.0.1:5555", "verbs://10.7.0.1", "verbs://10.7.0.1:0", "verbs://[::1]:1", "ofi+verbs;ofi_rxd://10.7.0.1:1"} {
		if _, got, err := parseTarget(s, self); err == nil {
			t.Errorf("%q is accepted as %v", s, got)
		}
	}
}
