package hg

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na/natest"
)

// lines returns the lines of a file of testdata that are not comments, as two words each.
func lines(t testing.TB, path string) (list [][2]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if first, second, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			list = append(list, [2]string{first, second})
		}
	}
	return list
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCaptures reads what processes of C have said to each other, and writes it again.
// parity(recorded): H60
func TestCaptures(t *testing.T) {
	files, err := filepath.Glob("testdata/captures/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		want := wire.FormShort
		if strings.Contains(name, "crc") {
			want = wire.FormLong
		}
		t.Run(name, func(t *testing.T) {
			for _, l := range lines(t, path) {
				b := unhex(t, l[1])
				switch l[0] {
				case "request":
					captureRequest(t, b, want)
				case "response":
					captureResponse(t, b, want)
				case "ack":
					if len(b) != wire.AckSize {
						t.Errorf("ack % x", b)
					}
				default:
					t.Errorf("line %q", l)
				}
			}
		})
	}
}

func captureRequest(t *testing.T, b []byte, want wire.Form) {
	for _, mode := range []wire.ChecksumMode{[]wire.ChecksumMode{wire.FormShort: wire.NoChecksums, wire.FormLong: wire.Checksums}[want], wire.Detect} {
		f, payload, bad := wire.ParseRequest(b, mode)
		if bad != nil || f.Form != want {
			t.Errorf("request % x: form %v, %v", b, f.Form, bad)
			continue
		}
		checkCaptured(t, payload, f.Flags)
		head := make([]byte, want.Size())
		wire.PutRequest(head, f)
		same := bytes.Equal(head[:12], b[:12])
		if written := want == wire.FormLong && wire.RequestHeader(b).CRC16() != 0; written {
			same = same && bytes.Equal(head[12:14], b[12:14]) && bytes.Equal(head[16:20], b[16:20])
		}
		if !same {
			t.Errorf("request % x is written as % x", b[:len(head)], head)
		}
	}
}

func captureResponse(t *testing.T, b []byte, want wire.Form) {
	f, payload, bad := wire.ParseResponse(b, want)
	if bad != nil {
		t.Errorf("response % x: %v", b, bad)
		return
	}
	if f.Code == wire.Success {
		checkCaptured(t, payload, f.Flags)
	} else if len(b) != want.ErrorSize() {
		t.Errorf("an error in %d bytes", len(b))
	}
	head := make([]byte, want.Size())
	wire.PutResponse(head, f)
	same := bytes.Equal(head[:4], b[:4])
	if written := want == wire.FormLong && wire.ResponseHeader(b).CRC16() != 0; written {
		same = same && bytes.Equal(head[4:6], b[4:6])
		if f.Code == wire.Success {
			same = same && bytes.Equal(head[16:20], b[16:20])
		}
	}
	if !same {
		t.Errorf("response % x is written as % x", b[:len(head)], head)
	}
}

// checkCaptured checks the descriptor of an overflow.
func checkCaptured(t *testing.T, payload []byte, flags uint8) {
	if flags&wire.FlagMoreData == 0 {
		return
	}
	c := New(Config{})
	d, err := c.checkLent(payload, c.self)
	if err != nil || d.Segments() != 1 || d.Flags() != wire.BulkReadOnly {
		t.Errorf("overflow % x: %v", payload, err)
		return
	}
	if got := d.AppendProc(nil, 0, OverNetwork); !bytes.Equal(got, payload) {
		t.Errorf("overflow % x is written as % x", payload, got)
	}
}

// TestDescriptorsOfC reads descriptors of C, and compares them with those that this process makes for such memory.
// parity(recorded): H78
func TestDescriptorsOfC(t *testing.T) {
	n := natest.New(natest.Config{})
	own := open(t, n, Config{NoEager: true})
	for _, l := range lines(t, "testdata/descriptors.txt") {
		b := unhex(t, l[1])
		d, size, err := DecodeProc(b, OverNetwork)
		if err != nil || size != len(b) {
			t.Errorf("%s: %v", l[0], err)
			continue
		}
		if got := d.AppendProc(nil, 0, OverNetwork); !bytes.Equal(got, b) {
			t.Errorf("%s: written as % x, want % x", l[0], got, b)
		}
		if d == nil {
			continue
		}
		segs := [][]byte{make([]byte, 16), make([]byte, 20), make([]byte, 30)}[:d.Segments()]
		bulk := expose(t, own, d.Access(), segs...)
		mine := bulk.Desc()
		if d.Bound() != nil {
			mine = bulk.Bind()
		}
		if got, want := blank(mine.AppendProc(nil, 0, OverNetwork), d), blank(b, d); !bytes.Equal(got, want) {
			t.Errorf("%s: this process makes\n% x, C\n% x", l[0], got, want)
		}
	}
}

// blank overwrites what differs from process to process: base addresses, keys, and the port of the bound address.
func blank(b []byte, like *Desc) []byte {
	b = bytes.Clone(b)
	n := like.Segments()
	at := wordSize + infoSize
	for range n {
		clear(b[at : at+8])
		at += segmentSize
	}
	at += wordSize * n // sizes of handles
	for range n {
		clear(b[at : at+8])     // key
		clear(b[at+32 : at+40]) // base
		at += 48
	}
	if like.Bound() != nil {
		clear(b[at+8+8+8+2 : at+8+8+8+4])
	}
	return b
}
