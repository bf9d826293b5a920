package wire

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// parity(recorded): H78
func TestBulkGolden(t *testing.T) {
	sockaddr := "\x10\x00\x00\x00\x00\x00\x00\x00\x02\x00\x86\x53\x7f\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"
	for _, tc := range []struct {
		name     string
		size     uint64
		segments int
		flags    uint32
		bound    string
		eager    string
	}{
		{"proc_pull", 16, 1, BulkReadOnly, "", ""},
		{"proc_eager", 16, 1, BulkReadOnly | BulkEager, "", "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"},
		{"proc_bound", 48, 1, BulkReadOnly | BulkWriteOnly | BulkBind, sockaddr, ""},
		{"proc_bound_short", 48, 1, BulkReadOnly | BulkWriteOnly | BulkBind, sockaddr, ""},
		{"proc_segments", 60, 3, BulkReadOnly | BulkWriteOnly, "", ""},
	} {
		b := golden(t, tc.name)
		d, n, err := decodeProc(append(bytes.Clone(b), 1, 2, 3))
		if err != nil || n != len(b) {
			t.Errorf("%s: %d bytes, error %v; want %d", tc.name, n, err, len(b))
			continue
		}
		if d.Len() != tc.size || d.Segments() != tc.segments || d.Flags() != tc.flags || string(d.Bound()) != tc.bound || string(d.Eager()) != tc.eager {
			t.Errorf("%s: length %d, segments %d, flags %#x, bound %q, eager %q", tc.name, d.Len(), d.Segments(), d.Flags(), d.Bound(), d.Eager())
		}
		if got := d.AppendProc(nil); !bytes.Equal(got, b) {
			t.Errorf("%s: sent on as % x", tc.name, got)
		}
		if got := d.Append(nil); !bytes.Equal(got, b[wordSize:]) {
			t.Errorf("%s: serialized as % x", tc.name, got)
		}
		for cut := range b {
			if _, _, err := decodeProc(b[:cut]); err == nil {
				t.Errorf("%s: the first %d bytes pass", tc.name, cut)
			}
		}
		for cut := range len(b) - wordSize {
			if _, err := ParseBulk(b[wordSize:][:cut]); err == nil {
				t.Errorf("%s: the first %d bytes of the descriptor pass", tc.name, cut)
			}
		}
	}
}

// decodeProc reads a descriptor behind its size.
func decodeProc(b []byte) (d Bulk, n int, err error) {
	raw, n, err := CutProc(b)
	if raw == nil {
		return Bulk{}, n, err
	}
	d, err = ParseBulk(raw)
	return d, n, err
}

// appendSegment appends an entry of the list of segments.
func appendSegment(b []byte, base, length uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, base), length)
}

// patched returns golden bytes of a descriptor, without their size, with a word replaced.
func patched(t *testing.T, name string, at int, word uint64) []byte {
	b := golden(t, name)[wordSize:]
	binary.LittleEndian.PutUint64(b[at:], word)
	return b
}

func TestMalformedBulks(t *testing.T) {
	const info, seg1 = 0, infoSize
	for _, tc := range []struct {
		name string
		b    []byte
		text string
	}{
		{"total is wrong", patched(t, "proc_pull", info, 17), "segments have 16 bytes together, descriptor says 17"},
		{"total of 2^63", patched(t, "proc_pull", info, 1<<63), "descriptor says"},
		{"no segments", patched(t, "proc_pull", info+8, 1<<32), "no segments"},
		{"too many segments", patched(t, "proc_pull", info+8, 1<<32|0xffffffff), "ends in its segments"},
		{"lengths overflow", patched(t, "proc_segments", seg1+8, 1<<64-20), "exceed 64 bits"},
		{"handle too long", patched(t, "proc_pull", seg1+16, 1<<63), "ends in its handle"},
		{"handle too short", patched(t, "proc_pull", seg1+16, 47), "after its end"},
		{"size of a second handle", patched(t, "proc_segments", seg1+3*16+8, 1<<64-48), "ends in its handle 1"},
		{"handle without address", patched(t, "proc_segments", seg1, 0), "no address but a handle"},
		{"eager data too short", golden(t, "proc_eager")[wordSize:][:103], "ends in its data"},
		{"eager without data", patched(t, "proc_pull", info+8, 1|uint64(BulkReadOnly|BulkEager)<<32), "ends in its data"},
		{"address too long", patched(t, "proc_bound", 88, 1<<60), "ends in its address"},
		{"address without network", patched(t, "proc_bound", 96, 0), "after its end"},
		{"address of shared memory too long", patched(t, "proc_bound", 128, 1), "address of shared memory"},
		{"trailing byte", append(patched(t, "proc_pull", 0, 16), 0), "1 bytes after its end"},
	} {
		_, err := ParseBulk(tc.b)
		if err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.text)
		}
	}
}

// TestBulkForms has descriptors of other builds and of other people's networks: nothing of them is refused or changed.
func TestBulkForms(t *testing.T) {
	handle := golden(t, "proc_pull")[wordSize+40:]
	shm := []byte{3, 0, 0, 0, 0, 0, 0, 0, 'x', 'y', 'z'}
	one := patched(t, "proc_pull", 8, 1|uint64(BulkReadOnly|BulkSM)<<32)
	three := patched(t, "proc_segments", 8, 3|uint64(BulkReadOnly|BulkSM)<<32)
	sizes := make([]byte, 3*wordSize)
	sizes[0], sizes[8], sizes[16] = 1, 2, 3
	regv := appendInfo(nil, 60, 2, BulkReadOnly|BulkRegV)
	regv = appendSegment(appendSegment(regv, 0x1000, 20), 0x2000, 40)
	regv = append(append(regv, 48, 0, 0, 0, 0, 0, 0, 0), handle...)
	for name, b := range map[string][]byte{
		"shared memory, one segment":    append(one, shm...),
		"shared memory, three segments": append(append(three, sizes...), "abbccc"...),
		"one handle for all":            regv,
		"sent on":                       patched(t, "proc_pull", 8, 1|uint64(BulkReadOnly|BulkVirt)<<32),
		"stale memory in the flags":     patched(t, "proc_pull", 8, 1|0xabcdef01<<32&^(uint64(BulkBind|BulkEager|BulkRegV|BulkSM)<<32)),
		"empty segment without handle":  appendSegment(appendInfo(nil, 0, 1, BulkReadOnly), 0, 0),
	} {
		d, err := ParseBulk(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := d.Append(nil); !bytes.Equal(got, b) {
			t.Errorf("%s: sent on as % x, want % x", name, got, b)
		}
	}
}

// parity: H78
func FuzzBulk(f *testing.F) {
	for _, b := range goldens(f, "proc_") {
		f.Add(b[wordSize:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseBulk(b)
		if err != nil {
			return
		}
		if got := d.Append(nil); !bytes.Equal(got, b) {
			t.Fatalf("% x is sent on as % x", b, got)
		}
		var sum uint64
		for _, s := range d.segs {
			sum += s.Length
		}
		if sum != d.Len() || d.Eager() != nil && uint64(len(d.Eager())) != d.Len() {
			t.Fatalf("% x: length %d, segments %d, data %d", b, d.Len(), sum, len(d.Eager()))
		}
	})
}

func FuzzProc(f *testing.F) {
	for _, b := range goldens(f, "proc_") {
		f.Add(b)
	}
	for _, segs := range [][]Segment{{{Base: 1, Length: 10}}, {{Base: 1, Length: 10}, {}, {Base: 2, Length: 30}}} {
		d := sharing(BulkReadOnly, segs...)
		f.Add(d.AppendProc(nil))
		bound := d.Bind(func(b []byte) []byte { return append(b, "host"...) }, func(b []byte) []byte { return append(b, "process"...) })
		f.Add(bound.AppendProc(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, n, err := decodeProc(b)
		if err != nil {
			return
		}
		if n == NullProcSize {
			return
		}
		if got := d.AppendProc(nil); !bytes.Equal(got, b[:n]) {
			t.Fatalf("% x is sent on as % x", b[:n], got)
		}
		checkNetwork(t, &d)
	})
}

// checkNetwork checks the form of a descriptor without shared memory.
func checkNetwork(t *testing.T, d *Bulk) {
	t.Helper()
	n := d.Network()
	again, err := ParseBulk(n.Append(nil))
	if err != nil {
		t.Fatalf("without shared memory % x becomes % x: %v", d.Append(nil), n.Append(nil), err)
	}
	if again.Flags() != d.Flags()&^BulkSM || again.Len() != d.Len() || again.Segments() != d.Segments() || again.Context() != d.Context() {
		t.Fatalf("without shared memory the descriptor has flags %#x, %d bytes in %d segments, context %d", again.Flags(), again.Len(), again.Segments(), again.Context())
	}
	if !bytes.Equal(again.Bound(), d.Bound()) || again.BoundShared() != nil || !bytes.Equal(again.Eager(), d.Eager()) {
		t.Fatalf("without shared memory the descriptor has address % x and % x, data % x", again.Bound(), again.BoundShared(), again.Eager())
	}
	for i := range d.Segments() {
		if !bytes.Equal(again.Handle(i), d.Handle(i)) || d.Flags()&BulkSM != 0 && again.SharedHandle(i) != nil {
			t.Fatalf("without shared memory segment %d has handles % x and % x", i, again.Handle(i), again.SharedHandle(i))
		}
	}
}

func FuzzCoreAddr(f *testing.F) {
	f.Add(golden(f, "proc_bound")[wordSize+96:][:40])
	f.Add(golden(f, "proc_bound_short")[wordSize+96:][:32])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, near := range []bool{false, true} {
			network, shared, err := parseCoreAddr(b, near)
			if err == nil && (len(network) == 0 || len(network)+len(shared) > len(b)-wordSize) {
				t.Fatalf("% x has addresses of %d and %d bytes", b, len(network), len(shared))
			}
		}
	})
}
