package ofiverbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"cinnabar/verbs"
)

// changed returns a copy of b with the bytes v at off.
func changed(b []byte, off int, v ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[off:], v)
	return b
}

func TestMalformedConnection(t *testing.T) {
	g := golden(t)
	req := g["cm-request"]
	for name, tc := range map[string]struct {
		b       []byte
		variant bool // a difference to another libfabric
	}{
		"empty":             {nil, false},
		"length only":       {req[:1], false},
		"cut":               {req[:requestLen], false},
		"length 23":         {changed(req, offCMLength, 23), false},
		"length of accept":  {changed(req, offCMLength, acceptLen), false},
		"CM version":        {changed(req, offCMVersion, 2), true},
		"big endian":        {changed(req, offCMOrder, 1), true},
		"packet version":    {changed(req, offCMCtrl, 3), true},
		"operation version": {changed(req, offCMOp, 2), true},
		"further endpoint":  {changed(req, offCMEndpoint, 1), true},
		"flow control":      {changed(req, offCMFlow, 3), true},
		"eager limit":       {changed(req, offCMEager, 0, 0x20), true},
		"port 0":            {changed(req, offCMPort, 0, 0), false},
	} {
		if r, err := parseRequest(tc.b); err == nil || errors.Is(err, errOtherRXM) != tc.variant {
			t.Errorf("request, %s: %+v, %v", name, r, err)
		}
	}
	at := verbs.RemoteAddr{Addr: 0x1122334455667788, RKey: 0x99aabbcc}
	extended := appendExtension(appendRequest(nil, goldenRequest), at)
	if got, ok := parseExtension(append(extended, 0, 0), requestLen); !ok || got != at {
		t.Errorf("extension: %v, %t, want %v", got, ok, at)
	}
	for name, b := range map[string][]byte{"none": req, "cut": extended[:len(extended)-1], "mark": changed(extended, 1+requestLen+3, 2), "exact": extended[:1+requestLen]} {
		if got, ok := parseExtension(b, requestLen); ok {
			t.Errorf("extension, %s: %v", name, got)
		}
	}
	acc := g["cm-accept"]
	for name, b := range map[string][]byte{
		"empty": nil, "cut": acc[:acceptLen], "length": changed(acc, offCMLength, requestLen), "flow control": changed(acc, offAcceptFlow, 7),
	} {
		if a, err := parseAccept(b); err == nil {
			t.Errorf("acceptance, %s: %+v", name, a)
		}
	}
	for name, b := range map[string][]byte{
		"empty": nil, "zeros, as a kernel sends": make([]byte, 148), "cut": g["cm-reject"][:2], "CM version": changed(g["cm-reject"], 1, 2), "length": changed(g["cm-reject"], 0, 3),
	} {
		if r := parseReject(b); r != rejectNone {
			t.Errorf("refusal, %s: %v", name, r)
		}
	}
}

func TestMalformedPackets(t *testing.T) {
	g := golden(t)
	credit, request, response := g["credit"], g["request"], g["response"]
	for n := range len(request) {
		if m, err := parsePacket(request[:n]); err == nil {
			t.Fatalf("a request cut to %d bytes is accepted: %+v", n, m)
		}
	}
	huge := bytes.Repeat([]byte{0xff}, 8)
	for name, b := range map[string][]byte{
		"version":              changed(credit, offVersion, 9),
		"credit with payload":  append(bytes.Clone(credit), 1),
		"segment":              changed(request, offType, byte(typeSegment)),
		"rendezvous":           g["rendezvous"],
		"read done":            changed(credit, offType, byte(typeReadDone)),
		"atomic":               changed(request, offType, byte(typeAtomic)),
		"atomic response":      changed(request, offType, byte(typeAtomicResp)),
		"write data":           changed(request, offType, byte(typeWriteData)),
		"write done":           changed(request, offType, byte(typeWriteDone)),
		"unknown type":         changed(request, offType, 99),
		"longer than it says":  append(bytes.Clone(request), 1),
		"size too large":       changed(request, offSize, huge...),
		"op version":           changed(request, offOpVer, 3),
		"atomic operation":     changed(request, offOp, 6),
		"request without tag":  changed(request, offFlags, 0, 0, 0, 0),
		"tag of 64 bits":       changed(request, offData, huge...),
		"response, wide tag":   changed(response, offTag, huge...),
		"response, bit 33 set": changed(response, offTag, 1, 0, 0, 0, 2, 0, 0, 0),
	} {
		if m, err := parsePacket(b); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
	m, err := parsePacket(changed(response, offTag, 7, 0, 0, 0, 1, 0, 0, 0))
	if err != nil || m.kind != kindRequest || m.tag != 7 {
		t.Errorf("a request as a tagged message: %+v, %v", m, err)
	}
}

func TestMalformedHandles(t *testing.T) {
	b := golden(t)["handle"]
	for n := range len(b) {
		if r, err := parseHandle(b[:n]); err == nil {
			t.Fatalf("accepted when cut to %d bytes: %+v", n, r)
		}
	}
	wrap := changed(b, offHandleAddr, bytes.Repeat([]byte{0xff}, 8)...)
	long := changed(b, offHandleSize, bytes.Repeat([]byte{0xff}, 8)...)
	for name, bad := range map[string][]byte{
		"longer":           append(bytes.Clone(b), 0),
		"key of 33 bits":   changed(b, offHandleKey+4, 1),
		"no piece":         changed(b, offHandlePieces, 0),
		"two pieces":       changed(b, offHandlePieces, 2),
		"access 0":         changed(b, offHandleAccess, 0),
		"access 4":         changed(b, offHandleAccess, 4),
		"another length":   changed(b, offHandleLen, 41),
		"end of addresses": wrap,
		"length wraps":     binary.LittleEndian.AppendUint64(bytes.Clone(long[:offHandleLen]), 1<<64-1),
	} {
		if r, err := parseHandle(bad); err == nil {
			t.Errorf("%s: accepted as %+v", name, r)
		}
	}
}
