package rdmap_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
)

// TestReceiver plays the scripts in testdata/receiver. A command
//
//	segments [immediates] [atomics]
//
// starts a new receiver; each line of its input is one segment:
//
//	MESSAGE [more] [len=N] [msn=N] [mo=N] [to=N] [stag=N] [rsvd=N] [qn=N] [tagged=BOOL] [dv=N] [rv=N]
//
// MESSAGE is a name below or opcode=N. Without "more" the segment is the last
// of its message. What is not given is what the message is sent with: its model
// and queue, version 1, a valid length, MSN 1, and zero for the rest.
func TestReceiver(t *testing.T) {
	datadriven.Walk(t, "testdata/receiver", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "segments" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			r := newReceiver(rdmap.Options{Immediates: d.HasArg("immediates"), Atomics: d.HasArg("atomics")})
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				h, payload, err := parseSegment(strings.Fields(line))
				if err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
				s, term := r.Segment(h, payload)
				printSegment(&out, s, term)
			}
			return out.String()
		})
	})
}

var messageNames = map[string]rdmap.Opcode{
	"write": rdmap.OpWrite, "read": rdmap.OpReadRequest, "response": rdmap.OpReadResponse,
	"send": rdmap.OpSend, "send-inv": rdmap.OpSendInvalidate, "send-se": rdmap.OpSendSE, "send-se-inv": rdmap.OpSendSEInvalidate,
	"terminate": rdmap.OpTerminate, "imm": rdmap.OpImmediate, "imm-se": rdmap.OpImmediateSE,
	"atomic": rdmap.OpAtomicRequest, "atomic-response": rdmap.OpAtomicResponse,
}

func parseSegment(words []string) (h ddp.Header, payload int, err error) {
	op, ok := messageNames[words[0]]
	if number, found := strings.CutPrefix(words[0], "opcode="); found {
		n, err := strconv.ParseUint(number, 0, 8)
		if err != nil {
			return h, 0, err
		}
		op, ok = rdmap.Opcode(n), true
	}
	if !ok {
		return h, 0, fmt.Errorf("unknown message")
	}
	h, payload = whole(op), validLen(op)
	h.STag = 0
	for _, word := range words[1:] {
		if word == "more" {
			h.Last = false
			continue
		}
		if err := setField(&h, &payload, word); err != nil {
			return h, 0, err
		}
	}
	return h, payload, nil
}

func setField(h *ddp.Header, payload *int, word string) error {
	name, value, _ := strings.Cut(word, "=")
	if name == "tagged" {
		h.Tagged = value == "true"
		return nil
	}
	n, err := strconv.ParseUint(value, 0, 64)
	switch name {
	case "len":
		*payload = int(n)
	case "msn":
		h.MSN = uint32(n)
	case "mo":
		h.MO = uint32(n)
	case "to":
		h.TO = n
	case "stag":
		h.STag = uint32(n)
	case "rsvd":
		h.Rsvd = uint32(n)
	case "qn":
		h.QN = uint32(n)
	case "dv":
		h.Version = uint8(n)
	case "rv":
		h.ULP = byte(n)<<6 | h.ULP&0x3f
	case "rsv":
		h.ULP |= byte(n) << 4
	default:
		return fmt.Errorf("unknown field %q", name)
	}
	return err
}

func printSegment(out *strings.Builder, s rdmap.Segment, term *rdmap.Terminate) {
	if term != nil {
		fmt.Fprintf(out, "refused: %s\n", term)
		return
	}
	fmt.Fprintf(out, "%v, octets %d to %d", s.Op, s.Offset, int64(s.Offset)+int64(s.Payload))
	if s.First {
		out.WriteString(", first")
	}
	if s.Last {
		out.WriteString(", last")
	}
	out.WriteByte('\n')
}

// A stream that has failed stays so and repeats its first answer.
func TestReceiverFailureIsFinal(t *testing.T) {
	r := newReceiver(full)
	if r.Failed() != nil {
		t.Errorf("new: got %v, want nil", r.Failed())
	}
	first := refusal(t, r, untagged(rdmap.OpSend, 9), 8, rdmap.TermDDPMSNRange)
	for _, op := range opcodes {
		if _, got := r.Segment(whole(op), validLen(op)); got != first || r.Failed() != first {
			t.Errorf("%v: got %v, %v, want %v", op, got, r.Failed(), first)
		}
	}
	r.Init(full)
	accept(t, r, untagged(rdmap.OpSend, 1), 8)
}

// The answer carries the header of the segment at fault as it came.
func TestReceiverAnswer(t *testing.T) {
	h := untagged(rdmap.OpSend, 9)
	h.Rsvd = 0x01020304
	term := refusal(t, newReceiver(full), h, 100, rdmap.TermDDPMSNRange)
	if want := ddp.AppendHeader(nil, h); !term.HasDDP || !bytes.Equal(term.DDPHeader, want) {
		t.Errorf("got header %x, want %x", term.DDPHeader, want)
	}
	if !term.HasLength || term.SegmentLength != ddp.UntaggedHeaderLen+100 {
		t.Errorf("got segment length %d, %t, want %d", term.SegmentLength, term.HasLength, ddp.UntaggedHeaderLen+100)
	}
	if want := "MSN is 9, want 1 (queue 0, MSN 9, MO 0)"; term.Detail != want {
		t.Errorf("got detail %q, want %q", term.Detail, want)
	}
}

func TestReceiverAllocatesNothing(t *testing.T) {
	r := newReceiver(full)
	var msns rdmap.MSNs
	got := testing.AllocsPerRun(100, func() {
		for _, op := range opcodes {
			if op == rdmap.OpTerminate {
				continue
			}
			h := whole(op)
			if !h.Tagged {
				h.MSN = msns.Next(h.QN)
			}
			if _, term := r.Segment(h, validLen(op)); term != nil {
				t.Fatal(term)
			}
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}

// FuzzReceiver plays streams of segments, each a length octet and a header. No
// stream makes the receiver panic, and what it accepts fits together.
func FuzzReceiver(f *testing.F) {
	for _, options := range []byte{0, 3} {
		var all []byte
		for i, op := range opcodes {
			h := ddp.AppendHeader([]byte{byte(validLen(op))}, whole(op))
			f.Add(options, h)
			if i != int(rdmap.OpTerminate) {
				all = append(all, h...)
			}
		}
		f.Add(options, all)
	}
	f.Fuzz(func(t *testing.T, options byte, stream []byte) {
		o := rdmap.Options{Immediates: options&1 != 0, Atomics: options&2 != 0}
		r := newReceiver(o)
		var failed *rdmap.Terminate
		for len(stream) > 1 {
			payload := int(stream[0])
			h, n := ddp.ParseHeader(stream[1:])
			if n == 0 {
				return
			}
			stream = stream[1+n:]
			s, term := r.Segment(h, payload)
			if failed != nil && term != failed {
				t.Fatalf("%+v: got %v after %v", h, term, failed)
			}
			if failed = term; term != nil {
				checkAnswer(t, *term)
				continue
			}
			checkSegment(t, o, s, h, payload)
		}
	})
}

// checkAnswer makes sure that a peer understands what is sent to it.
func checkAnswer(t *testing.T, term rdmap.Terminate) {
	wire := rdmap.AppendTerminate(nil, term)
	got, swapped, n := rdmap.ParseTerminate(wire)
	if n != len(wire) || swapped || got.Cause() != term.Cause() || !got.Cause().Known() {
		t.Fatalf("%v is read as %v, swapped %t, %d of %d octets", term, got, swapped, n, len(wire))
	}
}

func checkSegment(t *testing.T, o rdmap.Options, s rdmap.Segment, h ddp.Header, payload int) {
	version, op := rdmap.ParseControl(h.ULP)
	switch {
	case h.Version != ddp.Version || version != rdmap.Version:
		t.Fatalf("%+v: accepted a version", h)
	case s.Op != op || s.Header != h || s.Payload != payload || s.Last != h.Last:
		t.Fatalf("%+v with %d octets: got %+v", h, payload, s)
	case op.Tagged() != h.Tagged, !h.Tagged && op.Queue() != h.QN:
		t.Fatalf("%+v: accepted %v there", h, op)
	case op > rdmap.OpAtomicResponse:
		t.Fatalf("%+v: accepted %v", h, op)
	case !o.Immediates && (op == rdmap.OpImmediate || op == rdmap.OpImmediateSE):
		t.Fatalf("%+v: accepted %v", h, op)
	case !o.Atomics && (op == rdmap.OpAtomicRequest || op == rdmap.OpAtomicResponse):
		t.Fatalf("%+v: accepted %v", h, op)
	case s.First != (s.Offset == 0), !h.Tagged && s.Offset != h.MO, payload == 0 && !h.Last:
		t.Fatalf("%+v with %d octets: got %+v", h, payload, s)
	}
}
