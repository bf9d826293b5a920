package native

import (
	"bytes"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/codes"
)

// golden returns the bytes of a file of testdata: hexadecimal digits, with comments behind #.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// exported compares the fields of envelopes.
var exported = cmp.AllowUnexported(requestHead{}, responseHead{}, failure{}, rawDetail{})

// trace is that of the examples of the specification.
var trace = Trace{
	TraceID: [16]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36},
	SpanID:  [8]byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}, Flags: 1, State: "congo=t61rcWkgMzE",
}

var goldenRequests = map[string]requestHead{
	"request_plain":  {id: 1},
	"request_stream": {id: 1, stream: true},
	"request_full": {
		id: 0x0102030405060708, remaining: 1500 * time.Millisecond, trace: trace, compressor: "gzip", accepts: true, compressed: true, size: 300,
		metadata: Metadata{"tenant": "blue", "a": ""},
	},
}

var goldenResponses = map[string]responseHead{
	"response_plain":      {},
	"response_compressed": {compressed: true, size: 1 << 20, metadata: Metadata{"cost": "3"}},
	"response_failure": {failure: &failure{
		code: codes.NoMem, text: "no room", truncated: true, details: []rawDetail{{"quota", []byte{7, 0, 0, 0}}, {"place", nil}},
	}},
}

// TestGolden compares the envelopes with the bytes that docs/wire-native.md describes.
// parity: A04
func TestGolden(t *testing.T) {
	for name, want := range goldenRequests {
		b := golden(t, name)
		if got := appendRequestHead(nil, &want); !bytes.Equal(got, b) {
			t.Errorf("%s:\ngot  %x\nwant %x", name, got, b)
		}
		got, n, err := parseRequestHead(append(b[:len(b):len(b)], "arguments"...))
		if err != nil || n != len(b) {
			t.Errorf("%s: length %d, %v", name, n, err)
		}
		if diff := cmp.Diff(want, got, exported); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for n := range b {
			if _, _, err := parseRequestHead(b[:n]); err == nil {
				t.Errorf("%s: the first %d bytes are accepted", name, n)
			}
		}
	}
	for name, want := range goldenResponses {
		b := golden(t, name)
		if got := appendResponseHead(nil, &want); !bytes.Equal(got, b) {
			t.Errorf("%s:\ngot  %x\nwant %x", name, got, b)
		}
		got, n, err := parseResponseHead(append(b[:len(b):len(b)], "results"...))
		if err != nil || n != len(b) {
			t.Errorf("%s: length %d, %v", name, n, err)
		}
		if f := got.failure; f != nil {
			for i := range f.details {
				if len(f.details[i].data) == 0 {
					f.details[i].data = nil
				}
			}
		}
		if diff := cmp.Diff(want, got, exported); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for n := range b {
			if _, _, err := parseResponseHead(b[:n]); err == nil {
				t.Errorf("%s: the first %d bytes are accepted", name, n)
			}
		}
	}
	b := golden(t, "cancel")
	if got := appendCancel(nil, []uint64{1, 0x0102030405060708}); !bytes.Equal(got, b) {
		t.Errorf("cancel:\ngot  %x\nwant %x", got, b)
	}
	for n := range b {
		if _, err := parseCancel(b[:n]); err == nil {
			t.Errorf("cancel: the first %d bytes are accepted", n)
		}
	}
	if ids, err := parseCancel(b); err != nil || !cmp.Equal(ids, []uint64{1, 0x0102030405060708}) {
		t.Errorf("cancel: %v, %v", ids, err)
	}
}

// with returns a copy of b with other bytes at off.
func with(b []byte, off int, bytes ...byte) []byte {
	b = append([]byte(nil), b...)
	copy(b[off:], bytes)
	return b
}

// ended returns an envelope with more bytes behind its last field, and its length.
func ended(b []byte, more ...byte) []byte { return endHead(append(b[:len(b):len(b)], more...), 0) }

// request returns the envelope h with one change of its fields that no program makes.
func madeRequest(change func(*requestHead)) []byte {
	h := goldenRequests["request_full"]
	h.metadata = maps.Clone(h.metadata)
	change(&h)
	return appendRequestHead(nil, &h)
}

func madeResponse(change func(*responseHead)) []byte {
	h := goldenResponses["response_failure"]
	f := *h.failure
	h.failure = &f
	change(&h)
	return appendResponseHead(nil, &h)
}

// TestMalformedRequest has one wrong field in each request.
func TestMalformedRequest(t *testing.T) {
	plain, full := golden(t, "request_plain"), golden(t, "request_full")
	for _, c := range []struct {
		name string
		b    []byte
		code codes.Code
		want string
	}{
		{"empty", nil, codes.ProtoNoSupport, "no envelope"},
		{"other magic", with(plain, 0, 'x'), codes.ProtoNoSupport, "no envelope"},
		{"a response", golden(t, "response_plain"), codes.ProtoNoSupport, "no envelope"},
		{"old version", with(plain, offVersion, 0), codes.ProtoNoSupport, "the caller speaks an old version of native envelopes, 0; this program speaks version 1"},
		{"new version", with(plain, offVersion, 2), codes.ProtoNoSupport, "the caller speaks a newer version of native envelopes, 2; this program speaks version 1"},
		{"unknown flag", with(plain, offFlags, 16), codes.ProtocolError, "flags 0x10"},
		{"length below the fixed part", with(plain, offLength, 23, 0), codes.ProtocolError, "length 23"},
		{"length beyond the message", with(plain, offLength, 0, 1), codes.ProtocolError, "length 256, the message has 25"},
		{"length within a field", with(full, offLength, 60, 0), codes.ProtocolError, "runs past its end"},
		{"bytes behind the last field", ended(plain, 0), codes.ProtocolError, "1 bytes behind its last field"},
		{"call id 0", with(plain, 8, 0), codes.ProtocolError, "call id is 0"},
		{"remaining time below 0", with(plain, 23, 0x80), codes.ProtocolError, "remaining time of"},
		{"trace id 0", madeRequest(func(h *requestHead) { h.trace.TraceID = [16]byte{} }), codes.ProtocolError, "trace id is zero"},
		{"span id 0", madeRequest(func(h *requestHead) { h.trace.SpanID = [8]byte{} }), codes.ProtocolError, "span id is zero"},
		{"trace flags", madeRequest(func(h *requestHead) { h.trace.Flags = 4 }), codes.ProtocolError, "flags 0x04"},
		{"tracestate", madeRequest(func(h *requestHead) { h.trace.State = "a" }), codes.ProtocolError, "tracestate member"},
		{"tracestate with spaces", madeRequest(func(h *requestHead) { h.trace.State = "a=1, b=1" }), codes.ProtocolError, "has spaces"},
		{"name of Compressor", madeRequest(func(h *requestHead) { h.compressor = "\x1b" }), codes.ProtocolError, `"\x1b" is no name`},
		{"no name of Compressor", madeRequest(func(h *requestHead) { h.compressor = "" }), codes.ProtocolError, `"" is no name`},
		{"long name of Compressor", madeRequest(func(h *requestHead) { h.compressor = strings.Repeat("a", maxName+1) }), codes.ProtocolError, `is no name`},
		{"metadata key", madeRequest(func(h *requestHead) { h.metadata["\n"] = "" }), codes.ProtocolError, `metadata key "\n"`},
		{"empty metadata key", madeRequest(func(h *requestHead) { h.metadata[""] = "" }), codes.ProtocolError, `metadata key ""`},
		{"keys out of order", ended(plain[:24], 2, 1, 'b', 0, 0, 1, 'a', 0, 0), codes.ProtocolError, `"b" and "a" are not in order`},
		{"a key twice", ended(plain[:24], 2, 1, 'a', 0, 0, 1, 'a', 0, 0), codes.ProtocolError, `not in order`},
		{"too many keys", ended(plain[:24], 65), codes.ProtocolError, `metadata has 65 keys, at most 64`},
		{"too many bytes", madeRequest(func(h *requestHead) { h.metadata["k"] = strings.Repeat("v", MaxMetadataBytes) }), codes.ProtocolError, `more than 16384 bytes`},
		{"a key fewer than announced", with(full, len(full)-18, 3), codes.ProtocolError, `runs past its end`},
	} {
		_, _, err := parseRequestHead(c.b)
		if codes.Of(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.code, c.want)
		}
	}
}

// TestMalformedResponse has one wrong field in each response.
func TestMalformedResponse(t *testing.T) {
	plain := golden(t, "response_plain")
	for _, c := range []struct {
		name string
		b    []byte
		code codes.Code
		want string
	}{
		{"other magic", with(plain, 3, 'q'), codes.ProtoNoSupport, "no envelope"},
		{"old version", with(plain, offVersion, 0), codes.ProtoNoSupport, "the server speaks an old version of native envelopes, 0"},
		{"unknown flag", with(plain, offFlags, 8), codes.ProtocolError, "flags 0x08"},
		{"length below the fixed part", with(plain, offLength, 7, 0), codes.ProtocolError, "length 7"},
		{"length beyond the message", with(plain, offLength, 10, 0), codes.ProtocolError, "length 10, the message has 9"},
		{"compressed failure", madeResponse(func(h *responseHead) { h.compressed = true }), codes.ProtocolError, "contradict"},
		{"part of no failure left out", with(plain, offFlags, flagTruncated), codes.ProtocolError, "contradict"},
		{"failure without fields", with(plain, offFlags, flagFailure), codes.ProtocolError, "runs past its end"},
		{"failure of code 0", madeResponse(func(h *responseHead) { h.failure.code = 0 }), codes.ProtocolError, "code 0"},
		{"long text", madeResponse(func(h *responseHead) { h.failure.text = strings.Repeat("t", maxText+1) }), codes.ProtocolError, "4097 bytes, at most 4096"},
		{"many details", madeResponse(func(h *responseHead) { h.failure.details = make([]rawDetail, maxDetails+1) }), codes.ProtocolError, "17 details, at most 16"},
		{"name of a detail", madeResponse(func(h *responseHead) { h.failure.details = []rawDetail{{"A", nil}} }), codes.ProtocolError, `"A" is no name of a detail`},
		{"long details", madeResponse(func(h *responseHead) {
			h.failure.details = []rawDetail{{"a", make([]byte, maxDetailBytes/2)}, {"b", make([]byte, maxDetailBytes/2)}}
		}), codes.ProtocolError, "more than 16384 bytes"},
		{"a detail fewer than announced", with(golden(t, "response_failure"), 22, 3), codes.ProtocolError, "runs past its end"},
	} {
		_, _, err := parseResponseHead(c.b)
		if codes.Of(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.code, c.want)
		}
	}
}

// TestMalformedCancel has one wrong field in each cancel.
func TestMalformedCancel(t *testing.T) {
	b := golden(t, "cancel")
	for want, b := range map[string][]byte{
		"no envelope":                              with(b, 0, 'x'),
		"an old version":                           with(b, offVersion, 0),
		"flags 0x01":                               with(b, offFlags, 1),
		"a cancel of 0 calls":                      with(b, offLength, 0),
		"a cancel of 257 calls; it has 1 to 256":   with(b, offLength, 1, 1),
		"a cancel of 3 calls has 32 bytes, not 24": with(b, offLength, 3),
		"a cancel of 1 calls has 16 bytes, not 24": with(b, offLength, 1),
	} {
		if _, err := parseCancel(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// FuzzEnvelope parses hostile bytes as each kind of envelope. Those that are accepted are encoded to the same bytes.
func FuzzEnvelope(f *testing.F) {
	for name := range goldenRequests {
		f.Add(golden(f, name))
	}
	for name := range goldenResponses {
		f.Add(golden(f, name))
	}
	f.Add(golden(f, "cancel"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, n, err := parseRequestHead(b); err == nil {
			if got := appendRequestHead(nil, &h); !bytes.Equal(got, b[:n]) {
				t.Errorf("request\n%x becomes\n%x", b[:n], got)
			}
		} else if errors.Is(err, codes.OtherError) {
			t.Errorf("error %v has no code", err)
		}
		if h, n, err := parseResponseHead(b); err == nil {
			if got := appendResponseHead(nil, &h); !bytes.Equal(got, b[:n]) {
				t.Errorf("response\n%x becomes\n%x", b[:n], got)
			}
			if h.failure != nil {
				if text := fail.received(h.failure, h.metadata).Error(); strings.ContainsAny(text, "\x1b\n\r") {
					t.Errorf("text %q is not escaped", text)
				}
			}
		}
		if ids, err := parseCancel(b); err == nil {
			if got := appendCancel(nil, ids); !bytes.Equal(got, b) {
				t.Errorf("cancel\n%x becomes\n%x", b, got)
			}
		}
	})
}

var fail = &New[struct{}, struct{}]("fail", WithDetail[sizeError]("quota")).spec

type sizeError struct{ N uint32 }

func (sizeError) Error() string { return "size" }
