//go:build linux

package interop

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar"
)

// Parts of the messages that the tests of this file look at; all integers are little-endian but for those of the core
// header. A data message begins with version, op, flags (2), op_data, number of RMA vectors, header size, id and total
// size (8); RMA vectors are address, length and key.
const (
	cmSize     = 40
	headerSize = 16
	vectorSize = 24

	opMessage = 0
	opTag     = 1
	opReadReq = 2
	opReadRsp = 3
	opWrite   = 4

	flagCQData      = 1      // of a data message: it is a request, not a piece of one
	addressSize     = 16     // of the dialing side, in front of a request's core header
	requestFlags    = 10     // offset of the flags in a request's core header
	coreHeader      = 16     // of responses: return code, flags, cookie (2), padding; then Mercury's own header
	flagMoreData    = 0x01   // of the core header
	flagChecksums   = 0x80   // of the core header: 4 bytes more of it
	extraChecksums  = 4      //
	keyInDescriptor = 8 + 40 // length and what stands before the key of the first segment
)

// message is one message of a recorded conversation.
type message struct {
	fromDialer bool
	bytes      []byte // nil: the end of the stream
}

// conversation reads the first connection of a recorded file.
func conversation(t *testing.T, name string) []message {
	t.Helper()
	var ms []message
	for i, l := range recorded(t, filepath.Join("wire", name+".hex")) {
		way, rest, _ := strings.Cut(l, " ")
		switch {
		case i == 0 && way == "conn":
			continue
		case way == "conn":
			return ms
		case way != ">" && way != "<":
			t.Fatalf("%s: line %q is no message", name, l)
		}
		m := message{fromDialer: way == ">"}
		if rest != "close" {
			b, err := hex.DecodeString(rest)
			if err != nil {
				t.Fatalf("%s: %q: %v", name, l, err)
			}
			m.bytes = b
		}
		ms = append(ms, m)
	}
	return ms
}

// replayed are the conversations in which a recorded client is played to a server in Go. Left out are those in which the
// server calls the client, whose tags are the server's choice; those in which answers may overtake each other; and
// transfers of several segments, which Mercury asks for in as many messages and this module in one.
var replayed = []struct {
	names string
	rpc   *procedures
}{
	{"sum void unknown null oneway echo0 echo1 echo2", mercury},
	{"eager16 eager_readwrite eager_push_readwrite pull16 pull3_eager pull_20000 pull_denied", mercury},
	{"push48 bound_pull bound_push", mercury},
	{"inline_limit inline_limit_plus1 overflow_in overflow_out overflow_both overflow_oneway", mercury},
	{"crc_none_sum crc_headers_sum crc_payload_sum crc_payload_void crc_payload_unknown crc_payload_echo", mercury},
	{"crc_payload_overflow crc_payload_oneway", mercury},
	{"margo_sum margo_sum42 margo_noprovider margo_void margo_null margo_identity margo_oneway margo_echo", margo},
	{"margo_pull margo_overflow margo_crc_sum margo_shutdown margo_shutdown_denied", margo},
}

// TestReplayClients plays what clients in C have sent to a server in Go, whose answers must be those of the server in C
// but for what each process chooses itself.
// parity(recorded): H43 H47 H51 H55 H60 H62 H71 H77 H79 H84 G07 G20 G21 G27 G38 G45
func TestReplayClients(t *testing.T) {
	apart(t)
	for _, list := range replayed {
		for _, name := range strings.Fields(list.names) {
			t.Run(name, func(t *testing.T) {
				s := listen(t, list.rpc, &cinnabar.Config{AllowRemoteShutdown: name == "margo_shutdown"})
				if list.rpc == margo {
					s.serveMargo(t)
				} else {
					s.serveMercury(t)
				}
				replay(t, s.Addr(), conversation(t, name))
			})
		}
	}
}

// player is the dialing side of a conversation.
type player struct {
	t    *testing.T
	conn net.Conn
	key  []byte // of the memory that holds the rest of the last response, nil if there is none
}

func replay(t *testing.T, addr string, ms []message) {
	t.Helper()
	p := dialPlayer(t, addr)
	for i, m := range ms {
		if m.bytes == nil { // the recorded program has ended
			break
		}
		p.step(ms, i)
	}
	_ = p.conn.Close() // nothing is written any more
}

// dialPlayer connects to a server, as the recorded program did.
func dialPlayer(t *testing.T, addr string) *player {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(addr, "ofi+tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // closed already, or there is nothing more to write
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &player{t: t, conn: conn}
}

// step plays one message, which ends the test if the server does not do as it did.
func (p *player) step(ms []message, i int) {
	p.t.Helper()
	if ms[i].fromDialer {
		p.send(ms[i].bytes)
	} else {
		p.receive(fmt.Sprintf("message %d", i), ms[i].bytes)
	}
	if p.t.Failed() {
		p.t.FailNow()
	}
}

// send sends a message. One that reads the rest of a response uses the key that was given for it.
func (p *player) send(b []byte) {
	p.t.Helper()
	if len(b) == headerSize+vectorSize && b[1] == opReadReq && p.key != nil {
		b = slices.Concat(b[:len(b)-8], p.key)
	}
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// receive reads a message, which must be like the recorded one.
func (p *player) receive(what string, want []byte) {
	p.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(p.conn, got); err != nil {
		p.t.Fatalf("%s: %d of %d bytes come, then %v: %x; want %x", what, n, len(want), err, got[:n], want)
	}
	if isConnect(want) {
		mask(got, want, 32, 34) // version and features
		mask(got, want, 36, 40) // pid
	} else {
		p.maskData(got, want)
	}
	if !bytes.Equal(got, want) {
		p.t.Errorf("%s:\n got %x\nwant %x", what, got, want)
	}
}

// isConnect reports whether b is a message of connection management: they begin with its version, their kind and the
// length of what follows.
func isConnect(b []byte) bool {
	return len(b) == cmSize && bytes.HasPrefix(b, []byte{3, 1, 0, 8})
}

// mask makes bytes of got equal to those of want that every process chooses itself.
func mask(got, want []byte, from, to int) { copy(got[from:to], want[from:to]) }

// maskData masks a data message.
func (p *player) maskData(got, want []byte) {
	if want[1] != opReadReq && want[1] != opWrite {
		mask(got, want, 5, 6) // number of RMA vectors where there are none
	}
	mask(got, want, 7, 8) // id
	if want[1] != opTag || len(want) < int(want[6])+coreHeader {
		return // an acknowledgement has one byte
	}
	payload := p.maskResponse(got[want[6]:], want[want[6]:])
	p.key = nil
	if want[int(want[6])+1]&flagMoreData != 0 && len(payload) >= keyInDescriptor+8 {
		p.key = slices.Clone(payload[keyInDescriptor:][:8])
		mask(got, want, len(want)-len(payload)+24, len(want)) // base pointers and keys
	}
}

// maskResponse masks the headers of a response and returns its payload. Checksums of headers and payload stay.
func (p *player) maskResponse(got, want []byte) (payload []byte) {
	header := coreHeader
	if want[0] != 0 { // the return code: what follows is stale memory
		header = len(want)
	} else if want[1]&flagChecksums != 0 {
		header += extraChecksums
		mask(got, want, 6, 16)
		maskUnwritten(got[4:6], want[4:6])
		maskUnwritten(got[16:20], want[16:20])
		return got[header:]
	}
	mask(got, want, 4, header)
	return got[header:]
}

// maskUnwritten masks a checksum that the recorded program did not write, by its level or for want of a payload. This
// module writes them always.
func maskUnwritten(got, want []byte) {
	if bytes.Equal(want, make([]byte, len(want))) {
		clear(got)
	}
}

// TestRecordedFrames checks that the recorded files are whole: each message is as long as it says.
func TestRecordedFrames(t *testing.T) {
	names, err := filepath.Glob("testdata/wire/*.hex")
	if err != nil || len(names) < 50 {
		t.Fatalf("%d conversations, %v", len(names), err)
	}
	for _, path := range names {
		name := strings.TrimSuffix(filepath.Base(path), ".hex")
		for i, m := range conversation(t, name) {
			switch b := m.bytes; {
			case b == nil:
			case i < 2 && len(b) == cmSize:
			case i >= 2 && len(b) >= headerSize && binary.LittleEndian.Uint64(b[8:]) == uint64(len(b)) && int(b[6]) <= len(b):
			default:
				t.Errorf("%s: message %d is malformed: %x", name, i, b)
			}
		}
	}
}
