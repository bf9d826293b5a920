package pingpong

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"cinnabar/verbs/oob"
)

// FuzzDest reads a hostile peer's message of pingpong's exchange.
func FuzzDest(f *testing.F) {
	f.Add([]byte(destLayout))
	f.Add([]byte("0001:000011:123456:00000000000000000000ffff0a000001\x00"))
	f.Add([]byte(strings.Repeat("0", len(destLayout))))
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

// FuzzSettings reads a hostile peer's line of settings, and compares it with one's own.
func FuzzSettings(f *testing.F) {
	f.Add([]byte("settings\n"))
	f.Add([]byte("size=4096 iterations=1000\n"))
	f.Add(bytes.Repeat([]byte{'x'}, maxLine+1))
	f.Fuzz(func(t *testing.T, from []byte) {
		line, ok, err := readSettings(finishedPeer{Reader: bytes.NewReader(from)})
		if err != nil || !ok {
			return
		}
		if len(line) >= maxLine || !bytes.HasPrefix(from, []byte(line+"\n")) {
			t.Fatalf("%q was read as %q", from, line)
		}
		b := &bouncer{}
		if err := b.compare(line); err != nil && len(err.Error()) > 16*maxLine {
			t.Fatalf("an error of %d bytes for a line of %d", len(err.Error()), len(line))
		}
	})
}
