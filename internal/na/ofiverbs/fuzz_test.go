package ofiverbs

import (
	"bytes"
	"testing"
)

// FuzzConnectionData reads arbitrary private data. Accepted data encodes to the same bytes again.
func FuzzConnectionData(f *testing.F) {
	for _, b := range golden(f) {
		f.Add(b)
	}
	f.Add(appendExtension(appendAccept(nil, goldenAccept), goldenHandle.at))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRequest(b); err == nil {
			if enc := appendRequest(nil, r); !bytes.Equal(enc, b[:len(enc)]) {
				t.Fatalf("%+v encodes to % x, not % x", r, enc, b)
			}
		}
		if a, err := parseAccept(b); err == nil {
			if enc := appendAccept(nil, a); !bytes.Equal(enc[:1+acceptLen-3], b[:1+acceptLen-3]) { // the padding is not read
				t.Fatalf("%+v encodes to % x, not % x", a, enc, b)
			}
		}
		if at, ok := parseExtension(b, acceptLen); ok {
			if enc := appendExtension(nil, at); !bytes.Equal(enc, b[1+acceptLen:][:len(enc)]) {
				t.Fatalf("%v encodes to % x, not % x", at, enc, b)
			}
		}
		if r := parseReject(b); r != rejectNone {
			if enc := appendReject(nil, r); !bytes.Equal(enc, b[:len(enc)]) {
				t.Fatalf("%v encodes to % x, not % x", r, enc, b)
			}
		}
	})
}

// FuzzPacket reads arbitrary packets. Accepted ones encode to a packet that reads the same.
func FuzzPacket(f *testing.F) {
	for _, b := range golden(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parsePacket(b)
		if err != nil {
			return
		}
		enc := append(make(packet, headerLen), m.payload...)
		switch m.kind {
		case kindCredit:
			enc.putCredit(uint32(m.conn), int(m.credits))
		case kindRequest:
			enc.putRequest(uint32(m.conn), m.tag, len(m.payload))
		case kindExpected:
			enc.putExpected(uint32(m.conn), m.tag, len(m.payload))
		}
		again, err := parsePacket(enc)
		if err != nil || again.kind != m.kind || again.tag != m.tag || again.credits != m.credits || !bytes.Equal(again.payload, m.payload) {
			t.Fatalf("%+v encoded and read again is %+v, %v", m, again, err)
		}
	})
}

// FuzzHandle reads arbitrary memory handles. Accepted ones encode to the same bytes again, but for the padding.
func FuzzHandle(f *testing.F) {
	f.Add(golden(f)["handle"])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseHandle(b)
		if err != nil {
			return
		}
		enc := appendHandle(nil, r)
		copy(enc[offHandleAccess+1:offHandleAddr], b[offHandleAccess+1:offHandleAddr])
		if !bytes.Equal(enc, b) {
			t.Fatalf("%+v encodes to % x, not % x", r, enc, b)
		}
	})
}
