package hg

import (
	"encoding/binary"
	"fmt"
)

// badMessage says what is wrong with a message from a peer.
type badMessage struct {
	code Code
	text string
	// answer tells that the peer can be told: its form is known and it waits.
	answer bool
}

func (e *badMessage) Error() string { return e.text }

func malformed(format string, args ...any) *badMessage {
	return &badMessage{code: ProtocolError, text: fmt.Sprintf(format, args...)}
}

func corrupt(what string, got, want any) *badMessage {
	return &badMessage{code: ChecksumError, text: fmt.Sprintf("checksum of the %s is %#x, computed %#x", what, got, want)}
}

// mismatch names the choices of the root package's Config, which are what programs have.
func mismatch(peer form, own ChecksumMode) *badMessage {
	remedy := "set Config.Checksums to WithChecksums or ChecksumsAuto"
	if own == Checksums {
		remedy = "set Config.Checksums to NoChecksums or ChecksumsAuto"
	}
	return &badMessage{
		code: ProtoNoSupport, answer: true,
		text: fmt.Sprintf("peer's Mercury is %s, this process speaks the other layout: %s", peer, remedy),
	}
}

// parseRequest reads the headers of a request, according to what this process speaks, and returns the payload behind
// them. b is hostile. When bad.answer is set, the fields are those to answer with.
//
// A checksum field that is zero has not been written: builds with checksums leave it so at checksum level "none". Such
// requests pass unverified, as they do in C.
func parseRequest(b []byte, mode ChecksumMode) (f requestFields, payload []byte, bad *badMessage) {
	if len(b) < coreShort {
		return f, nil, malformed("request of %d bytes, its header has at least %d", len(b), coreShort)
	}
	h := requestHeader(b)
	if h.magic() != magic {
		return f, nil, malformed("request starts with byte %#02x, not %#02x: no Mercury RPC", h.magic(), magic)
	}
	if h.protocol() != protocol {
		return f, nil, malformed("request of protocol version %#02x, this process speaks %#02x (Mercury 2.1 or later)", h.protocol(), protocol)
	}
	f = requestFields{form: formOf(b, mode), id: h.id(), flags: h.flags() &^ flagHasChecksums, cookie: h.cookie()}
	if mode == NoChecksums && f.form == formLong || mode == Checksums && f.form == formShort {
		return f, nil, mismatch(f.form, mode)
	}
	if len(b) < f.form.size() {
		return f, nil, malformed("request of %d bytes, its headers have %d", len(b), f.form.size())
	}
	payload = b[f.form.size():]
	if f.form == formShort {
		return f, payload, nil
	}
	if got, want := h.crc16(), h.checksum(); got != 0 && got != want {
		return f, nil, corrupt("request header", got, want)
	}
	f.crc = binary.BigEndian.Uint32(b[coreLong:])
	return f, payload, f.verify(payload)
}

// formOf tells the layout of a request. Builds before 2.4.1 do not mark it; then only valid checksums in the places of
// the long layout show it.
func formOf(b []byte, mode ChecksumMode) form {
	h := requestHeader(b)
	if h.flags()&flagHasChecksums != 0 {
		return formLong
	}
	if mode == NoChecksums || len(b) < formLong.size() {
		return formShort
	}
	if mode == Checksums && h.crc16() == 0 && binary.BigEndian.Uint32(b[coreLong:]) == 0 {
		return formLong // at checksum level "none", says the configuration; a payload may begin with zeros, but Margo's do not
	}
	if h.crc16() == 0 || h.crc16() != h.checksum() {
		return formShort
	}
	// Sixteen bits may agree by accident where a build without checksums leaves stale memory.
	if mode == Detect && binary.BigEndian.Uint32(b[coreLong:]) != crc32c(b[formLong.size():]) {
		return formShort
	}
	return formLong
}

// verify checks the payload's checksum unless the payload is yet to be pulled.
func (f *requestFields) verify(payload []byte) *badMessage {
	if f.flags&flagMoreData != 0 {
		return nil
	}
	return verifyPayload(f.crc, payload, f.flags&flagNoResponse == 0)
}

// verifyPayload compares a payload with a checksum from a header; 0 has not been written. Nor has that of an RPC without
// arguments or result: C then leaves stale memory in its place, and does not look at it.
func verifyPayload(crc uint32, payload []byte, answer bool) *badMessage {
	if crc == 0 || len(payload) == 0 {
		return nil
	}
	want := crc32c(payload)
	if crc == want {
		return nil
	}
	bad := corrupt("payload", crc, want)
	bad.answer = answer
	return bad
}

// parseResponse reads the headers of a response to a request in the given form, and returns the payload behind them. b
// is hostile. A response that carries an error has nothing else of meaning.
func parseResponse(b []byte, want form) (f responseFields, payload []byte, bad *badMessage) {
	if len(b) < coreShort {
		return f, nil, malformed("response of %d bytes, its header has at least %d", len(b), coreShort)
	}
	h := responseHeader(b)
	f = responseFields{form: want, code: h.code(), flags: h.flags() &^ flagHasChecksums, cookie: h.cookie()}
	if bad := checkForm(b, want); bad != nil {
		return f, nil, bad
	}
	if len(b) < want.core() || f.code == Success && len(b) < want.size() {
		return f, nil, malformed("response of %d bytes, its headers have %d", len(b), want.size())
	}
	if want == formLong {
		if got, want := h.crc16(), h.checksum(); got != 0 && got != want {
			return f, nil, corrupt("response header", got, want)
		}
	}
	if f.code != Success {
		return f, nil, nil
	}
	payload = b[want.size():]
	if want == formShort {
		return f, payload, nil
	}
	f.crc = binary.BigEndian.Uint32(b[coreLong:])
	if f.flags&flagMoreData != 0 {
		return f, payload, nil
	}
	return f, payload, verifyPayload(f.crc, payload, false)
}

// checkForm tells whether a response has the form of its request: builds of 2.4.1 mark it, older ones repeat the
// request's mark.
func checkForm(b []byte, want form) *badMessage {
	marked := responseHeader(b).flags()&flagHasChecksums != 0
	switch {
	case marked && want == formShort:
		return mismatch(formLong, NoChecksums)
	case !marked && want == formLong:
		return mismatch(formShort, Checksums)
	}
	return nil
}
