package mpa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// segment is one recorded TCP payload.
type segment struct {
	active bool // sent by the active side
	data   []byte
}

// conversation is one recorded connection.
type conversation struct {
	name     string
	segments []segment
}

// stream returns what one side sent, without its request or reply frame.
func (c conversation) stream(t testing.TB, active bool) (frame Frame, fpdus []byte) {
	t.Helper()
	var all []byte
	for _, s := range c.segments {
		if s.active == active {
			all = append(all, s.data...)
		}
	}
	if len(all) == 0 {
		return Frame{}, nil
	}
	f, n, err := ParseFrame(all)
	if err != nil || n == 0 {
		t.Fatalf("%s: ParseFrame: n %d, err %v", c.name, n, err)
	}
	return f, all[n:]
}

// loadGolden reads testdata/name; the format is described in the files.
func loadGolden(t testing.TB, name string) []conversation {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []conversation
	for i, line := range strings.Split(string(text), "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		switch kind {
		case "", "#":
		case "case":
			all = append(all, conversation{name: rest})
		case ">", "<":
			b, err := hex.DecodeString(rest)
			if err != nil || len(all) == 0 {
				t.Fatalf("%s:%d: %v", name, i+1, err)
			}
			c := &all[len(all)-1]
			c.segments = append(c.segments, segment{active: kind == ">", data: b})
		default:
			t.Fatalf("%s:%d: unknown line %q", name, i+1, line)
		}
	}
	return all
}

// loadConversations reads all recorded connections.
func loadConversations(t testing.TB) []conversation {
	t.Helper()
	return append(loadGolden(t, "siw-mpa-cases.hex"), loadGolden(t, "siw-rping.hex")...)
}

// goldenFrames returns the first segment of each side of each connection: the frames, in their own segments.
func goldenFrames(t testing.TB) map[string][]byte {
	t.Helper()
	frames := map[string][]byte{}
	for _, c := range loadConversations(t) {
		for _, s := range c.segments[:min(2, len(c.segments))] {
			name := c.name + "/reply"
			if s.active {
				name = c.name + "/request"
			}
			frames[name] = s.data
		}
	}
	return frames
}

func TestGoldenFrames(t *testing.T) {
	for name, wire := range goldenFrames(t) {
		t.Run(name, func(t *testing.T) {
			f, n, err := ParseFrame(wire)
			if err != nil || n != len(wire) {
				t.Fatalf("ParseFrame: n %d, err %v, want %d octets", n, err, len(wire))
			}
			if got, want := f.Reply, strings.HasSuffix(name, "/reply"); got != want {
				t.Errorf("Reply = %t, want %t", got, want)
			}
			got, err := AppendFrame([]byte("before"), f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, append([]byte("before"), wire...)); diff != "" {
				t.Errorf("AppendFrame (-got +want):\n%s", diff)
			}
			checkTruncations(t, wire)
		})
	}
}

// checkTruncations requires that every part of a valid frame asks for more, and that nothing behind a frame
// is looked at.
func checkTruncations(t *testing.T, wire []byte) {
	t.Helper()
	for i := range wire {
		if f, n, err := ParseFrame(wire[:i]); n != 0 || err != nil || !cmp.Equal(f, Frame{}) {
			t.Errorf("ParseFrame of %d octets: %+v, n %d, err %v, want more octets asked for", i, f, n, err)
		}
	}
	want, _, _ := ParseFrame(wire)
	f, n, err := ParseFrame(append(bytes.Clone(wire), 0xff, 0xff))
	if diff := cmp.Diff(f, want); n != len(wire) || err != nil || diff != "" {
		t.Errorf("with octets behind: n %d, err %v, want %d (-got +want):\n%s", n, err, len(wire), diff)
	}
}

// TestGoldenDecoded checks the decoded values of the frames with the most in them.
func TestGoldenDecoded(t *testing.T) {
	frames := goldenFrames(t)
	for name, want := range map[string]Frame{
		"crc-private-data/request": {
			CRC: true, Enhanced: true, Revision: 2,
			Setup: Setup{IRD: 16, ORD: 16}, PrivateData: []byte("hello"),
		},
		"markers/request": {
			Markers: true, CRC: true, Enhanced: true, Revision: 2, Setup: Setup{IRD: 16, ORD: 16},
		},
		"markers/reply":  {Reply: true, CRC: true, Reject: true, Enhanced: true, Revision: 2},
		"rev1-crc/reply": {Reply: true, CRC: true, Revision: 1},
		"rtr-write-read/request": {
			CRC: true, Enhanced: true, Revision: 2,
			Setup: Setup{IRD: 16, ORD: 16, PeerToPeer: true, RTRWrite: true, RTRRead: true},
		},
		"rping/request": {Enhanced: true, Revision: 2, Setup: Setup{IRD: 1, ORD: 1}},
	} {
		got, _, err := ParseFrame(frames[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", name, diff)
		}
	}
}

// siwLocal describes siw as passive side: it asks for no CRCs of its own, takes 128 reads either way and
// every RTR but a send.
var siwLocal = Local{Revision: 2, IRD: 128, ORD: 128, RTRWrite: true, RTRRead: true}

// TestGoldenRespond has us answer the recorded requests in siw's place: octet by octet the same replies.
func TestGoldenRespond(t *testing.T) {
	for _, c := range loadConversations(t) {
		t.Run(c.name, func(t *testing.T) {
			req, _ := c.stream(t, true)
			reply, _, err := Respond(req, siwLocal)
			if c.name == "rev3" {
				// siw closes without a word; we name our revision first.
				if err == nil || !reply.Reject || reply.Revision != 2 {
					t.Errorf("reply %+v, err %v, want a rejection of revision 2", reply, err)
				}
				return
			}
			if wantErr := c.name == "markers"; (err != nil) != wantErr {
				t.Fatalf("Respond: %v, want error %t", err, wantErr)
			}
			got, err := AppendFrame(nil, reply)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(hex.EncodeToString(got), hex.EncodeToString(c.segments[1].data)); diff != "" {
				t.Errorf("reply (-got +siw's):\n%s", diff)
			}
		})
	}
}

// TestGoldenFinish takes the active side's place in the recorded connections.
func TestGoldenFinish(t *testing.T) {
	agreed := func(crc bool, rtr RTR) Agreed {
		return Agreed{CRC: crc, Revision: 2, IRD: 16, ORD: 16, PeerIRD: 16, PeerORD: 16, RTR: rtr}
	}
	rev1 := func(crc bool) Agreed {
		return Agreed{CRC: crc, Revision: 1, IRD: 7, ORD: 9, PeerIRD: NoNegotiation, PeerORD: NoNegotiation}
	}
	want := map[string]Agreed{
		"crc-private-data": agreed(true, RTRNone),
		"no-crc":           agreed(false, RTRNone),
		"rev1-crc":         rev1(true),
		"rev1-no-crc":      rev1(false),
		"rtr-write":        agreed(true, RTRWrite),
		"rtr-read":         agreed(true, RTRRead),
		"rtr-write-read":   agreed(true, RTRWrite),
		"depth-zero":       {CRC: true, Revision: 2},
		"depth-1000":       {CRC: true, Revision: 2, IRD: 128, ORD: 128, PeerIRD: 128, PeerORD: 128},
	}
	for _, c := range loadGolden(t, "siw-mpa-cases.hex") {
		want, ok := want[c.name]
		if !ok {
			continue
		}
		req, _ := c.stream(t, true)
		reply, _ := c.stream(t, false)
		got, err := Finish(req, reply, Local{Revision: req.Revision, IRD: 7, ORD: 9})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", c.name, diff)
		}
	}
}

// TestGoldenStreams reads the recorded FPDUs of both directions, as they were cut and octet by octet, and
// builds them again.
func TestGoldenStreams(t *testing.T) {
	wantCode := map[string]Code{"send-bad-crc": CodeCRC, "garbage": CodeConnectionLost}
	for _, c := range loadConversations(t) {
		for _, active := range []bool{true, false} {
			side := map[bool]string{true: "active", false: "passive"}[active]
			t.Run(c.name+"/"+side, func(t *testing.T) {
				req, _ := c.stream(t, true)
				_, stream := c.stream(t, active)
				var code Code
				if active {
					code = wantCode[c.name]
				}
				whole := readStream(t, req.CRC, stream, len(stream), code)
				bytewise := readStream(t, req.CRC, stream, 1, code)
				if diff := cmp.Diff(bytewise, whole); diff != "" {
					t.Errorf("octet by octet (-got +want):\n%s", diff)
				}
				// That test program sent CRCs though none were agreed, which is its right.
				if withoutNeed := active && c.name == "send-no-crc"; code == CodeNone && !withoutNeed {
					checkRebuilt(t, req.CRC, whole, stream)
				}
			})
		}
	}
}

// readStream feeds stream in pieces and returns the ULPDUs; it has to end with the given code.
func readStream(t *testing.T, crc bool, stream []byte, piece int, want Code) (ulpdus [][]byte) {
	t.Helper()
	f := Framer{CRC: crc, MinULPDU: 14}
	for b := stream; len(b) > 0; {
		n := min(piece, len(b))
		err := f.Feed(b[:n], func(u []byte) error {
			ulpdus = append(ulpdus, bytes.Clone(u))
			return nil
		})
		if err != nil {
			break
		}
		b = b[n:]
	}
	wantError(t, f.End(), want)
	return ulpdus
}

// checkRebuilt requires that the recorded octets are what we would have sent.
func checkRebuilt(t *testing.T, crc bool, ulpdus [][]byte, want []byte) {
	t.Helper()
	var got []byte
	for _, u := range ulpdus {
		got = appendFPDU(got, u, crc)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("rebuilt stream differs:\n got %x\nwant %x", got, want)
	}
}

// appendFPDU builds one FPDU the way a device does.
func appendFPDU(b, ulpdu []byte, crc bool) []byte {
	start := len(b)
	b = append(AppendHeader(b, len(ulpdu)), ulpdu...)
	return AppendTrailer(b, len(ulpdu), Update(0, b[start:]), crc)
}

// wantError requires an *Error with the given code, or no error for CodeNone.
func wantError(t *testing.T, err error, want Code) {
	t.Helper()
	if want == CodeNone {
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		return
	}
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != want {
		t.Errorf("error %v, want one with code %d (%v)", err, want, want)
	}
}
