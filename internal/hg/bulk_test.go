package hg

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"cinnabar/codes"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// pattern returns n bytes that differ from their neighbours.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// cut divides b into pieces of the given sizes; the last one gets what is left.
func cut(b []byte, sizes ...int) [][]byte {
	var list [][]byte
	for _, n := range sizes {
		list = append(list, b[:n:n])
		b = b[n:]
	}
	return append(list, b)
}

// evenly divides b into n pieces.
func evenly(b []byte, n int) [][]byte {
	sizes := make([]int, n-1)
	for i := range sizes {
		sizes[i] = len(b) / n
	}
	return cut(b, sizes...)
}

// expose makes memory that is closed at the end of the test.
func expose(t testing.TB, n *node, access na.Access, segs ...[]byte) *Bulk {
	t.Helper()
	b, err := n.Expose(segs, access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// travel returns a descriptor as a peer reads it.
func travel(t testing.TB, d *Desc) *Desc {
	t.Helper()
	got, _, err := DecodeProc(d.AppendProc(nil, 0, OverNetwork), OverNetwork)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// transfer makes one transfer.
func transfer(t testing.TB, by *node, dir Direction, from na.Addr, d *Desc, off uint64, local [][]byte) (int64, error) {
	t.Helper()
	var n uint64
	for _, b := range local {
		n += uint64(len(b))
	}
	x := by.NewTransfer()
	defer x.Free()
	x.Start(dir, from, d, off, local, n)
	return x.Wait(t.Context())
}

func pair(t testing.TB, cfg natest.Config) (origin, target *node) {
	n := natest.New(cfg)
	return open(t, n, Config{}), open(t, n, Config{})
}

// TestTransferShapes has the shapes of Mercury's test_bulk.c, in both directions, over the network and within one process.
func TestTransferShapes(t *testing.T) {
	const size = 64 << 10
	for _, tc := range []struct {
		name          string
		remote, local int // segments
		remoteOff     int
		localOff      int
		n             int
	}{
		{"contiguous", 1, 1, 0, 0, size},
		{"contiguous with offsets", 1, 1, size / 4, size / 8, size / 2},
		{"small segmented", 16, 1, 0, 0, 1024},
		{"small segmented with offsets", 16, 16, size/16 + 3, size/16 + 5, 1024},
		{"segmented", 16, 16, 0, 0, size},
		{"segmented with offsets", 16, 3, 1025, 1023, size - 4096},
		{"over-segmented", 1024, 1024, 0, 0, size},
		{"over-segmented with odd offsets", 1024, 7, 63, 1, size - 129},
		{"nothing", 16, 1, 5, 5, 0},
		{"up to the end", 8, 2, size - 100, size - 100, 100},
		{"nine segments", 9, 1, 0, 0, size},
	} {
		for _, dir := range []Direction{Pull, Push} {
			for _, self := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/self %v", tc.name, dir, self), func(t *testing.T) {
					origin, target := pair(t, natest.Config{Chunk: 1000})
					if self {
						target = origin
					}
					theirs, mine := pattern(size), make([]byte, size)
					b := expose(t, origin, na.ReadWrite, evenly(theirs, tc.remote)...)
					if dir == Push {
						theirs, mine = mine, theirs
						b = expose(t, origin, na.ReadWrite, evenly(theirs, tc.remote)...)
					}
					local := evenly(mine, tc.local)
					local = window(local, tc.localOff, tc.n)
					n, err := transfer(t, target, dir, origin.ep.Addr(), travel(t, b.Desc()), uint64(tc.remoteOff), local)
					if err != nil || n != int64(tc.n) {
						t.Fatalf("moved %d, %v; want %d", n, err, tc.n)
					}
					remote := theirs[tc.remoteOff:][:tc.n]
					if got := mine[tc.localOff:][:tc.n]; !bytes.Equal(got, remote) {
						t.Error("the two sides differ")
					}
					blank := mine
					if dir == Push {
						blank = theirs
					}
					if moved := len(blank) - bytes.Count(blank, []byte{0}); moved > tc.n {
						t.Errorf("%d bytes are set, at most %d should be", moved, tc.n)
					}
				})
			}
		}
	}
}

// window returns n bytes of the concatenated slices from off on.
func window(list [][]byte, off, n int) [][]byte {
	var out [][]byte
	for _, b := range list {
		skip := min(off, len(b))
		off -= skip
		b = b[skip:]
		b = b[:min(n, len(b))]
		n -= len(b)
		out = append(out, b)
	}
	return out
}

// TestSplit checks the pieces of random transfers against a copy of bytes one by one.
// parity: D25
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 40), 1, 20)
		remoteSizes, localSizes := sizes.Draw(t, "remote"), sizes.Draw(t, "local")
		regv := rapid.Bool().Draw(t, "one handle")
		flags := uint32(0)
		if regv {
			flags = wire.BulkRegV
		}
		var segs []wire.Segment
		var at []struct{ seg, off int } // where each remote byte is
		remotes := make([]na.RemoteMemory, len(remoteSizes))
		for i, n := range remoteSizes {
			segs = append(segs, wire.Segment{Length: uint64(n)})
			remotes[i] = numbered(i)
			for j := range n {
				if regv {
					at = append(at, struct{ seg, off int }{0, len(at)})
				} else {
					at = append(at, struct{ seg, off int }{i, j})
				}
			}
		}
		d := &Desc{Bulk: wire.NewBulk(flags, segs, func(b []byte, _ int) []byte { return b }, nil)}
		var local [][]byte
		room := 0
		for _, n := range localSizes {
			local = append(local, make([]byte, n))
			room += n
		}
		off := rapid.IntRange(0, len(at)).Draw(t, "offset")
		n := rapid.IntRange(0, min(room, len(at)-off)).Draw(t, "size")
		local = window(local, 0, n)
		if n == 0 {
			return // Start does not split nothing
		}
		i := off
		for _, f := range split(nil, d, remotes, uint64(off), local, uint64(n)) {
			if len(f.Local) == 0 {
				t.Fatal("an empty piece")
			}
			for j := range f.Local {
				if f.Remote != na.RemoteMemory(numbered(at[i].seg)) || int(f.Offset)+j != at[i].off {
					t.Fatalf("byte %d comes from %v at %d, want %d at %d", i-off, f.Remote, int(f.Offset)+j, at[i].seg, at[i].off)
				}
				f.Local[j]++
				i++
			}
		}
		if i != off+n {
			t.Fatalf("%d bytes in pieces, want %d", i-off, n)
		}
		for _, b := range local {
			if bytes.Count(b, []byte{1}) != len(b) {
				t.Fatal("a local byte is not in exactly one piece")
			}
		}
	})
}

// numbered stands for remote memory.
type numbered int

func (numbered) Len() uint64 { return 0 }

func TestTransferRefused(t *testing.T) {
	origin, target := pair(t, natest.Config{})
	readable := travel(t, expose(t, origin, na.ReadOnly, make([]byte, 100)).Desc())
	writable := travel(t, expose(t, origin, na.WriteOnly, make([]byte, 100)).Desc())
	lying := readable.Append(nil)
	binary.LittleEndian.PutUint64(lying, 1000)
	binary.LittleEndian.PutUint64(lying[infoSize+8:], 1000)
	longer, err := ParseDesc(lying, OverNetwork)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		dir  Direction
		d    *Desc
		off  uint64
		size int
		n    uint64
		code codes.Code
	}{
		{"push to read-only", Push, readable, 0, 10, 10, codes.Permission},
		{"pull from write-only", Pull, writable, 0, 10, 10, codes.Permission},
		{"null", Pull, nil, 0, 10, 10, codes.InvalidArg},
		{"past the end", Pull, readable, 91, 10, 10, codes.InvalidArg},
		{"offset past the end", Pull, readable, 101, 0, 0, codes.InvalidArg},
		{"offset and size overflow", Pull, readable, 50, 10, 1<<64 - 10, codes.InvalidArg},
		{"local memory too small", Pull, readable, 0, 9, 10, codes.InvalidArg},
		{"local memory too large", Pull, readable, 0, 11, 10, codes.InvalidArg},
		{"handle smaller than its segment", Pull, longer, 0, 10, 10, codes.ProtocolError},
	} {
		x := target.NewTransfer()
		x.Start(tc.dir, origin.ep.Addr(), tc.d, tc.off, [][]byte{make([]byte, tc.size)}, tc.n)
		n, err := x.Wait(t.Context())
		if n != 0 || codeFrom(t, err) != tc.code {
			t.Errorf("%s: %d, %v; want %v", tc.name, n, err, tc.code)
		}
		x.Free()
	}
	if c := target.ep.Counts(); c.Gets != 0 || c.Puts != 0 {
		t.Errorf("%d reads and %d writes on the network, want none", c.Gets, c.Puts)
	}
}

func TestExposeRefused(t *testing.T) {
	origin, _ := pair(t, natest.Config{})
	for _, tc := range []struct {
		name   string
		segs   [][]byte
		access na.Access
		text   string
	}{
		{"no segments", nil, na.ReadOnly, "0 segments, allowed are 1 to 1048576"},
		{"too many", make([][]byte, wire.MaxSegments+1), na.ReadOnly, "1048577 segments"},
		{"no access", make([][]byte, 1), 0, "access 0"},
		{"strange access", make([][]byte, 1), 4, "access 4"},
	} {
		if b, err := origin.Expose(tc.segs, tc.access); b != nil || codeFrom(t, err) != codes.InvalidArg || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if err := origin.ep.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := origin.Expose(evenly(make([]byte, 10), 2), na.ReadOnly); codeFrom(t, err) != codes.Canceled {
		t.Errorf("after the end: %v", err)
	}
}

// TestDescSizes compares descriptors of this process with what C makes: 88 bytes, 72 for each of several segments, 49
// for an address.
func TestDescSizes(t *testing.T) {
	origin, _ := pair(t, natest.Config{})
	for _, tc := range []struct{ segments, want int }{{1, 88}, {2, 160}, {3, 232}, {8, 592}, {9, 664}, {1024, 73744}} {
		b := expose(t, origin, na.ReadOnly, evenly(make([]byte, 4096), tc.segments)...)
		if got := len(b.Desc().Append(nil)); got != tc.want {
			t.Errorf("%d segments: %d bytes, want %d", tc.segments, got, tc.want)
		}
		if got := len(b.Bind().Append(nil)); got != tc.want+49 {
			t.Errorf("%d segments, bound: %d bytes, want %d", tc.segments, got, tc.want+49)
		}
		if d := travel(t, b.Bind()); d.Segments() != tc.segments || d.Len() != 4096 || d.Flags() != wire.BulkReadOnly|wire.BulkBind {
			t.Errorf("%d segments: arrives with %d, length %d, flags %#x", tc.segments, d.Segments(), d.Len(), d.Flags())
		}
	}
}

func TestEmptySegments(t *testing.T) {
	origin, target := pair(t, natest.Config{})
	data := pattern(30)
	b := expose(t, origin, na.ReadOnly, nil, data[:10], nil, data[10:], nil)
	got := make([]byte, 30)
	if n, err := transfer(t, target, Pull, origin.ep.Addr(), travel(t, b.Desc()), 0, [][]byte{got[:7], nil, got[7:]}); n != 30 || err != nil || !bytes.Equal(got, data) {
		t.Errorf("moved %d, %v", n, err)
	}
	empty := expose(t, origin, na.ReadOnly, nil)
	if got := empty.Desc().Append(nil); len(got) != infoSize+segmentSize {
		t.Errorf("empty memory is described by % x", got)
	}
	if n, err := transfer(t, target, Pull, origin.ep.Addr(), travel(t, empty.Desc()), 0, nil); n != 0 || err != nil {
		t.Errorf("pull of nothing: %d, %v", n, err)
	}
}

func TestEager(t *testing.T) {
	n := natest.New(natest.Config{})
	origin, target, plain := open(t, n, Config{}), open(t, n, Config{}), open(t, n, Config{NoEager: true})
	data := pattern(64)
	for _, tc := range []struct {
		name   string
		by     *node
		access na.Access
		room   int
		eager  bool
	}{
		{"fits exactly", origin, na.ReadOnly, 8 + 88 + 64, true},
		{"does not fit", origin, na.ReadOnly, 8 + 88 + 63, false},
		{"no room at all", origin, na.ReadOnly, 0, false},
		{"read and write", origin, na.ReadWrite, 4000, true},
		{"write only", origin, na.WriteOnly, 4000, false},
		{"switched off", plain, na.ReadOnly, 4000, false},
	} {
		mem := bytes.Clone(data)
		b := expose(t, tc.by, tc.access, mem[:50], mem[50:])
		if tc.name == "fits exactly" || tc.name == "does not fit" {
			b = expose(t, tc.by, tc.access, mem)
		}
		wire := b.Desc().AppendProc(nil, tc.room, OverNetwork)
		d, size, err := DecodeProc(wire, OverNetwork)
		if err != nil || size != len(wire) {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := d.Eager() != nil; got != tc.eager {
			t.Errorf("%s: data inside %v, want %v", tc.name, got, tc.eager)
		}
		if !bytes.Equal(d.AppendProc(nil, 0, OverNetwork), wire) {
			t.Errorf("%s: sent on differently", tc.name)
		}
		if tc.access == na.WriteOnly {
			continue
		}
		before := target.ep.Counts().Gets
		got := make([]byte, 40)
		if moved, err := transfer(t, target, Pull, tc.by.ep.Addr(), d, 20, [][]byte{got}); moved != 40 || err != nil || !bytes.Equal(got, data[20:60]) {
			t.Errorf("%s: pulled %d, %v", tc.name, moved, err)
		}
		if reads := target.ep.Counts().Gets - before; (reads == 0) != tc.eager {
			t.Errorf("%s: %d reads on the network", tc.name, reads)
		}
		if tc.access != na.ReadWrite {
			continue
		}
		if _, err := transfer(t, target, Push, tc.by.ep.Addr(), d, 0, [][]byte{[]byte("new")}); err != nil || string(mem[:3]) != "new" {
			t.Errorf("%s: push: %v, memory %q", tc.name, err, mem[:3])
		}
	}
}

// TestBoundThirdParty hands a descriptor from its owner over a second process to a third one, which pulls.
func TestBoundThirdParty(t *testing.T) {
	n := natest.New(natest.Config{})
	owner, between, third := open(t, n, Config{}), open(t, n, Config{}), open(t, n, Config{})
	data := pattern(1000)
	d := travel(t, travel(t, expose(t, owner, na.ReadOnly, data).Bind()))
	got := make([]byte, 1000)
	if moved, err := transfer(t, third, Pull, nil, d, 0, [][]byte{got}); moved != 1000 || err != nil || !bytes.Equal(got, data) {
		t.Errorf("third process: %d, %v", moved, err)
	}
	if moved, err := transfer(t, between, Pull, owner.ep.Addr(), d, 0, [][]byte{got}); moved != 1000 || err != nil {
		t.Errorf("by address: %d, %v", moved, err)
	}
	if moved, err := transfer(t, owner, Pull, nil, d, 0, [][]byte{got}); moved != 1000 || err != nil || owner.Stats().LocalCopies != 1 {
		t.Errorf("owner itself: %d, %v", moved, err)
	}
	unbound := travel(t, expose(t, owner, na.ReadOnly, data).Desc())
	if _, err := transfer(t, third, Pull, nil, unbound, 0, [][]byte{got}); codeFrom(t, err) != codes.InvalidArg {
		t.Errorf("not bound: %v", err)
	}
}

// parity: D15
func TestBoundBehindFirewall(t *testing.T) {
	n := natest.New(natest.Config{})
	owner, third := open(t, n, Config{}), open(t, n, Config{Dispatch: handler(echo)})
	raw := expose(t, owner, na.ReadOnly, make([]byte, 10)).Bind().Append(nil)
	binary.LittleEndian.PutUint32(raw[flagsAt:], wire.BulkReadOnly|wire.BulkBind|wire.BulkFirewall)
	d, err := ParseDesc(raw, OverNetwork)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transfer(t, third, Pull, nil, d, 0, [][]byte{make([]byte, 10)}); codeFrom(t, err) != codes.HostFirewall {
		t.Errorf("without a connection: %v", err)
	}
	if _, err := call(t, owner, third.ep.Addr(), 1, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := transfer(t, third, Pull, nil, d, 0, [][]byte{make([]byte, 10)}); err != nil {
		t.Errorf("with a connection: %v", err)
	}
}

// TestOneHandleForAll reads memory of a peer whose network registers all segments as one.
func TestOneHandleForAll(t *testing.T) {
	origin, target := pair(t, natest.Config{})
	data := pattern(60)
	whole := expose(t, origin, na.ReadOnly, data)
	made := wire.NewBulk(wire.BulkReadOnly|wire.BulkRegV, []wire.Segment{{Base: 0x1000, Length: 20}, {Base: 0x2000, Length: 40}},
		func(b []byte, _ int) []byte { return whole.mems[0].AppendHandle(b) }, nil)
	d, err := ParseDesc(made.Append(nil), OverNetwork)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 30)
	if n, err := transfer(t, target, Pull, origin.ep.Addr(), d, 15, [][]byte{got}); n != 30 || err != nil || !bytes.Equal(got, data[15:45]) {
		t.Errorf("moved %d, %v: % x", n, err, got)
	}
}

func TestRevoked(t *testing.T) {
	origin, target := pair(t, natest.Config{})
	b := expose(t, origin, na.ReadOnly, make([]byte, 10))
	d := travel(t, b.Desc())
	b.Close()
	b.Close()
	if _, err := transfer(t, target, Pull, origin.ep.Addr(), d, 0, [][]byte{make([]byte, 10)}); codeFrom(t, err) != codes.HostUnreach {
		t.Errorf("by a peer: %v, want the loss of the connection", err)
	}
	if _, err := transfer(t, origin, Pull, origin.ep.Addr(), d, 0, [][]byte{make([]byte, 10)}); codeFrom(t, err) != codes.InvalidArg {
		t.Errorf("by its owner: %v", err)
	}
	if _, err := transfer(t, origin, Pull, origin.ep.Addr(), b.Desc(), 0, [][]byte{make([]byte, 10)}); codeFrom(t, err) != codes.InvalidArg {
		t.Errorf("by its owner with the own descriptor: %v", err)
	}
	if least, _ := b.Desc().ProcSize(); len(b.Desc().AppendProc(nil, 4000, OverNetwork)) != least {
		t.Error("data of memory that is not exposed any more is sent")
	}
}

// TestManyTransfers pulls disjoint parts of one memory from many goroutines.
func TestManyTransfers(t *testing.T) {
	const workers, part = 64, 5000
	origin, target := pair(t, natest.Config{Chunk: 700})
	data := pattern(workers * part)
	d := travel(t, expose(t, origin, na.ReadOnly, evenly(data, 10)...).Desc())
	got := make([]byte, len(data))
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			if n, err := transfer(t, target, Pull, origin.ep.Addr(), d, uint64(i*part), [][]byte{got[i*part:][:part]}); n != part || err != nil {
				t.Errorf("part %d: %d, %v", i, n, err)
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(got, data) {
		t.Error("what arrives differs")
	}
	s := target.Stats()
	if s.Reads != workers || s.BytesRead != uint64(len(data)) {
		t.Errorf("counted %d reads of %d bytes", s.Reads, s.BytesRead)
	}
}
