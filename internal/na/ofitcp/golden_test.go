package ofitcp

import (
	"bytes"
	"cinnabar/internal/na/ofiaddr"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden returns the captured messages by name.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/xnet.hex")
	if err != nil {
		t.Fatal(err)
	}
	hexes, name := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] != ' ' {
			name, line, _ = strings.Cut(line, ":")
		}
		hexes[name] += strings.ReplaceAll(line, " ", "")
	}
	m := make(map[string][]byte)
	for name, h := range hexes {
		if m[name], err = hex.DecodeString(h); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return m
}

func TestGoldenCM(t *testing.T) {
	g := golden(t)
	for name, want := range map[string]cmMessage{
		"cm-request":  {typ: cmRequest, version: 1, port: 45423, pid: 27103, probe: probeLittle},
		"cm-response": {typ: cmResponse, version: 0x81, port: 45423, pid: 27097, probe: probeLittle},
		"cm-nack":     {typ: cmNack, port: 43087, pid: 0x1092},
	} {
		b := g[name]
		got, size := parseCMHead(b)
		if size != cmData {
			t.Fatalf("%s: %d bytes of data", name, size)
		}
		got.parseCMData(b)
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if enc := appendCM(nil, want); !bytes.Equal(enc, b) {
			t.Errorf("%s: encoded as\n%x, want\n%x", name, enc, b)
		}
	}
	req := bytes.Clone(g["cm-nack"])
	req[offCMType], req[offCMProbe] = cmRequest, 1
	if got := nackOf(req); !bytes.Equal(got, g["cm-nack"]) {
		t.Errorf("refusal\n%x, want\n%x", got, g["cm-nack"])
	}
}

func TestGoldenMessages(t *testing.T) {
	g := golden(t)
	eq := cmp.AllowUnexported(message{}, iov{})
	for name, want := range map[string]message{
		"request":  {op: opMsg, hdr: 24, payload: 40, cqData: 1},
		"response": {op: opTag, hdr: 24, payload: 20, tag: 1},
		"read-req": {op: opReadReq, hdr: 40, niov: 1, iov: [4]iov{{len: 16, key: 4}}},
		"read-rsp": {op: opReadRsp, hdr: 16, payload: 16},
		"write":    {op: opWrite, hdr: 40, payload: 48, niov: 1, wantAck: true, iov: [4]iov{{len: 48, key: 6}}},
		"ack":      {op: opMsg, hdr: 16, ack: true},
	} {
		var m message
		if n := parseHeader(&m, g[name]); n != want.hdr {
			t.Fatalf("%s: header of %d bytes, want %d", name, n, want.hdr)
		}
		if d := cmp.Diff(m, want, eq); d != "" {
			t.Errorf("%s: got-, want+\n%s", name, d)
		}
		for cut := range want.hdr {
			if n := parseHeader(&m, g[name][:cut]); n != 0 {
				t.Errorf("%s cut to %d bytes: %d, want 0", name, cut, n)
			}
		}
	}
	if n := parseHeader(new(message), g["tag-rts"]); n != badRendezvous || !strings.Contains(malformed(n), "rendezvous") {
		t.Errorf("a rendezvous, which version 0 does not have: %d, %s", n, malformed(n))
	}
}

func TestGoldenEncoded(t *testing.T) {
	g := golden(t)
	check := func(name string, got []byte) {
		t.Helper()
		if want := g[name][:len(got)]; !bytes.Equal(got, want) {
			t.Errorf("%s: encoded as\n%x, want\n%x", name, got, want)
		}
	}
	h := make([]byte, requestHeader)
	header(h).putRequest(1, 64)
	check("request", ofiaddr.Append(h, netip.MustParseAddrPort("127.0.0.1:45423")))
	header(h).putExpected(1, 44)
	check("response", h)
	check("read-req", appendReadReq(nil, []iov{{len: 16, key: 4}}))
	rsp := appendReadRsp(nil, 16)
	rsp[offIOVs] = 1 // stale in the capture
	check("read-rsp", rsp)
	check("write", appendWrite(nil, []iov{{len: 48, key: 6}}, 48))
	check("ack", appendAck(nil))
	check("address", ofiaddr.Append(nil, netip.MustParseAddrPort("127.0.0.1:34387")))
}

func TestGoldenHandle(t *testing.T) {
	b := golden(t)["handle"]
	r, err := parseHandle(b)
	if want := (remote{key: 4, size: 16, access: 1}); err != nil || r != want {
		t.Errorf("%+v, %v, want %+v", r, err, want)
	}
	m := memory{key: 4, buf: make([]byte, 16), size: 16, access: 1}
	got := m.AppendHandle(nil)
	copy(got[handleHead:], b[handleHead:handleHead+8]) // the base address is nobody's business
	if !bytes.Equal(got, b) {
		t.Errorf("encoded as\n%x, want\n%x", got, b)
	}
	for n := range len(b) {
		if _, err := parseHandle(b[:n]); err == nil {
			t.Errorf("accepted when cut to %d bytes", n)
		}
	}
}

// parity(recorded): H33
func TestGoldenAddress(t *testing.T) {
	b := golden(t)["address"]
	a, err := ofiaddr.Parse(b)
	if err != nil || a.String() != "127.0.0.1:34387" {
		t.Errorf("%v, %v", a, err)
	}
	bound := golden(t)["bound-address"]
	if got := ofiaddr.AppendSerialized(nil, a); !bytes.Equal(got, bound) {
		t.Errorf("serialized as % x, want % x", got, bound)
	}
	if got, err := ofiaddr.ParseSerialized(bound); err != nil || got != a {
		t.Errorf("%v, %v, want %v", got, err, a)
	}
	six := netip.MustParseAddrPort("[2001:db8::7]:4660")
	enc := ofiaddr.Append(nil, six)
	if len(enc) != ofiaddr.Len6 || enc[16] != 0x12 || enc[17] != 0x34 {
		t.Errorf("IPv6 address encoded as %x", enc)
	}
	if got, err := ofiaddr.Parse(enc); err != nil || got != six {
		t.Errorf("%v, %v, want %v", got, err, six)
	}
}
