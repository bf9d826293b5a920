package mpa

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestNegotiate runs the scripts in testdata/negotiate. Commands:
//
//	active, passive   set what an end brings: rev, crc, ird, ord, p2p, rtr=(write,read,send), data
//	connect           the whole exchange, over the wire format
//	reject            the same, but the passive side's user rejects: data
//	request, reply    hand one end a frame of the script's own: rev, flags=(M,C,R,S), ird, ord, setup=(A,B,C,D),
//	                  data, key=wrong for the key of the other kind
//
// The output has each frame as the other end read it, and what each end made of it.
func TestNegotiate(t *testing.T) {
	datadriven.Walk(t, "testdata/negotiate", func(t *testing.T, path string) {
		s := script{active: Local{Revision: 2}, passive: Local{Revision: 2}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			s.run(t, d)
			return s.out.String()
		})
	})
}

// script is the state of one file.
type script struct {
	active, passive Local
	out             strings.Builder
}

func (s *script) run(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	switch d.Cmd {
	case "active":
		s.active = scanLocal(t, d)
		s.out.WriteString("ok\n")
	case "passive":
		s.passive = scanLocal(t, d)
		s.out.WriteString("ok\n")
	case "connect":
		if req, ok := s.request(t); ok {
			s.respond(t, req, func(req Frame) (Frame, Agreed, error) { return Respond(req, s.passive) })
		}
	case "reject":
		data := scanFrame(t, d, false).PrivateData
		if req, ok := s.request(t); ok {
			s.respond(t, req, func(req Frame) (Frame, Agreed, error) {
				f, err := Rejection(req, data)
				return f, Agreed{}, err
			})
		}
	case "request":
		reply, a, err := Respond(s.cross(t, "request", scanFrame(t, d, false)), s.passive)
		if reply.Reply {
			s.cross(t, "reply", reply)
		}
		s.outcome("passive", a, err)
	case "reply":
		if req, ok := s.request(t); ok {
			a, err := Finish(req, s.cross(t, "reply", scanFrame(t, d, true)), s.active)
			s.outcome("active", a, err)
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
}

// request makes and prints the active side's request.
func (s *script) request(t *testing.T) (Frame, bool) {
	t.Helper()
	req, err := Request(s.active)
	if err != nil {
		s.outcome("active", Agreed{}, err)
		return Frame{}, false
	}
	s.cross(t, "request", req)
	return req, true
}

// respond has the passive side answer req and the active side take the answer.
func (s *script) respond(t *testing.T, req Frame, answer func(Frame) (Frame, Agreed, error)) {
	t.Helper()
	b, err := AppendFrame(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := ParseFrame(b)
	if err != nil {
		t.Fatal(err)
	}
	reply, a, err := answer(got)
	if reply.Reply {
		reply = s.cross(t, "reply", reply)
	}
	if err != nil || !reply.Reject {
		s.outcome("passive", a, err)
	}
	if reply.Reply {
		a, err = Finish(req, reply, s.active)
		s.outcome("active", a, err)
	}
}

// cross sends f over the wire, prints it and returns it as it was read.
func (s *script) cross(t *testing.T, name string, f Frame) Frame {
	t.Helper()
	b, err := AppendFrame(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	got, n, err := ParseFrame(b)
	if err != nil || n != len(b) {
		t.Fatalf("%s: n %d of %d, err %v", name, n, len(b), err)
	}
	fmt.Fprintf(&s.out, "%-8s rev %d [%s]", name, got.Revision, letters("MCRS", got.Markers, got.CRC, got.Reject, got.Enhanced))
	if u := got.Setup; got.Enhanced {
		fmt.Fprintf(&s.out, " ird %d ord %d [%s]", u.IRD, u.ORD, letters("ABCD", u.PeerToPeer, u.RTRSend, u.RTRWrite, u.RTRRead))
	}
	if len(got.PrivateData) > 0 {
		fmt.Fprintf(&s.out, " %q", got.PrivateData)
	}
	s.out.WriteByte('\n')
	return got
}

// letters returns those of names whose flag is set.
func letters(names string, flags ...bool) string {
	var set []byte
	for i, on := range flags {
		if on {
			set = append(set, names[i])
		}
	}
	return string(set)
}

// outcome prints what one end concluded.
func (s *script) outcome(end string, a Agreed, err error) {
	e, ours := errors.AsType[*Error](err)
	r, theirs := errors.AsType[*RejectedError](err)
	switch {
	case ours:
		fmt.Fprintf(&s.out, "%-8s error, code %d: %v\n", end, e.Code, e)
	case theirs:
		fmt.Fprintf(&s.out, "%-8s rejected, rev %d, peer %d/%d, %q\n", end, r.Revision, r.PeerIRD, r.PeerORD, r.PrivateData)
	default:
		fmt.Fprintf(&s.out, "%-8s crc %t, rev %d, ird %d, ord %d, peer %d/%d, rtr %v, %q\n",
			end, a.CRC, a.Revision, a.IRD, a.ORD, a.PeerIRD, a.PeerORD, a.RTR, a.PeerData)
	}
}

func scanLocal(t *testing.T, d *datadriven.TestData) Local {
	t.Helper()
	f := scanFrame(t, d, false)
	return Local{
		CRC: d.HasArg("crc"), Revision: f.Revision, IRD: f.Setup.IRD, ORD: f.Setup.ORD,
		PeerToPeer:  d.HasArg("p2p"),
		RTRSend:     hasValue(d, "rtr", "send"),
		RTRWrite:    hasValue(d, "rtr", "write"),
		RTRRead:     hasValue(d, "rtr", "read"),
		PrivateData: f.PrivateData,
	}
}

func scanFrame(t *testing.T, d *datadriven.TestData, reply bool) Frame {
	t.Helper()
	f := Frame{
		Reply:   reply != hasValue(d, "key", "wrong"),
		Markers: hasValue(d, "flags", "M"), CRC: hasValue(d, "flags", "C"),
		Reject: hasValue(d, "flags", "R"), Enhanced: hasValue(d, "flags", "S"),
		Revision: 2,
		Setup: Setup{
			PeerToPeer: hasValue(d, "setup", "A"), RTRSend: hasValue(d, "setup", "B"),
			RTRWrite: hasValue(d, "setup", "C"), RTRRead: hasValue(d, "setup", "D"),
		},
	}
	var data string
	for name, dst := range map[string]any{"rev": &f.Revision, "ird": &f.Setup.IRD, "ord": &f.Setup.ORD, "data": &data} {
		if d.HasArg(name) {
			d.ScanArgs(t, name, dst)
		}
	}
	if data != "" {
		f.PrivateData = []byte(data)
	}
	return f
}

func hasValue(d *datadriven.TestData, arg, value string) bool {
	for _, a := range d.CmdArgs {
		if a.Key == arg && slices.Contains(a.Vals, value) {
			return true
		}
	}
	return false
}
