package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// sharing returns a descriptor with the flags and these segments, with handles of both networks.
func sharing(flags uint32, segs ...Segment) Bulk {
	handle := func(kind string) AppendHandle {
		return func(b []byte, i int) []byte {
			if segs[i].Base == 0 && flags&BulkRegV == 0 {
				return b
			}
			return fmt.Appendf(b, "%s %d", kind, i)
		}
	}
	return NewBulk(flags, slices.Clone(segs), handle("network"), handle("shared memory"))
}

// TestBulkOfSharedMemory checks the layout of HG_Bulk_serialize with HG_BULK_SM: all handles of the network, then all of shared memory.
// parity: N06
func TestBulkOfSharedMemory(t *testing.T) {
	three := []Segment{{Base: 1, Length: 10}, {Length: 20}, {Base: 2, Length: 30}}
	for _, tc := range []struct {
		name    string
		d       Bulk
		handles string // what follows the segments
	}{
		{"one segment", sharing(BulkReadOnly, three[0]), "\x09\x00\x00\x00\x00\x00\x00\x00network 0\x0f\x00\x00\x00\x00\x00\x00\x00shared memory 0"},
		{"without address", sharing(BulkReadOnly, Segment{}), ""},
		{
			"several", sharing(BulkReadOnly, three...),
			"\x09\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x09\x00\x00\x00\x00\x00\x00\x00" + "network 0network 2" +
				"\x0f\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x0f\x00\x00\x00\x00\x00\x00\x00" + "shared memory 0shared memory 2",
		},
		{"one handle for all", sharing(BulkReadOnly|BulkRegV, three...), "\x09\x00\x00\x00\x00\x00\x00\x00network 0\x0f\x00\x00\x00\x00\x00\x00\x00shared memory 0"},
	} {
		b := tc.d.Append(nil)
		if got := b[infoSize+tc.d.Segments()*segmentSize:]; string(got) != tc.handles {
			t.Errorf("%s: handles are written as %q, want %q", tc.name, got, tc.handles)
		}
		if got := binary.LittleEndian.Uint32(b[flagsAt:]); got&BulkSM == 0 {
			t.Errorf("%s: the flags are %#x, without HG_BULK_SM", tc.name, got)
		}
		checkShared(t, tc.name, &tc.d)
		bound := tc.d.Bind(func(b []byte) []byte { return append(b, "host"...) }, func(b []byte) []byte { return append(b, "process"...) })
		if string(bound.Bound()) != "host" || string(bound.BoundShared()) != "process" {
			t.Errorf("%s: bound to %q and %q", tc.name, bound.Bound(), bound.BoundShared())
		}
		address := "\x04\x00\x00\x00\x00\x00\x00\x00host" + "\x07\x00\x00\x00\x00\x00\x00\x00process" + "\x00\x00\x00\x00\x00\x00\x00\x00"
		if got, want := bound.Append(nil)[len(b):], string([]byte{byte(len(address)), 0, 0, 0, 0, 0, 0, 0})+address+"\x00"; string(got) != want {
			t.Errorf("%s: the address is written as %q, want %q", tc.name, got, want)
		}
		checkShared(t, tc.name+", bound", &bound)
		for cut := range b {
			if _, err := ParseBulk(b[:cut]); err == nil {
				t.Errorf("%s: the first %d bytes pass", tc.name, cut)
			}
		}
	}
}

// checkShared checks that d comes back from its bytes, and its form for a network.
func checkShared(t *testing.T, name string, d *Bulk) {
	t.Helper()
	got, err := ParseBulk(d.Append(nil))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for i := range d.Segments() {
		if !bytes.Equal(got.Handle(i), d.Handle(i)) || !bytes.Equal(got.SharedHandle(i), d.SharedHandle(i)) {
			t.Errorf("%s: segment %d has handles %q and %q, want %q and %q", name, i, got.Handle(i), got.SharedHandle(i), d.Handle(i), d.SharedHandle(i))
		}
	}
	if !bytes.Equal(got.Append(nil), d.Append(nil)) || !bytes.Equal(got.Bound(), d.Bound()) || !bytes.Equal(got.BoundShared(), d.BoundShared()) {
		t.Errorf("%s: sent on as %q, want %q", name, got.Append(nil), d.Append(nil))
	}
	checkNetwork(t, &got)
}

// TestNetworkOfPlainBulk checks that a descriptor without shared memory stays as it is.
func TestNetworkOfPlainBulk(t *testing.T) {
	for name, b := range goldens(t, "proc_") {
		d, n, err := decodeProc(b)
		if err != nil || n == NullProcSize {
			continue
		}
		network := d.Network()
		if got := network.AppendProc(nil); !bytes.Equal(got, b) {
			t.Errorf("%s: becomes % x", name, got)
		}
	}
}

// TestEagerBulkOfSharedMemory checks that the data of a descriptor stays in its form for a network.
func TestEagerBulkOfSharedMemory(t *testing.T) {
	d := sharing(BulkReadOnly, Segment{Base: 1, Length: 3})
	got, _, err := decodeProc(append(d.AppendProcEager(nil), "abc"...))
	if err != nil || string(got.Eager()) != "abc" {
		t.Fatalf("data %q, error %v", got.Eager(), err)
	}
	checkShared(t, "eager", &got)
}

// TestLentBulkOfSharedMemory checks the descriptor of a payload that travels over shared memory.
func TestLentBulkOfSharedMemory(t *testing.T) {
	b := AppendLent(nil, 5000, func(b []byte) []byte { return append(b, 'n') }, func(b []byte) []byte { return append(b, 's') })
	d, n, err := decodeProc(b)
	if err != nil || n != len(b) || d.Flags() != BulkReadOnly|BulkSM || string(d.Handle(0)) != "n" || string(d.SharedHandle(0)) != "s" {
		t.Errorf("%d bytes of %d, error %v, flags %#x, handles %q and %q", n, len(b), err, d.Flags(), d.Handle(0), d.SharedHandle(0))
	}
}

// TestAddressOfSharedMemoryWithoutFlag ignores the address in shared memory of a descriptor without the flag: Mercury writes none there,
// and a peer on the network could name any process of this host.
// parity: N06
func TestAddressOfSharedMemoryWithoutFlag(t *testing.T) {
	plain := NewBulk(BulkReadOnly, []Segment{{Base: 1, Length: 10}}, func(b []byte, _ int) []byte { return append(b, 'n') }, nil)
	address := func(kind string) func(b []byte) []byte { return func(b []byte) []byte { return append(b, kind...) } }
	plain.flags |= BulkBind
	binary.LittleEndian.PutUint32(plain.raw[flagsAt:], plain.flags)
	b := appendSized(plain.Append(nil), func(b []byte) []byte {
		return appendSized(appendSized(b, address("host")), address("process"))
	})
	d, err := ParseBulk(append(b, 0))
	if err != nil || string(d.Bound()) != "host" || d.BoundShared() != nil {
		t.Errorf("bound to %q and %q, error %v", d.Bound(), d.BoundShared(), err)
	}
}
