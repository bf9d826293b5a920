package wire

import (
	"bytes"
	"strings"
	"testing"

	"cinnabar/codes"

	"github.com/google/go-cmp/cmp"
)

// parity(recorded): H04 H60
func TestRequestGolden(t *testing.T) {
	for _, tc := range []struct {
		name    string
		mode    ChecksumMode
		want    Request
		payload string
	}{
		{"request_sum", NoChecksums, Request{ID: 0x0b88ab9a}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
		{"request_sum", Detect, Request{ID: 0x0b88ab9a}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
		{"request_margo", Detect, Request{ID: 0x1c8857ad0000002a}, "\xff\xff\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"},
		{"request_oneway", Detect, Request{ID: 0xe0be16ba00000000, Flags: FlagNoResponse}, "\xff\xff\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00bob"},
		{"request_sum_checksums", Checksums, Request{Form: FormLong, ID: 0x0b88ab9a, CRC: 0xdeb66c15}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
		{"request_sum_checksums", Detect, Request{Form: FormLong, ID: 0x0b88ab9a, CRC: 0xdeb66c15}, "\x44\x33\x22\x11\x01\x01\x01\x01"},
	} {
		b := golden(t, tc.name)
		f, payload, bad := ParseRequest(b, tc.mode)
		if bad != nil {
			t.Errorf("%s mode %d: %v", tc.name, tc.mode, bad)
			continue
		}
		if diff := cmp.Diff(f, tc.want); diff != "" || string(payload) != tc.payload {
			t.Errorf("%s mode %d: payload %q, fields differ (-got +want):\n%s", tc.name, tc.mode, payload, diff)
		}
		head := make([]byte, f.Form.Size())
		if PutRequest(head, f); !bytes.Equal(append(head, payload...), b) {
			t.Errorf("%s: encodes as % x, want % x", tc.name, head, b[:len(head)])
		}
		for n := range f.Form.Size() {
			if _, _, bad := ParseRequest(b[:n], tc.mode); bad == nil {
				t.Errorf("%s: the first %d bytes pass", tc.name, n)
			}
		}
	}
}

// parity(recorded): H60
func TestResponseGolden(t *testing.T) {
	for _, tc := range []struct {
		name    string
		want    Response
		payload string
		exact   bool
	}{
		{"response_sum", Response{}, "\x45\x34\x23\x12", true},
		{"response_noentry", Response{Code: codes.NoEntry}, "", false},
		{"response_sum_checksums", Response{Form: FormLong, CRC: 0xf09751ec}, "\x45\x34\x23\x12", true},
	} {
		b := golden(t, tc.name)
		f, payload, bad := ParseResponse(b, tc.want.Form)
		if bad != nil {
			t.Errorf("%s: %v", tc.name, bad)
			continue
		}
		if diff := cmp.Diff(f, tc.want); diff != "" || string(payload) != tc.payload {
			t.Errorf("%s: payload %q, fields differ (-got +want):\n%s", tc.name, payload, diff)
		}
		head := make([]byte, f.Form.Size())
		if PutResponse(head, f); tc.exact && !bytes.Equal(append(head, payload...), b) {
			t.Errorf("%s: encodes as % x, want % x", tc.name, head, b[:len(head)])
		}
		for n := range f.Form.CoreSize() {
			if _, _, bad := ParseResponse(b[:n], tc.want.Form); bad == nil {
				t.Errorf("%s: the first %d bytes pass", tc.name, n)
			}
		}
	}
}

// TestChecksumVectors has values that builds of Mercury with checksums have sent.
// parity(recorded): H62 H107
func TestChecksumVectors(t *testing.T) {
	if got := RequestHeader(golden(t, "request_sum_checksums")).Checksum(); got != 0xf671 {
		t.Errorf("request: %#x, want 0xf671", got)
	}
	for _, tc := range []struct {
		head []byte
		want uint16
	}{{[]byte{0, 0x80, 0, 0}, 0x8481}, {[]byte{2, 0x80, 0, 0}, 0x0a5c}} {
		if got := ResponseHeader(tc.head).Checksum(); got != tc.want {
			t.Errorf("response % x: %#x, want %#x", tc.head, got, tc.want)
		}
	}
	if got := CRC32C([]byte{0x44, 0x33, 0x22, 0x11, 1, 1, 1, 1}); got != 0xdeb66c15 {
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
		code   codes.Code
		answer bool
		text   string
	}{
		{"empty", nil, Detect, codes.ProtocolError, false, "request of 0 bytes"},
		{"magic", changed(short, 0, 'G'), Detect, codes.ProtocolError, false, "no Mercury RPC"},
		{"protocol of Mercury 2.0", changed(short, 1, 4), Detect, codes.ProtocolError, false, "protocol version 0x04"},
		{"protocol of the future", changed(short, 1, 6), Detect, codes.ProtocolError, false, "protocol version 0x06"},
		{"checksums unwanted", long, NoChecksums, codes.ProtoNoSupport, true, "built with checksums"},
		{"checksums missing", short, Checksums, codes.ProtoNoSupport, true, "built without checksums"},
		{"id flipped", changed(long, 9, 0x9b), Detect, codes.ChecksumError, false, "checksum of the request header"},
		{"crc16 flipped", changed(long, 12, 0xf7), Checksums, codes.ChecksumError, false, "checksum of the request header"},
		{"payload flipped", changed(long, 20, 0x45), Checksums, codes.ChecksumError, true, "checksum of the payload"},
		{"crc32c flipped", changed(long, 16, 0xdf), Checksums, codes.ChecksumError, true, "checksum of the payload"},
	} {
		_, _, bad := ParseRequest(tc.b, tc.mode)
		if bad == nil {
			t.Errorf("%s: passes", tc.name)
		} else if bad.Code != tc.code || bad.Answer != tc.answer || !strings.Contains(bad.text, tc.text) {
			t.Errorf("%s: %v, answer %v: %q; want %v, %v, %q", tc.name, bad.Code, bad.Answer, bad.text, tc.code, tc.answer, tc.text)
		}
	}
}

func TestMalformedResponses(t *testing.T) {
	short, long := golden(t, "response_sum"), golden(t, "response_sum_checksums")
	for _, tc := range []struct {
		name string
		b    []byte
		form Form
		code codes.Code
		text string
	}{
		{"empty", nil, FormShort, codes.ProtocolError, "response of 0 bytes"},
		{"no place for the payload's header", short[:12], FormShort, codes.ProtocolError, "response of 12 bytes"},
		{"unexpected checksums", long, FormShort, codes.ProtoNoSupport, "built with checksums"},
		{"missing checksums", short, FormLong, codes.ProtoNoSupport, "built without checksums"},
		{"code flipped", changed(long, 0, 1), FormLong, codes.ChecksumError, "checksum of the response header"},
		{"payload flipped", changed(long, 20, 0x44), FormLong, codes.ChecksumError, "checksum of the payload"},
	} {
		_, _, bad := ParseResponse(tc.b, tc.form)
		if bad == nil {
			t.Errorf("%s: passes", tc.name)
		} else if bad.Code != tc.code || !strings.Contains(bad.text, tc.text) {
			t.Errorf("%s: %v %q, want %v %q", tc.name, bad.Code, bad.text, tc.code, tc.text)
		}
	}
}

// TestUnverified has what builds with checksums send at level "none": zeros where checksums belong.
func TestUnverified(t *testing.T) {
	b := golden(t, "request_sum_checksums")
	clear(b[12:20])
	if _, payload, bad := ParseRequest(b, Detect); bad != nil || len(payload) != 8 {
		t.Errorf("request: %d bytes, %v", len(payload), bad)
	}
	b = golden(t, "response_sum_checksums")
	clear(b[4:6])
	clear(b[16:20])
	if _, payload, bad := ParseResponse(b, FormLong); bad != nil || len(payload) != 4 {
		t.Errorf("response: %d bytes, %v", len(payload), bad)
	}
}

// TestUnmarkedUnverified has what builds with checksums before 2.4.1 send at level "none". Nothing in it tells the build but
// the configuration, unless the payload begins with something else than zeros.
func TestUnmarkedUnverified(t *testing.T) {
	b := golden(t, "request_sum_checksums")
	clear(b[12:20])
	b[10] = 0
	if f, payload, bad := ParseRequest(b, Checksums); bad != nil || f.Form != FormLong || len(payload) != 8 {
		t.Errorf("%+v, %d bytes, %v", f, len(payload), bad)
	}
	b[16] = 1 // the first byte of a payload behind short headers
	if _, _, bad := ParseRequest(b, Checksums); bad == nil || bad.Code != codes.ProtoNoSupport || !bad.Answer || !strings.Contains(bad.text, "set Config.Checksums to NoChecksums or ChecksumsAuto") {
		t.Errorf("short headers: %v", bad)
	}
}

// TestStaleChecksums has what builds with checksums send for RPCs without arguments or result: any value in the place of
// the payload's checksum.
func TestStaleChecksums(t *testing.T) {
	b := make([]byte, FormLong.Size())
	PutRequest(b, Request{Form: FormLong, ID: 1, CRC: 0xd6611f2b})
	for _, mode := range []ChecksumMode{Checksums, Detect} {
		if _, _, bad := ParseRequest(b, mode); bad != nil {
			t.Errorf("request: %v", bad)
		}
	}
	PutResponse(b, Response{Form: FormLong, CRC: 0xd6611f2b})
	if _, _, bad := ParseResponse(b, FormLong); bad != nil {
		t.Errorf("response: %v", bad)
	}
}

// TestUnmarkedChecksums has a request of a build with checksums before 2.4.1, which does not set the flag.
func TestUnmarkedChecksums(t *testing.T) {
	f := Request{Form: FormLong, ID: 99, CRC: CRC32C([]byte("abc"))}
	b := append(make([]byte, FormLong.Size()), "abc"...)
	PutRequest(b, f)
	b[10] = 0
	sum := RequestHeader(b).Checksum()
	b[12], b[13] = byte(sum>>8), byte(sum)
	for _, mode := range []ChecksumMode{Checksums, Detect} {
		if got, payload, bad := ParseRequest(b, mode); bad != nil || got.Form != FormLong || string(payload) != "abc" {
			t.Errorf("mode %d: %+v %q %v", mode, got, payload, bad)
		}
	}
	if got, payload, bad := ParseRequest(b, NoChecksums); bad != nil || got.Form != FormShort || len(payload) != 7 {
		t.Errorf("without checksums: %+v %q %v", got, payload, bad)
	}
}

func FuzzRequestHeader(f *testing.F) {
	for _, b := range goldens(f, "request_") {
		for mode := range uint8(3) {
			f.Add(b, mode)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, mode uint8) {
		got, payload, bad := ParseRequest(b, ChecksumMode(mode%3))
		if bad != nil {
			return
		}
		head := make([]byte, got.Form.Size())
		PutRequest(head, got)
		again, _, bad := ParseRequest(append(head, payload...), ChecksumMode(mode%3))
		if bad != nil {
			t.Fatalf("% x is read as %+v, encodes as % x, which is refused: %v", b, got, head, bad)
		}
		if again.Form == got.Form && again != got {
			t.Fatalf("% x is read as %+v, encodes as % x, which is read as %+v", b, got, head, again)
		}
	})
}

func FuzzResponseHeader(f *testing.F) {
	for _, b := range goldens(f, "response_") {
		f.Add(b, false)
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, long bool) {
		want := FormShort
		if long {
			want = FormLong
		}
		got, payload, bad := ParseResponse(b, want)
		if bad != nil {
			return
		}
		head := make([]byte, want.Size())
		PutResponse(head, got)
		again, _, bad := ParseResponse(append(head, payload...), want)
		if bad != nil || again != got {
			t.Fatalf("% x is read as %+v, encodes as % x, which is read as %+v, %v", b, got, head, again, bad)
		}
	})
}
