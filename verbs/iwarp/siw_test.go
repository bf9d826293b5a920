package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// recording is a conversation that was recorded between Linux's siw and another end.
type recording struct {
	active, passive [][]byte // what each end sent: its MPA frame, then FPDUs
}

func recorded(t *testing.T, name string) recording {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "iwarp", "testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var r recording
	for line := range strings.Lines(string(text)) {
		from, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if from == "#" {
			continue
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		switch from {
		case "active":
			r.active = append(r.active, b)
		case "passive":
			r.passive = append(r.passive, b)
		default:
			t.Fatalf("%s: bad line %.40q", name, line)
		}
	}
	return r
}

func parsedFrame(t *testing.T, b []byte) mpa.Frame {
	t.Helper()
	f, n, err := mpa.ParseFrame(b)
	if err != nil || n != len(b) {
		t.Fatalf("recorded frame %x: %d octets parsed, error %v", b, n, err)
	}
	return f
}

// likeSiw is a device that answers as siw does: no CRC unless asked, 128 reads.
var likeSiw = iwarp.Config{NoCRC: true, Depth: 128, NoPeerToPeer: true}

// TestSiwSetup sends the requests that siw was sent: the replies are siw's, octet for octet.
func TestSiwSetup(t *testing.T) {
	for _, name := range []string{
		"siw-no-crc", "siw-private-data", "siw-rev1-crc", "siw-rev1-no-crc", "siw-p2p-write-rtr", "siw-p2p-read-rtr", "siw-p2p-both-rtr",
		"siw-p2p-no-rtr", "siw-depth-0", "siw-depth-1000", "siw-rping",
	} {
		t.Run(name, func(t *testing.T) {
			r := recorded(t, name)
			s := newSide(t, likeSiw, nil)
			p := acceptRaw(t, s, parsedFrame(t, r.active[0]), verbs.ConnParam{})
			if got := encodeFrame(t, p.reply); !bytes.Equal(got, r.passive[0]) {
				t.Errorf("reply %x, siw's is %x", got, r.passive[0])
			}
		})
	}
	t.Run("siw-markers", func(t *testing.T) {
		r := recorded(t, "siw-markers")
		p, _ := dialRaw(t, newSide(t, likeSiw, nil))
		p.write(r.active[0])
		if got := encodeFrame(t, p.readFrame()); !bytes.Equal(got, r.passive[0]) {
			t.Errorf("reply %x, siw's is %x", got, r.passive[0])
		}
		p.end()
	})
}

// TestSiwRequest: as active side the device sends the request that siw sends for
// rping, octet for octet, and takes siw's reply.
func TestSiwRequest(t *testing.T) {
	r := recorded(t, "siw-rping")
	s := newSide(t, likeSiw, nil)
	p := connectRaw(t, s, func(req mpa.Frame) mpa.Frame {
		if got := encodeFrame(t, req); !bytes.Equal(got, r.active[0]) {
			t.Errorf("request %x, siw's is %x", got, r.active[0])
		}
		return parsedFrame(t, r.passive[0])
	}, verbs.ConnParam{ResponderResources: 1, InitiatorDepth: 1})
	p.hello(t, s, true)
}

// TestSiwErrors sends what siw was sent in error: the device finds the same cause.
func TestSiwErrors(t *testing.T) {
	for name, cause := range siwTerminates {
		t.Run(name, func(t *testing.T) {
			r := recorded(t, name)
			s := newSide(t, iwarp.Config{}, nil)
			s.recv(t, verbs.RecvWR{SGL: []verbs.SGE{s.region(t, 64).SGE(0, 64)}})
			p := acceptRaw(t, s, parsedFrame(t, r.active[0]), verbs.ConnParam{})
			for _, b := range r.active[1:] {
				p.write(b)
			}
			if term := p.terminate(); term.Cause() != cause {
				t.Errorf("Terminate %v, siw's is %v", term, cause)
			}
		})
	}
}

// siwTerminates are the recordings that end in a Terminate of siw's.
var siwTerminates = map[string]rdmap.Cause{
	"siw-bad-crc":     rdmap.TermMPACRC,
	"siw-bad-version": rdmap.TermDDPUntaggedVersion,
	"siw-bad-queue":   rdmap.TermDDPInvalidQN,
	"siw-bad-stag":    rdmap.TermDDPInvalidSTag,
	"siw-http":        rdmap.TermDDPUntaggedVersion,
}

// TestSiwTerminates sends siw's Terminates, in siw's bit order, to a device as
// active side: the oldest request gets the cause.
func TestSiwTerminates(t *testing.T) {
	for name, cause := range siwTerminates {
		t.Run(name, func(t *testing.T) {
			r := recorded(t, name)
			s := newSide(t, iwarp.Config{NoPeerToPeer: true}, nil)
			p := connectRaw(t, s, func(mpa.Frame) mpa.Frame { return parsedFrame(t, r.passive[0]) },
				verbs.ConnParam{ResponderResources: 16, InitiatorDepth: 16})
			s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled})
			p.expect(rdmap.OpReadRequest)
			p.write(r.passive[1])
			wc := s.wait(t)
			if wc.ID != 1 || wc.Status == verbs.StatusSuccess || wc.Status == verbs.StatusWRFlushErr || wc.Vendor != uint32(cause) {
				t.Errorf("completion %+v, want a failure with vendor code %#x", wc, uint32(cause))
			}
			p.end()
		})
	}
}

// TestSiwReadRequest: siw asks to read 64 octets of an STag that is not there.
func TestSiwReadRequest(t *testing.T) {
	for _, name := range []string{"siw-read-crc", "siw-read-no-crc"} {
		r := recorded(t, name)
		s := newSide(t, iwarp.Config{NoCRC: name == "siw-read-no-crc", NoPeerToPeer: true}, nil)
		mr := s.region(t, 16)
		_, _ = hex.Decode(mr.Bytes(), []byte("0000000012345000aabbccdd00000040"))
		p := connectRaw(t, s, func(mpa.Frame) mpa.Frame { return parsedFrame(t, r.passive[0]) }, verbs.ConnParam{})
		s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 16)}})
		h, payload := p.expect(rdmap.OpSend)
		want := r.active[1]
		if !p.crc { // the client that was recorded sent a CRC all the same
			want = append(bytes.Clone(want[:len(want)-mpa.CRCLen]), 0, 0, 0, 0)
		}
		if got := p.fpdu(h, payload); !bytes.Equal(got, want) {
			t.Errorf("%s: sent %x, recorded %x", name, got, want)
		}
		p.write(r.passive[1])
		if term := p.terminate(); term.Cause() != rdmap.TermInvalidSTag || !term.HasRDMAP {
			t.Errorf("%s: Terminate %v", name, term)
		}
	}
}

// TestSiwRping replays two rounds of rping between two siw ends, with the device in
// the place of one of them; only STags and offsets are the live ones.
func TestSiwRping(t *testing.T) {
	t.Run("server", func(t *testing.T) { testSiwRpingServer(t, recorded(t, "siw-rping")) })
	t.Run("client", func(t *testing.T) { testSiwRpingClient(t, recorded(t, "siw-rping")) })
}

// rpingSize is the size of the recorded rounds.
const rpingSize = 3000

// advertised is where rping's message says that the client's buffer is.
func advertised(b []byte) verbs.RemoteAddr {
	return verbs.RemoteAddr{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:])}
}

// moved returns a recorded tagged FPDU, without CRC, aimed at another buffer:
// the message began at the offset from in the recording.
func moved(fpdu []byte, from uint64, stag uint32, to uint64) []byte {
	b := bytes.Clone(fpdu)
	binary.BigEndian.PutUint32(b[4:], stag)
	binary.BigEndian.PutUint64(b[8:], to+binary.BigEndian.Uint64(b[8:])-from)
	return b
}

func testSiwRpingServer(t *testing.T, r recording) {
	s := newSide(t, likeSiw, nil)
	adv, ping := s.region(t, 16), s.region(t, rpingSize)
	p := acceptRaw(t, s, parsedFrame(t, r.active[0]), verbs.ConnParam{})
	client := r.active[1:]
	next := func() (b []byte) { b, client = client[0], client[1:]; return b }
	get := func(round uint64) verbs.RemoteAddr {
		s.recv(t, verbs.RecvWR{ID: round, SGL: []verbs.SGE{adv.SGE(0, 16)}})
		p.write(next())
		s.want(t, round, verbs.WCRecv, verbs.StatusSuccess)
		return advertised(adv.Bytes())
	}
	goOn := func(round uint64) {
		s.send(t, verbs.SendWR{ID: round, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{adv.SGE(0, 16)}})
		s.want(t, round, verbs.WCSend, verbs.StatusSuccess)
		p.expect(rdmap.OpSend)
	}
	for round := range uint64(2) {
		source := get(4 * round)
		s.send(t, verbs.SendWR{ID: 4*round + 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{ping.SGE(0, rpingSize)}, Remote: source})
		_, payload := p.expect(rdmap.OpReadRequest)
		req, _ := rdmap.ParseReadRequest(payload)
		if req.SourceSTag != source.RKey || req.SourceTO != source.Addr || req.Size != rpingSize {
			t.Fatalf("read request %+v, want %d octets of %v", req, rpingSize, source)
		}
		from := binary.BigEndian.Uint64(client[0][8:])
		var sent []byte
		for range 3 {
			b := next()
			sent = append(sent, b[16:16+int(binary.BigEndian.Uint16(b))-ddp.TaggedHeaderLen]...)
			p.write(moved(b, from, req.SinkSTag, req.SinkTO))
		}
		if s.want(t, 4*round+1, verbs.WCRead, verbs.StatusSuccess); !bytes.Equal(ping.Bytes(), sent) || !bytes.HasPrefix(sent, []byte("rdma-ping-")) {
			t.Errorf("round %d: the data read differs", round)
		}
		goOn(4*round + 2)
		sink := get(4*round + 3)
		s.send(t, verbs.SendWR{ID: 4 * round, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{ping.SGE(0, rpingSize)}, Remote: sink})
		s.want(t, 4*round, verbs.WCWrite, verbs.StatusSuccess)
		var got []byte
		for len(got) < rpingSize {
			h, payload := p.expect(rdmap.OpWrite)
			if h.STag != sink.RKey || h.TO != sink.Addr+uint64(len(got)) {
				t.Fatalf("write to STag %#x offset %#x", h.STag, h.TO)
			}
			got = append(got, payload...)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("round %d: the data written differs", round)
		}
		goOn(4*round + 1)
	}
	if len(client) > 0 {
		t.Errorf("%d segments of the recording are left", len(client))
	}
}

func testSiwRpingClient(t *testing.T, r recording) {
	s := newSide(t, likeSiw, nil)
	adv, ping := s.region(t, 32), s.region(t, rpingSize)
	p := connectRaw(t, s, func(mpa.Frame) mpa.Frame { return parsedFrame(t, r.passive[0]) }, verbs.ConnParam{ResponderResources: 1, InitiatorDepth: 1})
	server := r.passive[1:]
	next := func() (b []byte) { b, server = server[0], server[1:]; return b }
	put := func(id uint64) {
		binary.BigEndian.PutUint64(adv.Bytes(), ping.Remote().Addr)
		binary.BigEndian.PutUint32(adv.Bytes()[8:], ping.RKey())
		binary.BigEndian.PutUint32(adv.Bytes()[12:], rpingSize)
		s.recv(t, verbs.RecvWR{ID: id, SGL: []verbs.SGE{adv.SGE(16, 16)}})
		s.send(t, verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{adv.SGE(0, 16)}})
		s.want(t, id, verbs.WCSend, verbs.StatusSuccess)
		p.expect(rdmap.OpSend)
	}
	for round := range uint64(2) {
		fill(ping.Bytes(), round)
		put(2 * round)
		b := bytes.Clone(next()) // the Read Request: its source is the last 12 octets of the header
		source := b[mpa.HeaderLen+ddp.UntaggedHeaderLen+16:]
		binary.BigEndian.PutUint32(source, ping.RKey())
		binary.BigEndian.PutUint64(source[4:], ping.Remote().Addr)
		p.write(b)
		req, _ := rdmap.ParseReadRequest(b[mpa.HeaderLen+ddp.UntaggedHeaderLen:])
		var got []byte
		for len(got) < rpingSize {
			h, payload := p.expect(rdmap.OpReadResponse)
			if h.STag != req.SinkSTag || h.TO != req.SinkTO+uint64(len(got)) {
				t.Fatalf("response to STag %#x offset %#x", h.STag, h.TO)
			}
			got = append(got, payload...)
		}
		if !bytes.Equal(got, ping.Bytes()) {
			t.Errorf("round %d: the data read differs", round)
		}
		p.write(next())
		s.want(t, 2*round, verbs.WCRecv, verbs.StatusSuccess)
		put(2*round + 1)
		from := binary.BigEndian.Uint64(server[0][8:])
		for range 3 {
			p.write(moved(next(), from, ping.RKey(), ping.Remote().Addr))
		}
		p.write(next())
		if s.want(t, 2*round+1, verbs.WCRecv, verbs.StatusSuccess); !bytes.HasPrefix(ping.Bytes(), []byte("rdma-ping-")) {
			t.Errorf("round %d: the data written differs", round)
		}
	}
	if len(server) > 0 {
		t.Errorf("%d segments of the recording are left", len(server))
	}
}
