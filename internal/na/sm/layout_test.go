package sm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cinnabar/internal/shm"
)

// TestLayout compares what init writes with what C's Mercury 2.4.1 has in an idle region.
func TestLayout(t *testing.T) {
	m, err := shm.Private(extendedSize)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r := newRegion(m)
	r.init(identity{21562, 0}, 0)
	want := goldenRegion(t)
	clear(m.Bytes()[offTail:regionSize]) // C leaves it alone
	if got := m.Bytes()[:regionSize]; !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("byte %#x is %#x, want %#x", i, got[i], want[i])
			}
		}
	}
}

// goldenRegion is the idle region of a server in C.
func goldenRegion(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, regionSize)
	f, err := os.Open(filepath.Join("testdata", "region.hex"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := lines.Text(); line != "" && line[0] != '#' {
			placeGolden(t, b, line)
		}
	}
	return b
}

// placeGolden puts "offset [xN/stride] bytes" into b.
func placeGolden(t *testing.T, b []byte, line string) {
	t.Helper()
	fields := strings.Fields(line)
	off, err := strconv.ParseInt(fields[0], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	count, stride := 1, 0
	if rest, ok := strings.CutPrefix(fields[1], "x"); ok {
		n, s, _ := strings.Cut(rest, "/")
		v, err1 := strconv.Atoi(n)
		w, err2 := strconv.ParseInt(s, 16, 32)
		if err1 != nil || err2 != nil {
			t.Fatal(line)
		}
		count, stride = v, int(w)
		fields = fields[1:]
	}
	data, err := hex.DecodeString(strings.Join(fields[1:], ""))
	if err != nil {
		t.Fatal(err)
	}
	if off == offLocks && runtime.GOARCH != "amd64" {
		clear(data)
	}
	for i := range count {
		copy(b[int(off)+i*stride:], data)
	}
}

func TestDescriptor(t *testing.T) {
	for _, tt := range []struct {
		d             descriptor
		tag           uint32
		n, buffer     int
		kind          uint8
		littleEndians string
	}{
		{makeDescriptor(0x481, 0x54, 0, typeUnexpected), 0x481, 0x54, 0, 0, "8104000054000000"},
		{makeDescriptor(0x481, 0x10, 0, typeExpected), 0x481, 0x10, 0, 3, "8104000010000003"},
		{makeDescriptor(0xFFFFFFFF, 4096, 63, typeExpected), 0xFFFFFFFF, 4096, 63, 3, "ffffffff00103f03"},
	} {
		if tt.d.tag() != tt.tag || tt.d.len() != tt.n || tt.d.buffer() != tt.buffer || tt.d.kind() != tt.kind || littleEndian(uint64(tt.d)) != tt.littleEndians {
			t.Errorf("%s: %s, tag %#x, %d bytes, buffer %d, type %d", tt.littleEndians, littleEndian(uint64(tt.d)), tt.d.tag(), tt.d.len(), tt.d.buffer(), tt.d.kind())
		}
	}
}

func TestCommand(t *testing.T) {
	reserved := makeCommand(identity{24573, 0}, 1, commandReserved, 0)
	if got := littleEndian(uint64(reserved)); got != "fd5f000000010100" {
		t.Errorf("reserved: %s", got)
	}
	if got := littleEndian(uint64(makeCommand(identity{24573, 0}, 1, commandReleased, 0))); got != "fd5f000000010200" {
		t.Errorf("released: %s", got)
	}
	c := makeCommand(identity{7, 255}, 255, commandReserved, extensionVersion)
	if c.ident() != (identity{7, 255}) || c.pair() != 255 || c.kind() != commandReserved || c.extension() != extensionVersion {
		t.Errorf("%#x", c)
	}
}

func littleEndian(v uint64) string {
	var b [8]byte
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	return hex.EncodeToString(b[:])
}
