package iwarp_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
)

// TestReplay reads recorded conversations with the three layers and compares
// what they make of them with the transcripts in testdata/replay. Each
// conversation is read twice, the second time octet by octet: where TCP cuts
// the stream changes nothing.
func TestReplay(t *testing.T) {
	datadriven.RunTest(t, filepath.Join("testdata", "replay"), func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "replay" || len(d.CmdArgs) != 1 {
			d.Fatalf(t, "want \"replay NAME\"")
		}
		conversation := readConversation(t, d.CmdArgs[0].Key)
		whole := transcript(t, conversation)
		if diff := cmp.Diff(transcript(t, chop(conversation)), whole); diff != "" {
			t.Errorf("octet by octet (-) against segments as recorded (+):\n%s", diff)
		}
		return whole
	})
}

// TestReplayComplete makes sure that every recording has a transcript.
func TestReplayComplete(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("testdata", "replay"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d recordings, error %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		if !bytes.Contains(script, []byte("replay "+name+"\n")) {
			t.Errorf("testdata/replay does not replay %s", name)
		}
	}
}

// tcpSegment is what one end sent at one time.
type tcpSegment struct {
	from string // "active" or "passive"
	data []byte
}

// readConversation reads a file of lines "FROM HEX".
func readConversation(t *testing.T, name string) []tcpSegment {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var segments []tcpSegment
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		from, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		data, err := hex.DecodeString(digits)
		if err != nil || from != "active" && from != "passive" {
			t.Fatalf("%s: bad line %.40q: %v", name, line, err)
		}
		segments = append(segments, tcpSegment{from, data})
	}
	return segments
}

func chop(segments []tcpSegment) []tcpSegment {
	var chopped []tcpSegment
	for _, s := range segments {
		for i := range s.data {
			chopped = append(chopped, tcpSegment{s.from, s.data[i : i+1]})
		}
	}
	return chopped
}

// half reads the octets that one end sends, as the other end would.
type half struct {
	t        *testing.T
	out      *strings.Builder
	from     string
	setup    []byte // octets of the MPA frame
	running  bool   // the frame is complete, FPDUs follow
	frame    mpa.Frame
	framer   mpa.Framer
	receiver rdmap.Receiver
}

func transcript(t *testing.T, segments []tcpSegment) string {
	var out strings.Builder
	halves := map[string]*half{
		"active":  {t: t, out: &out, from: "active"},
		"passive": {t: t, out: &out, from: "passive"},
	}
	for _, s := range segments {
		h := halves[s.from]
		h.feed(s.data)
		if h.running && s.from == "passive" {
			// The reply settles for both halves whether CRCs are in use.
			halves["active"].framer.CRC = h.frame.CRC
			h.framer.CRC = h.frame.CRC
		}
	}
	for _, from := range []string{"active", "passive"} {
		if err := halves[from].framer.End(); err != nil {
			fmt.Fprintf(&out, "%s end: %v\n", from, err)
		}
	}
	return out.String()
}

func (h *half) feed(data []byte) {
	if !h.running {
		h.setup = append(h.setup, data...)
		frame, n, err := mpa.ParseFrame(h.setup)
		if err != nil {
			h.t.Fatalf("%s: MPA frame: %v", h.from, err)
		}
		if n == 0 {
			return
		}
		h.running, h.frame, data = true, frame, h.setup[n:]
		h.framer.MinULPDU = ddp.TaggedHeaderLen
		h.printFrame()
	}
	// An error of the framer is printed once, at the end.
	_ = h.framer.Feed(data, h.ulpdu)
}

func (h *half) printFrame() {
	f := h.frame
	kind := "request"
	if f.Reply {
		kind = "reply"
	}
	fmt.Fprintf(h.out, "%s MPA %s: revision %d", h.from, kind, f.Revision)
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{f.Markers, "markers"}, {f.CRC, "CRC"}, {f.Reject, "reject"},
		{f.Setup.PeerToPeer, "peer-to-peer"}, {f.Setup.RTRSend, "RTR send"},
		{f.Setup.RTRWrite, "RTR write"}, {f.Setup.RTRRead, "RTR read"},
	} {
		if flag.set {
			fmt.Fprintf(h.out, ", %s", flag.name)
		}
	}
	if f.Enhanced {
		fmt.Fprintf(h.out, ", IRD %d, ORD %d", f.Setup.IRD, f.Setup.ORD)
	}
	if len(f.PrivateData) > 0 {
		fmt.Fprintf(h.out, ", private data %q", f.PrivateData)
	}
	fmt.Fprintln(h.out)
}

// ulpdu takes one segment through DDP and RDMAP.
func (h *half) ulpdu(b []byte) error {
	header, n := ddp.ParseHeader(b)
	if n == 0 {
		fmt.Fprintf(h.out, "%s short segment of %d octets\n", h.from, len(b))
		return nil
	}
	if got := ddp.AppendHeader(nil, header); !bytes.Equal(got, b[:n]) {
		h.t.Errorf("header %x encodes again as %x", b[:n], got)
	}
	payload := b[n:]
	s, term := h.receiver.Segment(header, len(payload))
	if term != nil {
		fmt.Fprintf(h.out, "%s refused: %v\n", h.from, *term)
		return nil
	}
	fmt.Fprintf(h.out, "%s %v", h.from, s.Op)
	if header.Tagged {
		fmt.Fprintf(h.out, " STag %08x TO %#x", header.STag, header.TO)
	} else {
		fmt.Fprintf(h.out, " queue %d MSN %d MO %d", header.QN, header.MSN, header.MO)
	}
	fmt.Fprintf(h.out, ", octets %d to %d", s.Offset, int(s.Offset)+s.Payload)
	if s.First {
		fmt.Fprint(h.out, ", first")
	}
	if s.Last {
		fmt.Fprint(h.out, ", last")
	}
	fmt.Fprintln(h.out)
	h.printMessage(s, payload)
	return nil
}

func (h *half) printMessage(s rdmap.Segment, payload []byte) {
	switch s.Op {
	case rdmap.OpReadRequest:
		r, n := rdmap.ParseReadRequest(payload)
		if got := rdmap.AppendReadRequest(nil, r); n != len(payload) || !bytes.Equal(got, payload) {
			h.t.Errorf("Read Request %x encodes again as %x", payload, got)
		}
		fmt.Fprintf(h.out, "        %d octets of STag %08x TO %#x to STag %08x TO %#x\n",
			r.Size, r.SourceSTag, r.SourceTO, r.SinkSTag, r.SinkTO)
	case rdmap.OpTerminate:
		term, swapped, n := rdmap.ParseTerminate(payload)
		if n != len(payload) {
			h.t.Errorf("Terminate of %d octets: parsed %d", len(payload), n)
		}
		fmt.Fprintf(h.out, "        %v\n", term)
		fmt.Fprintf(h.out, "        swapped %t, segment length %d (%t), DDP header %x, RDMAP header %x\n",
			swapped, term.SegmentLength, term.HasLength, term.DDPHeader, term.ReadRequest)
	case rdmap.OpSend:
		if s.Payload <= 32 {
			fmt.Fprintf(h.out, "        %x\n", payload)
		}
	default: // the payload tells nothing more
	}
}
