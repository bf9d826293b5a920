package main

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"cinnabar/verbs/oob"
)

// procCodec is a type of perf serve that reads its own bytes.
type procCodec interface {
	AppendProc(to []byte) ([]byte, error)
	DecodeProc(from []byte) (int, error)
}

// FuzzPerfBlocks gives the types of perf serve bytes of a hostile client: they take no more than there is, and write accepted
// bytes again as they were.
func FuzzPerfBlocks(f *testing.F) {
	for _, c := range []procCodec{&perfBlock{[]byte("data")}, &perfCount{3}, &perfPattern{300}, &perfRemote{}} {
		b, err := c.AppendProc(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add(bytes.Repeat([]byte{0xff}, 12))
	f.Fuzz(func(t *testing.T, from []byte) {
		for _, c := range []procCodec{new(perfBlock), new(perfCount), new(perfPattern), new(perfRemote)} {
			n, err := c.DecodeProc(from)
			if n < 0 || n > len(from) {
				t.Fatalf("%T took %d of %d bytes", c, n, len(from))
			}
			if err != nil {
				continue
			}
			again, err := c.AppendProc(nil)
			_, keeps := c.(*perfBlock) // the others keep a number
			if err != nil || len(again) > n || keeps && !bytes.Equal(again, from[:n]) {
				t.Fatalf("%T read %x and wrote %x, %v", c, from[:n], again, err)
			}
		}
	})
}

// FuzzPingpongDest reads a hostile peer's message of pingpong's exchange.
func FuzzPingpongDest(f *testing.F) {
	f.Add([]byte(pingpongDest))
	f.Add([]byte("0001:000011:123456:00000000000000000000ffff0a000001\x00"))
	f.Add([]byte(strings.Repeat("0", len(pingpongDest))))
	f.Fuzz(func(t *testing.T, from []byte) {
		info, err := readDest(bytes.NewReader(from))
		if err != nil {
			return
		}
		text, err := oob.QPInfo{LID: info.LID, QPN: info.QPN, PSN: info.PSN, GID: info.GID}.AppendText(nil)
		if err != nil || !strings.EqualFold(string(text), string(from[:len(text)])) {
			t.Fatalf("%q was read as %+v, which is %q, %v", from, info, text, err)
		}
	})
}

// finishedPeer is a connection to a peer that has sent everything it will send.
type finishedPeer struct {
	net.Conn
	io.Reader
}

func (c finishedPeer) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// FuzzPingpongSettings reads a hostile peer's line of settings, and compares it with one's own.
func FuzzPingpongSettings(f *testing.F) {
	f.Add([]byte("settings\n"))
	f.Add([]byte("size=4096 iterations=1000\n"))
	f.Add(bytes.Repeat([]byte{'x'}, maxPingpongLine+1))
	f.Fuzz(func(t *testing.T, from []byte) {
		line, ok, err := readSettings(finishedPeer{Reader: bytes.NewReader(from)})
		if err != nil || !ok {
			return
		}
		if len(line) >= maxPingpongLine || !bytes.HasPrefix(from, []byte(line+"\n")) {
			t.Fatalf("%q was read as %q", from, line)
		}
		b := &bouncer{}
		if err := b.compare(line); err != nil && len(err.Error()) > 16*maxPingpongLine {
			t.Fatalf("an error of %d bytes for a line of %d", len(err.Error()), len(line))
		}
	})
}
