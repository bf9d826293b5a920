package ofiverbs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// TestMergeNeighbours compares the runs of pieces, each written as first:end in one array, with the memory that must be registered.
func TestMergeNeighbours(t *testing.T) {
	array := make([]byte, 100)
	other := make([]byte, 100)
	clipped := array[10:20:20]
	for name, tc := range map[string]struct {
		segs    [][]byte
		largest uint64
		want    [][]byte
		pieces  string
	}{
		"one":                       {[][]byte{array[:10]}, 0, [][]byte{array[:10]}, "[[0]]"},
		"in order":                  {[][]byte{array[:10], array[10:30], array[30:31]}, 0, [][]byte{array[:31]}, "[[0 1 2]]"},
		"in any order":              {[][]byte{array[30:31], array[:10], array[10:30]}, 0, [][]byte{array[:31]}, "[[1 2 0]]"},
		"with a gap":                {[][]byte{array[:10], array[11:20]}, 0, [][]byte{array[:10], array[11:20]}, "[[0] [1]]"},
		"overlapping":               {[][]byte{array[5:20], array[:10]}, 0, [][]byte{array[:20]}, "[[1 0]]"},
		"one inside another":        {[][]byte{array[5:7], array[:20], array[20:21]}, 0, [][]byte{array[:21]}, "[[1 0 2]]"},
		"the same twice":            {[][]byte{array[5:7], array[5:7]}, 0, [][]byte{array[5:7]}, "[[0 1]]"},
		"unknown whether one array": {[][]byte{clipped, array[20:30]}, 0, [][]byte{clipped, array[20:30]}, "[[0] [1]]"},
		"clipped and not":           {[][]byte{clipped, array[10:15], array[20:30]}, 0, [][]byte{array[10:30]}, "[[1 0 2]]"},
		"up to the largest region":  {[][]byte{array[:10], array[10:20], array[20:30]}, 20, [][]byte{array[:20], array[20:30]}, "[[0 1] [2]]"},
	} {
		t.Run(name, func(t *testing.T) {
			runs := mergeNeighbours(tc.segs, tc.largest)
			var pieces [][]int
			for i, r := range runs {
				pieces = append(pieces, r.pieces)
				if i >= len(tc.want) || len(r.mem) != len(tc.want[i]) || &r.mem[0] != &tc.want[i][0] {
					t.Errorf("run %d has %d bytes, want those of %v", i, len(r.mem), tc.want)
				}
			}
			if got := fmt.Sprint(pieces); got != tc.pieces {
				t.Errorf("pieces %s, want %s", got, tc.pieces)
			}
		})
	}
	if runs := mergeNeighbours([][]byte{array, other}, 0); len(runs) != 2 {
		t.Errorf("%d runs of two arrays", len(runs))
	}
}

// pieces registers segs at owner, and returns the memory and the pieces as user sees them.
func pieces(t *testing.T, owner, user *Endpoint, segs [][]byte, access na.Access) (mems []na.Memory, list []*remote) {
	t.Helper()
	mems, handles, err := owner.RegisterPieces(segs, access)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mems {
		t.Cleanup(m.Close)
	}
	for i, h := range handles {
		r, err := user.ParseHandle(h.AppendHandle(nil))
		if err != nil {
			t.Fatal(err)
		}
		if r.Len() != uint64(len(segs[i])) {
			t.Errorf("piece %d has %d bytes, want %d", i, r.Len(), len(segs[i]))
		}
		list = append(list, r.(*remote))
	}
	return mems, list
}

// TestMergedPieces reads and writes pieces of one array, which have one key together. Each handle describes its piece alone.
// parity: N03
func TestMergedPieces(t *testing.T) {
	owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, user, owner)
	array := noise(30000)
	segs := [][]byte{array[20000:], array[:100], array[100:20000], noise(500)}
	mems, list := pieces(t, owner, user, segs, na.ReadWrite)
	if len(mems) != 2 || list[0].at.RKey != list[1].at.RKey || list[1].at.RKey != list[2].at.RKey || list[3].at.RKey == list[0].at.RKey {
		t.Errorf("%d regions with the keys %v; want one for the first three pieces", len(mems), list)
	}
	var frags []na.Fragment
	var want []byte
	for i, r := range list {
		frags = append(frags, na.Fragment{Remote: r, Offset: 1, Local: make([]byte, len(segs[i])-1)})
		want = append(want, segs[i][1:]...)
	}
	get := newCall()
	user.Get(&get.op, to, frags)
	get.want(t, 0)
	var got []byte
	for _, f := range frags {
		got = append(got, f.Local...)
		clear(f.Local)
	}
	if !bytes.Equal(got, want) {
		t.Error("other bytes have come than those of the pieces")
	}
	after := bytes.Clone(array)
	clear(after[20001:])
	put := newCall()
	user.Put(&put.op, to, frags[:1])
	put.want(t, 0)
	if !bytes.Equal(array, after) {
		t.Error("the write has changed other bytes than those of its piece")
	}
}

// TestMergedRights has a peer reach beyond merged pieces, and use a right that they do not have: the device refuses both.
// parity: N03
func TestMergedRights(t *testing.T) {
	for name, tc := range map[string]struct {
		put  bool
		from int // first byte in the array
		n    int
	}{"write": {true, 100, 10}, "the gap": {false, 290, 20}, "before": {false, 99, 2}, "behind": {false, 1999, 2}} {
		t.Run(name, func(t *testing.T) {
			owner, user := openServer(t, Config{}), openEndpoint(t, Config{})
			to := lookup(t, user, owner)
			array := noise(3000)
			_, list := pieces(t, owner, user, [][]byte{array[100:200], array[200:300], array[301:2000]}, na.ReadOnly)
			base := list[0]
			if tc.from > 300 {
				base = list[2]
				base.at.Addr -= 301
			} else {
				base.at.Addr -= 100
			}
			r := &remote{at: base.at.Add(uint64(tc.from)), size: uint64(tc.n), access: na.ReadWrite}
			local := bytes.Repeat([]byte{1}, tc.n)
			before := bytes.Clone(array)
			c := newCall()
			f := []na.Fragment{{Remote: r, Local: local}}
			if tc.put {
				user.Put(&c.op, to, f)
			} else {
				user.Get(&c.op, to, f)
			}
			if err := c.park(t); err == nil || !bytes.Equal(array, before) || !bytes.Equal(local, bytes.Repeat([]byte{1}, tc.n)) {
				t.Errorf("the access gave %v, and the bytes %v", err, local)
			}
		})
	}
}

// TestMergedWithinLimit registers more pieces of one array than the device has room for regions. Pieces that are no neighbours need a region each,
// and the error for them names the limit; nothing of them stays registered.
func TestMergedWithinLimit(t *testing.T) {
	const limit = 16
	scarce := &scarceDevice{DeviceDriver: memdev.Open(memdev.Config{}), maxMR: limit}
	scarce.room.Store(1 << 30)
	dev := verbs.NewDevice(scarce)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	e := openEndpoint(t, Config{Device: dev})
	before := scarce.regions.Load()
	array := make([]byte, 1000*limit)
	var neighbours, others [][]byte
	for part := range slices.Chunk(array, 10) {
		neighbours = append(neighbours, array[10*len(neighbours):][:10])
		others = append(others, part[1:])
	}
	if mems, _ := pieces(t, e, e, neighbours, na.ReadOnly); len(mems) != 1 {
		t.Errorf("%d neighbours have %d regions, want 1", len(neighbours), len(mems))
	}
	_, _, err := e.RegisterPieces(others, na.ReadOnly)
	if !errors.Is(err, errRegions) || !strings.Contains(err.Error(), fmt.Sprintf("room for %d (DeviceAttr.MaxMR)", limit)) {
		t.Errorf("%d pieces with gaps: %v", len(others), err)
	}
	if n := scarce.regions.Load() - before; n != 1 {
		t.Errorf("%d regions, want that of the neighbours", n)
	}
	for _, bad := range [][][]byte{{array, nil}, {array[:1], {}}} {
		if _, _, err := e.RegisterPieces(bad, na.ReadOnly); na.KindOf(err) != na.Invalid {
			t.Errorf("an empty piece: %v", err)
		}
	}
	if _, _, err := e.RegisterPieces([][]byte{array[:1], array[1:2]}, 4); na.KindOf(err) != na.Invalid {
		t.Errorf("an access that does not exist: %v", err)
	}
}

// TestLateMergedPieces gives up a call with the handle of one of two merged pieces in its request. The server can access the piece until it
// has answered.
func TestLateMergedPieces(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{})
	from := make(chan na.Addr, 1)
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from <- m.From
		return nil
	})})
	client := openEndpoint(t, Config{Quota: book})
	to := lookup(t, client, server)
	array := noise(5000)
	mems, handles, err := client.RegisterPieces([][]byte{array[:1000], array[1000:]}, na.ReadOnly)
	if err != nil || len(mems) != 1 {
		t.Fatalf("%d regions, %v; want 1", len(mems), err)
	}
	payload := handles[1].AppendHandle([]byte("arguments"))
	given, sent := newCall(), newCall()
	client.RecvExpected(&given.op, to, lateTag, make([]byte, 10))
	client.SendRequest(&sent.op, to, lateTag, request(client, payload))
	sent.want(t, 0)
	caller := <-from
	client.GiveUp(to, lateTag, payload, func() string { return "slow" })
	client.Cancel(&given.op)
	given.want(t, na.Canceled)
	m := mems[0].(na.LateMemory)
	if !m.Late() {
		t.Error("Late is false for the region of a piece that a given-up call has a handle of")
	}
	m.Withdraw(nil)
	m.Close()
	if n := book.Used(hostquota.Memory); n != int64(len(array)) {
		t.Errorf("%d bytes of kept memory are counted, want those of the region, %d", n, len(array))
	}
	r, err := server.ParseHandle(handles[1].AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	got, get := make([]byte, 4000), newCall()
	server.Get(&get.op, caller, []na.Fragment{{Remote: r, Local: got}})
	get.want(t, 0)
	if !bytes.Equal(got, array[1000:]) {
		t.Error("other bytes have come than those of the piece")
	}
	answer := newCall()
	server.SendExpected(&answer.op, caller, lateTag, []byte("ok"))
	answer.want(t, 0)
	eventually(t, "the release of the memory", func() bool { return book.Used(hostquota.Memory) == 0 })
}
