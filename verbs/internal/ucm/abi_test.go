//go:build linux

package ucm

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// part is some bytes of a structure, in hexadecimal digits of a little-endian machine.
type part struct {
	off int
	hex string
}

// golden builds a structure of zeros and parts. Sizes and offsets in the tests were printed by a C program with the kernel's headers.
func golden(t *testing.T, size int, parts ...part) []byte {
	t.Helper()
	if order.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the golden bytes are those of a little-endian machine")
	}
	b := make([]byte, size)
	for _, p := range parts {
		raw, err := hex.DecodeString(strings.ReplaceAll(p.hex, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		copy(b[p.off:], raw)
	}
	return b
}

var (
	testParam = Param{Data: []byte("hello"), QPN: 0x123456, Responder: 3, Depth: 4, Retry: 5, RNRRetry: 6, SRQ: true}
	in4       = netip.MustParseAddrPort("10.9.0.1:7174")
	in6       = netip.MustParseAddrPort("[fe80::1%7]:7174")
)

const (
	in4Hex = "0200 1c06 0a090001 0000000000000000"
	in6Hex = "0a00 1c06 00000000 fe800000000000000000000000000001 07000000"
)

func TestRequests(t *testing.T) {
	const id = 0x0a0b0c0d
	for _, c := range []struct {
		name  string
		got   request
		size  int // with the header, of which the length of the response is 0 here
		parts []part
	}{
		{"create", createRequest(0x1122334455667788), 32, []part{{0, "00000000 1800 0000"}, {8, "8877665544332211"}, {24, "0601 02"}}},
		{"destroy", destroyRequest(id), 24, []part{{0, "01000000 1000 0000"}, {16, "0d0c0b0a"}}},
		{"bind IPv4", bindRequest(id, toSockaddr(in4)), 144, []part{{0, "14000000 8800 0000 0d0c0b0a 1000 0000"}, {16, in4Hex}}},
		{"bind IPv6", bindRequest(id, toSockaddr(in6)), 144, []part{{0, "14000000 8800 0000 0d0c0b0a 1c00 0000"}, {16, in6Hex}}},
		{
			"resolve address", resolveAddrRequest(id, toSockaddr(in4), toSockaddr(in6), 2000), 280,
			[]part{{0, "15000000 1001 0000 0d0c0b0a d0070000 1000 1c00"}, {24, in4Hex}, {152, in6Hex}},
		},
		{
			"resolve address from any", resolveAddrRequest(id, nil, toSockaddr(in4), 2000), 280,
			[]part{{0, "15000000 1001 0000 0d0c0b0a d0070000 0000 1000"}, {152, in4Hex}},
		},
		{"resolve route", resolveRouteRequest(id, 2000), 16, []part{{0, "04000000 0800 0000 0d0c0b0a d0070000"}}},
		{"query", queryRequest(id), 24, []part{{0, "13000000 1000 0000"}, {16, "0d0c0b0a 00000000"}}},
		{"listen", listenRequest(id, 128), 16, []part{{0, "07000000 0800 0000 0d0c0b0a 80000000"}}},
		{
			"connect", connectRequest(id, &testParam), 296,
			[]part{{0, "06000000 2001 0000 56341200"}, {16, "68656c6c6f"}, {272, "05 01 03 04 00 05 06 01 0d0c0b0a"}},
		},
		{
			"accept", acceptRequest(id, 0x1122334455667788, &testParam), 304,
			[]part{{0, "08000000 2801 0000 8877665544332211 56341200"}, {24, "68656c6c6f"}, {280, "05 01 03 04 00 05 06 01 0d0c0b0a"}},
		},
		{"establish", establishRequest(id), 304, []part{{0, "08000000 2801 0000"}, {288, "0d0c0b0a"}}},
		{"reject", rejectRequest(id, []byte("no")), 272, []part{{0, "09000000 0801 0000 0d0c0b0a 02 00"}, {16, "6e6f"}}},
		{"disconnect", disconnectRequest(id), 12, []part{{0, "0a000000 0400 0000 0d0c0b0a"}}},
		{"queue pair attributes", qpAttrRequest(id, 2), 24, []part{{0, "0b000000 1000 0000"}, {16, "0d0c0b0a 02000000"}}},
		{"option", setOptionRequest(id, OptionAckTimeout, 1), 32, []part{{0, "0e000000 1800 0000"}, {16, "0d0c0b0a 00000000 03000000 01000000"}}},
		{"get event", newRequest(cmdGetEvent, getEventSize), 16, []part{{0, "0c000000 0800 0000"}}},
	} {
		if want := golden(t, c.size, c.parts...); !bytes.Equal(c.got, want) {
			t.Errorf("%s: got %x, want %x", c.name, []byte(c.got), want)
		}
	}
}

// TestExchange reads a command with a response from the other end of a pipe.
func TestExchange(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c := &Channel{ids: map[uint64]*ID{}}
	c.fd.Store(int32(w.Fd()))
	if _, err := c.Create(5); err != nil { // the pipe takes it as the kernel does
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := r.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	pointer := b[16:24]
	if bytes.Equal(pointer, make([]byte, 8)) {
		t.Error("the command has no address for its response")
	}
	clear(pointer)
	if want := golden(t, 32, part{0, "00000000 1800 0400 0100000000000000"}, part{24, "0601 02"}); !bytes.Equal(b[:n], want) {
		t.Errorf("got %x, want %x", b[:n], want)
	}
}

func TestLongPrivateData(t *testing.T) {
	long := bytes.Repeat([]byte{7}, 300)
	p := Param{Data: long}
	if got := parseConnParam(connectRequest(1, &p).body(0, connParamSize)); !bytes.Equal(got.Data, long[:255]) {
		t.Errorf("connect has %d bytes", len(got.Data))
	}
	r := rejectRequest(1, long)
	if got := r.body(8, 256); r.body(4, 1)[0] != 255 || !bytes.Equal(got[:255], long[:255]) || got[255] != 0 {
		t.Errorf("reject has %d bytes", r.body(4, 1)[0])
	}
}

func TestParseEvent(t *testing.T) {
	b := golden(t, eventRespSize, part{0, "8877665544332211 0d0c0b0a 08000000 92ffffff 56341200"}, part{28, "68656c6c6f"}, part{284, "05 01 03 04 00 05 06"})
	ev := parseEvent(b)
	if ev.uid != 0x1122334455667788 || ev.id != 0x0a0b0c0d || ev.typ != 8 || ev.status != -int(syscall.ETIMEDOUT) {
		t.Errorf("event %+v", ev)
	}
	p, want := ev.param, testParam
	if !bytes.Equal(p.Data, want.Data) {
		t.Errorf("private data %q", p.Data)
	}
	p.Data, want.Data = nil, nil
	if p.QPN != want.QPN || p.Responder != 3 || p.Depth != 4 || p.Retry != 5 || p.RNRRetry != 6 || !p.SRQ {
		t.Errorf("parameters %+v", p)
	}
	b[284] = 255 // the longest that the byte can say
	if ev := parseEvent(b); len(ev.param.Data) != 255 || !bytes.Equal(ev.param.Data, b[28:28+255]) {
		t.Errorf("private data of %d bytes", len(ev.param.Data))
	}
}

func TestParseQuery(t *testing.T) {
	b := golden(t, queryRespSize, part{0, "14deffff feec41f0 01 00 ffff 1000 1c00"}, part{16, in4Hex}, part{144, in6Hex}, part{272, "09000000"})
	q := parseQuery(b)
	if !q.bound || hex.EncodeToString(q.guid[:]) != "14defffffeec41f0" || q.index != 9 || q.local != in4 || q.remote != in6 {
		t.Errorf("query %+v", q)
	}
	if q := parseQuery(make([]byte, queryRespSize)); q.bound || q.local.IsValid() || q.remote.IsValid() {
		t.Errorf("of an identifier that is not bound: %+v", q)
	}
}

// TestHostileResponses parses any bytes as what the kernel answers.
func TestHostileResponses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytesOf := func(n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "bytes") }
		if ev := parseEvent(bytesOf(eventRespSize)); len(ev.param.Data) > maxPrivateData {
			t.Errorf("private data of %d bytes", len(ev.param.Data))
		}
		parseQuery(bytesOf(queryRespSize))
		parseQPAttr(bytesOf(qpAttrSize))
		junk := rapid.SliceOf(rapid.Byte()).Draw(t, "junk")
		fromSockaddr(junk)
		_, _ = attrString(junk, attrDevName)
		_, _ = netlinkAnswer(junk, nldevGet)
	})
}

// count is the number of identifiers whose events are handed on.
func (c *Channel) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ids)
}

// TestStrayEvents hands on no event that has no identifier, and refuses a request without a listener.
func TestStrayEvents(t *testing.T) {
	c := &Channel{ids: map[uint64]*ID{}}
	c.fd.Store(-1) // so that the kernel's part fails
	for _, typ := range []uint32{0, 4, 9, 11, 99, 1 << 31} {
		for _, uid := range []uint64{0, 1, 1 << 63} {
			if ev, ok := c.event(rawEvent{uid: uid, typ: typ, id: 1}); ok {
				t.Errorf("event %+v", ev)
			}
		}
	}
	if n := c.count(); n != 0 {
		t.Errorf("%d identifiers are left", n)
	}
}

func TestParseQPAttr(t *testing.T) {
	b := make([]byte, qpAttrSize)
	for i := range b {
		b[i] = byte(i)
	}
	golden(t, 0)
	mask, a := parseQPAttr(b)
	if mask != 0x03020100&^uint32(roceBits) || mask>>21&0xf != 0 {
		t.Errorf("mask %#x", mask)
	}
	want := QPAttr{
		State: 0x07060504, CurState: 0x0b0a0908, PathMTU: 0x0f0e0d0c, QKey: 0x17161514, RQPSN: 0x1b1a1918, SQPSN: 0x1f1e1d1c, DestQPN: 0x23222120,
		AH: AHAttr{
			DGID: [16]byte(b[40:56]), FlowLabel: 0x3b3a3938, SGIDIndex: 60, HopLimit: 61, TrafficClass: 62,
			DLID: 0x4140, SL: 66, SrcPathBits: 67, Global: true, Port: 70,
		},
		PKeyIndex: 0x7d7c, Port: 133, Timeout: 134, RetryCount: 135, RNRRetry: 136,
	}
	if a != want {
		t.Errorf("got %+v, want %+v", a, want)
	}
}

func TestSockaddr(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"10.9.0.1:7174", "10.9.0.1:7174"},
		{"[::ffff:10.9.0.1]:1", "10.9.0.1:1"},
		{"[fd09::1]:65535", "[fd09::1]:65535"},
		{"[fe80::1%lo]:2", "[fe80::1%1]:2"},
		{"[fe80::1%12]:2", "[fe80::1%12]:2"},
		{"[fe80::1%nosuchinterface]:2", "[fe80::1]:2"},
		{"[::]:0", "[::]:0"},
		{"0.0.0.0:0", "0.0.0.0:0"},
	} {
		if got := fromSockaddr(toSockaddr(netip.MustParseAddrPort(c.in))); got != netip.MustParseAddrPort(c.out) {
			t.Errorf("%s became %v", c.in, got)
		}
	}
	if s := toSockaddr(netip.AddrPort{}); len(s) != 0 {
		t.Errorf("no address became %x", []byte(s))
	}
}

func TestByteOptions(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c := &Channel{}
	c.fd.Store(int32(w.Fd()))
	id := &ID{ch: c}
	for option, size := range map[int]byte{OptionTypeOfService: 1, OptionReuseAddr: 4, OptionOnlyIPv6: 4, OptionAckTimeout: 1} {
		if err := id.SetOption(option, 1); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := r.Read(b)
		if err != nil || n != 32 || b[28] != size {
			t.Errorf("option %d: %d bytes, the value has %d", option, n, b[28])
		}
	}
}
