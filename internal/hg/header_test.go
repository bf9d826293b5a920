package hg

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var allowUnexported = cmp.AllowUnexported(requestFields{}, responseFields{})

// parity(recorded): H04 H60
func TestRequestGolden(t *testing.T) {
	for _, tc := range []struct {
		name    string
		mode    ChecksumMode
		want    requestFields
		payload string
	}{
		{"request_sum", NoChecksums, requestFields{id: 0x0b88ab9a}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
		{"request_sum", Detect, requestFields{id: 0x0b88ab9a}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
		{"request_margo", Detect, requestFields{id: 0x1c8857ad0000002a}, "\xff\xff\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"},
		{"request_oneway", Detect, requestFields{id: 0xe0be16ba00000000, flags: flagNoResponse}, "\xff\xff\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00bob"},
		{"request_sum_checksums", Checksums, requestFields{form: formLong, id: 0x0b88ab9a, crc: 0xdeb66c15}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
		{"request_sum_checksums", Detect, requestFields{form: formLong, id: 0x0b88ab9a, crc: 0xdeb66c15}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
	} {
		b := golden(t, tc.name)
		f, payload, bad := parseRequest(b, tc.mode)
		if bad != nil {
			t.Errorf("%s mode %d: %v", tc.name, tc.mode, bad)
			continue
		}
		if diff := cmp.Diff(f, tc.want, allowUnexported); diff != "" || string(payload) != tc.payload {
			t.Errorf("%s mode %d: payload %q, fields differ (-got +want):\n%s", tc.name, tc.mode, payload, diff)
		}
		head := make([]byte, f.form.size())
		if putRequest(head, f); !bytes.Equal(append(head, payload...), b) {
			t.Errorf("%s: encodes as % x, want % x", tc.name, head, b[:len(head)])
		}
		for n := range f.form.size() {
			if _, _, bad := parseRequest(b[:n], tc.mode); bad == nil {
				t.Errorf("%s: the first %d bytes pass", tc.name, n)
			}
		}
	}
}

// parity(recorded): H60
func TestResponseGolden(t *testing.T) {
	for _, tc := range []struct {
		name    string
		want    responseFields
		payload string
		exact   bool
	}{
		{"response_sum", responseFields{}, "\x45\x34\x23\x12", true},
		{"response_noentry", responseFields{code: NoEntry}, "", false},
		{"response_sum_checksums", responseFields{form: formLong, crc: 0xf09751ec}, "\x45\x34\x23\x12", true},
	} {
		b := golden(t, tc.name)
		f, payload, bad := parseResponse(b, tc.want.form)
		if bad != nil {
			t.Errorf("%s: %v", tc.name, bad)
			continue
		}
		if diff := cmp.Diff(f, tc.want, allowUnexported); diff != "" || string(payload) != tc.payload {
			t.Errorf("%s: payload %q, fields differ (-got +want):\n%s", tc.name, payload, diff)
		}
		head := make([]byte, f.form.size())
		if putResponse(head, f); tc.exact && !bytes.Equal(append(head, payload...), b) {
			t.Errorf("%s: encodes as % x, want % x", tc.name, head, b[:len(head)])
		}
		for n := range f.form.core() {
			if _, _, bad := parseResponse(b[:n], tc.want.form); bad == nil {
				t.Errorf("%s: the first %d bytes pass", tc.name, n)
			}
		}
	}
}

// TestChecksumVectors has values that builds of Mercury with checksums have sent.
// parity(recorded): H62 H107
func TestChecksumVectors(t *testing.T) {
	if got := requestHeader(golden(t, "request_sum_checksums")).checksum(); got != 0xf671 {
		t.Errorf("request: %#x, want 0xf671", got)
	}
	for _, tc := range []struct {
		head []byte
		want uint16
	}{{[]byte{0, 0x80, 0, 0}, 0x8481}, {[]byte{2, 0x80, 0, 0}, 0x0a5c}} {
		if got := responseHeader(tc.head).checksum(); got != tc.want {
			t.Errorf("response % x: %#x, want %#x", tc.head, got, tc.want)
		}
	}
	if got := crc32c([]byte{0x44, 0x33, 0x22, 0x11, 1, 1, 1, 1}); got != 0xdeb66c15 {
		t.Errorf("payload: %#x, want 0xdeb66c15", got)
	}
	if got := crc16(0, []byte("123456789")); got != 0xd0db { // the check value of CRC-16/T10-DIF
		t.Errorf("crc16: %#x, want 0xd0db", got)
	}
}

// changed returns b with one byte replaced.
func changed(b []byte, at int, to byte) []byte {
	b = bytes.Clone(b)
	b[at] = to
	return b
}

func TestMalformedRequests(t *testing.T) {
	short, long := golden(t, "request_sum"), golden(t, "request_sum_checksums")
	for _, tc := range []struct {
		name   string
		b      []byte
		mode   ChecksumMode
		code   Code
		answer bool
		text   string
	}{
		{"empty", nil, Detect, ProtocolError, false, "request of 0 bytes"},
		{"magic", changed(short, 0, 'G'), Detect, ProtocolError, false, "no Mercury RPC"},
		{"protocol of Mercury 2.0", changed(short, 1, 4), Detect, ProtocolError, false, "protocol version 0x04"},
		{"protocol of the future", changed(short, 1, 6), Detect, ProtocolError, false, "protocol version 0x06"},
		{"checksums unwanted", long, NoChecksums, ProtoNoSupport, true, "built with checksums"},
		{"checksums missing", short, Checksums, ProtoNoSupport, true, "built without checksums"},
		{"id flipped", changed(long, 9, 0x9b), Detect, ChecksumError, false, "checksum of the request header"},
		{"crc16 flipped", changed(long, 12, 0xf7), Checksums, ChecksumError, false, "checksum of the request header"},
		{"payload flipped", changed(long, 20, 0x45), Checksums, ChecksumError, true, "checksum of the payload"},
		{"crc32c flipped", changed(long, 16, 0xdf), Checksums, ChecksumError, true, "checksum of the payload"},
	} {
		_, _, bad := parseRequest(tc.b, tc.mode)
		if bad == nil {
			t.Errorf("%s: passes", tc.name)
		} else if bad.code != tc.code || bad.answer != tc.answer || !strings.Contains(bad.text, tc.text) {
			t.Errorf("%s: %v, answer %v: %q; want %v, %v, %q", tc.name, bad.code, bad.answer, bad.text, tc.code, tc.answer, tc.text)
		}
	}
}

func TestMalformedResponses(t *testing.T) {
	short, long := golden(t, "response_sum"), golden(t, "response_sum_checksums")
	for _, tc := range []struct {
		name string
		b    []byte
		form form
		code Code
		text string
	}{
		{"empty", nil, formShort, ProtocolError, "response of 0 bytes"},
		{"no place for the payload's header", short[:12], formShort, ProtocolError, "response of 12 bytes"},
		{"unexpected checksums", long, formShort, ProtoNoSupport, "built with checksums"},
		{"missing checksums", short, formLong, ProtoNoSupport, "built without checksums"},
		{"code flipped", changed(long, 0, 1), formLong, ChecksumError, "checksum of the response header"},
		{"payload flipped", changed(long, 20, 0x44), formLong, ChecksumError, "checksum of the payload"},
	} {
		_, _, bad := parseResponse(tc.b, tc.form)
		if bad == nil {
			t.Errorf("%s: passes", tc.name)
		} else if bad.code != tc.code || !strings.Contains(bad.text, tc.text) {
			t.Errorf("%s: %v %q, want %v %q", tc.name, bad.code, bad.text, tc.code, tc.text)
		}
	}
}

// TestUnverified has what builds with checksums send at level "none": zeros where checksums belong.
func TestUnverified(t *testing.T) {
	b := golden(t, "request_sum_checksums")
	clear(b[12:20])
	if _, payload, bad := parseRequest(b, Detect); bad != nil || len(payload) != 8 {
		t.Errorf("request: %d bytes, %v", len(payload), bad)
	}
	b = golden(t, "response_sum_checksums")
	clear(b[4:6])
	clear(b[16:20])
	if _, payload, bad := parseResponse(b, formLong); bad != nil || len(payload) != 4 {
		t.Errorf("response: %d bytes, %v", len(payload), bad)
	}
}

// TestUnmarkedUnverified has what builds with checksums before 2.4.1 send at level "none". Nothing in it tells the build but
// the configuration, unless the payload begins with something else than zeros.
func TestUnmarkedUnverified(t *testing.T) {
	b := golden(t, "request_sum_checksums")
	clear(b[12:20])
	b[10] = 0
	if f, payload, bad := parseRequest(b, Checksums); bad != nil || f.form != formLong || len(payload) != 8 {
		t.Errorf("%+v, %d bytes, %v", f, len(payload), bad)
	}
	b[16] = 1 // the first byte of a payload behind short headers
	if _, _, bad := parseRequest(b, Checksums); bad == nil || bad.code != ProtoNoSupport || !bad.answer || !strings.Contains(bad.text, "set Config.Checksums to NoChecksums or ChecksumsAuto") {
		t.Errorf("short headers: %v", bad)
	}
}

// TestStaleChecksums has what builds with checksums send for RPCs without arguments or result: any value in the place of
// the payload's checksum.
func TestStaleChecksums(t *testing.T) {
	b := make([]byte, formLong.size())
	putRequest(b, requestFields{form: formLong, id: 1, crc: 0xd6611f2b})
	for _, mode := range []ChecksumMode{Checksums, Detect} {
		if _, _, bad := parseRequest(b, mode); bad != nil {
			t.Errorf("request: %v", bad)
		}
	}
	putResponse(b, responseFields{form: formLong, crc: 0xd6611f2b})
	if _, _, bad := parseResponse(b, formLong); bad != nil {
		t.Errorf("response: %v", bad)
	}
}

// TestUnmarkedChecksums has a request of a build with checksums before 2.4.1, which does not set the flag.
func TestUnmarkedChecksums(t *testing.T) {
	f := requestFields{form: formLong, id: 99, crc: crc32c([]byte("abc"))}
	b := append(make([]byte, formLong.size()), "abc"...)
	putRequest(b, f)
	b[10] = 0
	sum := requestHeader(b).checksum()
	b[12], b[13] = byte(sum>>8), byte(sum)
	for _, mode := range []ChecksumMode{Checksums, Detect} {
		if got, payload, bad := parseRequest(b, mode); bad != nil || got.form != formLong || string(payload) != "abc" {
			t.Errorf("mode %d: %+v %q %v", mode, got, payload, bad)
		}
	}
	if got, payload, bad := parseRequest(b, NoChecksums); bad != nil || got.form != formShort || len(payload) != 7 {
		t.Errorf("without checksums: %+v %q %v", got, payload, bad)
	}
}

func FuzzRequestHeader(f *testing.F) {
	for _, name := range goldens(f, "request_") {
		for mode := range uint8(3) {
			f.Add(golden(f, name), mode)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, mode uint8) {
		got, payload, bad := parseRequest(b, ChecksumMode(mode%3))
		if bad != nil {
			return
		}
		head := make([]byte, got.form.size())
		putRequest(head, got)
		again, _, bad := parseRequest(append(head, payload...), ChecksumMode(mode%3))
		if bad != nil {
			t.Fatalf("% x is read as %+v, encodes as % x, which is refused: %v", b, got, head, bad)
		}
		if again.form == got.form && again != got {
			t.Fatalf("% x is read as %+v, encodes as % x, which is read as %+v", b, got, head, again)
		}
	})
}

func FuzzResponseHeader(f *testing.F) {
	for _, name := range goldens(f, "response_") {
		f.Add(golden(f, name), false)
		f.Add(golden(f, name), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, long bool) {
		want := formShort
		if long {
			want = formLong
		}
		got, payload, bad := parseResponse(b, want)
		if bad != nil {
			return
		}
		head := make([]byte, want.size())
		putResponse(head, got)
		again, _, bad := parseResponse(append(head, payload...), want)
		if bad != nil || again != got {
			t.Fatalf("% x is read as %+v, encodes as % x, which is read as %+v, %v", b, got, head, again, bad)
		}
	})
}
