package mpa

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseFrame: no input panics, nothing behind the frame matters, a part of a frame asks for more, and
// what is accepted is sent back as it came but for the bits that receivers ignore.
func FuzzParseFrame(f *testing.F) {
	for _, wire := range goldenFrames(f) {
		f.Add(wire)
		f.Add(wire[:len(wire)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, n, err := ParseFrame(b)
		if err != nil || n == 0 {
			if n != 0 || !cmp.Equal(got, Frame{}) {
				t.Fatalf("n %d and %+v with error %v", n, got, err)
			}
			return
		}
		if n < FrameLen || n > FrameLen+MaxPrivateData || n > len(b) {
			t.Fatalf("n = %d of %d octets", n, len(b))
		}
		if _, n, err := ParseFrame(b[:n-1]); n != 0 || err != nil {
			t.Fatalf("one octet short: n %d, err %v", n, err)
		}
		wire, err := AppendFrame(nil, got)
		if err != nil {
			t.Fatalf("%+v is not accepted back: %v", got, err)
		}
		if want := canonical(b[:n]); !bytes.Equal(wire, want) {
			t.Fatalf("sent back\n     %x\nwant %x", wire, want)
		}
	})
}

// canonical clears the bits of a frame that a receiver ignores.
func canonical(frame []byte) []byte {
	b := bytes.Clone(frame)
	b[offFlags] &^= 0x0f
	if string(b[:keyLen]) == keyRequest {
		b[offFlags] &^= flagReject
	}
	if b[offRevision] < Revision2 {
		b[offFlags] &^= flagEnhanced
	}
	if b[offFlags]&flagEnhanced != 0 && b[FrameLen]&0x80 == 0 {
		b[FrameLen] &^= 0x40   // B without A
		b[FrameLen+2] &^= 0xc0 // C and D without A
	}
	return b
}

// FuzzFramer: no stream panics, the cut does not matter, no octet is lost or delivered twice, and the memory
// in use is bounded by what has come.
func FuzzFramer(f *testing.F) {
	for _, c := range loadConversations(f) {
		for _, active := range []bool{true, false} {
			req, _ := c.stream(f, true)
			_, stream := c.stream(f, active)
			stream = stream[:min(len(stream), 300)] // long seeds have the fuzzer minimize instead of search
			f.Add(stream, uint8(7), req.CRC)
			f.Add(stream, uint8(0), !req.CRC)
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, piece uint8, crc bool) {
		whole := frame(t, stream, len(stream), crc)
		cut := frame(t, stream, int(piece)+1, crc)
		if !reflect.DeepEqual(cut, whole) { // a hundred times as fast as cmp on octets
			t.Fatalf("cut into %d octets (-got +want):\n%s", int(piece)+1, cmp.Diff(cut, whole))
		}
		checkFraming(t, stream, whole, crc)
	})
}

// framed is what came out of a Framer.
type framed struct {
	ULPDUs [][]byte
	Err    string
	End    string
}

// frame feeds stream in pieces, the rest of it after an error too.
func frame(t *testing.T, stream []byte, piece int, crc bool) (out framed) {
	t.Helper()
	f := Framer{CRC: crc, MinULPDU: 1}
	fed := 0
	for fed < len(stream) {
		n := min(piece, len(stream)-fed)
		fed += n
		failed := f.err != nil
		err := f.Feed(stream[fed-n:fed], func(u []byte) error {
			if failed {
				t.Fatal("a ULPDU was delivered after an error")
			}
			out.ULPDUs = append(out.ULPDUs, bytes.Clone(u))
			return nil
		})
		if err != nil {
			out.Err = err.Error()
		}
		if cap(f.partial) > 2*fed+64 {
			t.Fatalf("%d octets held after %d had come", cap(f.partial), fed)
		}
	}
	if err := f.End(); err != nil {
		out.End = err.Error()
	}
	return out
}

// checkFraming walks stream by its length fields alone and compares.
func checkFraming(t *testing.T, stream []byte, out framed, crc bool) {
	t.Helper()
	for i, u := range out.ULPDUs {
		n := FPDULen(len(u))
		if len(stream) < n || int(stream[0])<<8|int(stream[1]) != len(u) || !bytes.Equal(stream[2:2+len(u)], u) {
			t.Fatalf("ULPDU %d of %d octets is not what the stream has", i, len(u))
		}
		if crc && !CheckTrailer(stream[2+len(u):n], len(u), Update(0, stream[:2+len(u)])) {
			t.Fatalf("ULPDU %d was delivered with a wrong CRC", i)
		}
		stream = stream[n:]
	}
	if out.Err == "" && (len(stream) == 0) != (out.End == "") {
		t.Fatalf("%d octets left over, End says %q", len(stream), out.End)
	}
}

// FuzzNegotiate: whatever two frames say, nothing panics, a reply can be sent, and no depth in force is above
// either end's.
func FuzzNegotiate(f *testing.F) {
	for _, c := range loadConversations(f) {
		for _, s := range c.segments[:min(2, len(c.segments))] {
			f.Add(s.data, uint8(2), uint16(16), uint16(16), uint8(0xff))
			f.Add(s.data, uint8(1), uint16(0), uint16(NoNegotiation), uint8(0))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, revision uint8, ird, ord uint16, flags uint8) {
		peer, n, err := ParseFrame(b)
		if n == 0 || err != nil {
			return
		}
		l := Local{
			CRC: flags&1 != 0, Revision: revision, IRD: ird, ORD: ord, PeerToPeer: flags&2 != 0,
			RTRSend: flags&4 != 0, RTRWrite: flags&8 != 0, RTRRead: flags&16 != 0,
		}
		reply, a, err := Respond(peer, l)
		if reply.Reply {
			if _, err := AppendFrame(nil, reply); err != nil {
				t.Fatalf("reply %+v cannot be sent: %v", reply, err)
			}
		}
		if (err == nil) != (reply.Reply && !reply.Reject) {
			t.Fatalf("reply %+v with error %v", reply, err)
		}
		if err == nil {
			checkDepths(t, peer, a, l)
		}
		req, err := Request(l)
		if err != nil {
			return
		}
		if a, err := Finish(req, peer, l); err == nil {
			checkDepths(t, peer, a, l)
		}
	})
}

func checkDepths(t *testing.T, peer Frame, a Agreed, l Local) {
	t.Helper()
	rtrRead := a.RTR == RTRRead && a.IRD == 1 // room for the RTR may be made
	if a.IRD > l.IRD && !rtrRead || a.ORD > l.ORD {
		t.Fatalf("in force %d/%d, limits %d/%d", a.IRD, a.ORD, l.IRD, l.ORD)
	}
	if peer.Enhanced && peer.Setup.IRD != NoNegotiation && a.ORD > peer.Setup.IRD {
		t.Fatalf("ORD %d in force, the peer serves %d", a.ORD, peer.Setup.IRD)
	}
}
