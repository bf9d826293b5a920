package cinnabar

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"cinnabar/codes"
	"cinnabar/internal/hg"
	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/stats"
)

// The shapes of C's bulk tests: one run of bytes with offsets, few segments, many, and more than a descriptor holds in
// place.
// parity: H80 G62
func TestTransferShapes(t *testing.T) {
	p := newBulkPair(t)
	const size = 16 << 10
	data := noise(size)
	for _, c := range []struct {
		name                string
		remote, local       []int
		remoteOff, localOff int64
		n                   int64
	}{
		{name: "contiguous", remote: []int{size}, local: []int{size}, n: size},
		{name: "both offsets", remote: []int{size}, local: []int{size}, remoteOff: 100, localOff: 200, n: size - 300},
		{name: "one byte", remote: []int{size}, local: []int{size}, remoteOff: size - 1, n: 1},
		{name: "small segmented", remote: []int{10, 20, 30}, local: []int{60}, n: 60},
		{name: "small segmented, offset", remote: []int{10, 20, 30}, local: []int{25, 35}, remoteOff: 5, localOff: 24, n: 36},
		{name: "segmented", remote: repeat(size/16, 16), local: repeat(size/8, 8), n: size},
		{name: "segmented, offsets", remote: repeat(size/16, 16), local: repeat(size/8, 8), remoteOff: 1000, localOff: 3000, n: size - 3000},
		{name: "over-segmented", remote: repeat(16, 1024), local: repeat(16, 1024), n: size},
		{name: "over-segmented, odd", remote: repeat(16, 1024), local: repeat(7, 1000), remoteOff: 3, localOff: 5, n: 6990},
	} {
		t.Run(c.name, func(t *testing.T) {
			theirs := expose(t, p.there, ReadWrite, pieces(data, c.remote...)...)
			mine := expose(t, p.here, ReadWrite, pieces(make([]byte, size), c.local...)...)
			r := p.remote(t, theirs).Slice(c.remoteOff, c.n)
			if n, err := r.Pull(t.Context(), mine.Slice(c.localOff, c.n)); err != nil || n != c.n {
				t.Fatalf("pull: %d, %v", n, err)
			}
			want := make([]byte, mine.Len())
			copy(want[c.localOff:], data[c.remoteOff:][:c.n])
			if !bytes.Equal(contents(mine), want) {
				t.Fatal("pull put other bytes there, or elsewhere")
			}
			news := bytes.Repeat([]byte{0xA5}, int(mine.Len()))
			if _, err := mine.WriteAt(news, 0); err != nil {
				t.Fatal(err)
			}
			if n, err := r.Push(t.Context(), mine.Slice(c.localOff, c.n)); err != nil || n != c.n {
				t.Fatalf("push: %d, %v", n, err)
			}
			want = slices.Clone(data[:theirs.Len()])
			copy(want[c.remoteOff:], news[:c.n])
			if !bytes.Equal(contents(theirs), want) {
				t.Fatal("push put other bytes there, or elsewhere")
			}
		})
	}
}

// Whatever the segments and ranges on either side, a transfer is a copy between the two runs of bytes.
// parity: H80
func TestTransferIsCopy(t *testing.T) {
	p := newBulkPair(t)
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(0, 300), 1, 12)
		remoteSizes, localSizes := sizes.Draw(rt, "remote"), sizes.Draw(rt, "local")
		theirs, err := p.there.Expose(ReadWrite, pieces(noise(300*12), remoteSizes...)...)
		if err != nil {
			rt.Fatal(err)
		}
		defer closeBulk(t, theirs)
		mine, err := p.here.Expose(ReadWrite, pieces(make([]byte, 300*12), localSizes...)...)
		if err != nil {
			rt.Fatal(err)
		}
		defer closeBulk(t, mine)
		remoteOff := rapid.Int64Range(0, theirs.Len()).Draw(rt, "remote offset")
		localOff := rapid.Int64Range(0, mine.Len()).Draw(rt, "local offset")
		remote := travel(t, theirs.Handle()).On(p.ep).Slice(remoteOff, theirs.Len()-remoteOff)
		local := mine.Slice(localOff, mine.Len()-localOff)
		n := min(remote.Len(), local.Len())

		want, from, to, do := contents(mine), contents(theirs)[remoteOff:], localOff, remote.Pull
		changed := mine
		if rapid.Bool().Draw(rt, "push") {
			want, from, to, do = contents(theirs), contents(mine)[localOff:], remoteOff, remote.Push
			changed = theirs
		}
		copy(want[to:], from[:n])
		if got, err := do(t.Context(), local); err != nil || got != n {
			rt.Fatalf("moved %d, %v; want %d", got, err, n)
		}
		if !bytes.Equal(contents(changed), want) {
			rt.Fatal("the result is not a copy")
		}
	})
}

// parity: H87
func TestTransferSmallerSizeWins(t *testing.T) {
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadWrite, []byte("Matthieu\x00")))
	six := expose(t, p.here, ReadWrite, make([]byte, 6))
	if n, err := r.Pull(t.Context(), six); n != 6 || err != nil || string(six.Bytes()) != "Matthi" {
		t.Errorf("pull: %d, %v, %q", n, err, six.Bytes())
	}
	dozen := expose(t, p.here, ReadWrite, []byte("abcdefghijkl"))
	if n, err := r.Push(t.Context(), dozen); n != 9 || err != nil {
		t.Errorf("push: %d, %v", n, err)
	}
	if n, err := r.Pull(t.Context(), dozen.Slice(3, 9)); n != 9 || err != nil || string(dozen.Bytes()) != "abcabcdefghi" {
		t.Errorf("pull: %d, %v, %q", n, err, dozen.Bytes())
	}
}

// parity: H81 T44
func TestTransferOfNothing(t *testing.T) {
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadWrite, make([]byte, 9)))
	local := expose(t, p.here, ReadWrite, make([]byte, 9))
	before := p.here.core.Stats()
	for _, c := range []struct {
		remote RemoteBulk
		local  *Bulk
	}{{r.Slice(9, 0), local}, {r, local.Slice(0, 0)}, {r.Slice(3, 0), local.Slice(9, 0)}} {
		if n, err := c.remote.Pull(t.Context(), c.local); n != 0 || err != nil {
			t.Errorf("pull: %d, %v", n, err)
		}
		if n, err := c.remote.Push(t.Context(), c.local); n != 0 || err != nil {
			t.Errorf("push: %d, %v", n, err)
		}
		if n, err := c.remote.PullChunks(t.Context(), c.local, 4, 0); n != 0 || err != nil {
			t.Errorf("pull in chunks: %d, %v", n, err)
		}
	}
	after := p.here.core.Stats()
	if after.BytesRead != before.BytesRead || after.BytesWritten != before.BytesWritten {
		t.Error("bytes went over the wire")
	}
}

// parity: H81 T40
func TestTransferNullAndMissing(t *testing.T) {
	p := newBulkPair(t)
	local := expose(t, p.here, ReadWrite, make([]byte, 9))
	good := p.remote(t, expose(t, p.there, ReadWrite, make([]byte, 9)))
	_, err := BulkHandle{}.On(p.ep).Pull(t.Context(), local)
	wantCode(t, err, codes.InvalidArg, "pull", "null")
	_, err = BulkHandle{}.On(p.ep).StartPush(t.Context(), local).Wait()
	wantCode(t, err, codes.InvalidArg, "push", "null")
	_, err = good.Pull(t.Context(), nil)
	wantCode(t, err, codes.InvalidArg, "no local bulk")
	_, err = good.StartPull(t.Context(), nil).Wait()
	wantCode(t, err, codes.InvalidArg, "no local bulk")
	_, err = good.h.On(nil).Pull(t.Context(), local)
	wantCode(t, err, codes.InvalidArg, "endpoint")
	_, err = RemoteBulk{}.Pull(t.Context(), local)
	wantCode(t, err, codes.InvalidArg)
	if n, err := (RemoteBulk{}).ReadAt(t.Context(), nil, 0); n != 0 || err != nil {
		t.Errorf("read of nothing: %d, %v", n, err)
	}
}

// The core refuses a range beyond the end by itself, whoever asks for it.
// parity: H82
func TestTransferBeyondEnd(t *testing.T) {
	p := newBulkPair(t)
	b := expose(t, p.there, ReadWrite, make([]byte, 10))
	h := travel(t, b.Handle())
	for _, c := range []struct{ off, n uint64 }{{0, 11}, {10, 1}, {11, 0}, {math.MaxUint64, 2}, {1 << 63, 1}} {
		for _, dir := range []hg.Direction{hg.Pull, hg.Push} {
			tr := p.here.core.NewTransfer()
			tr.Start(dir, p.ep.addr, h.d, c.off, [][]byte{make([]byte, min(c.n, 20))}, c.n)
			n, err := tr.Wait(t.Context())
			tr.Free()
			wantCode(t, errorFrom("test", "", "", err), codes.InvalidArg)
			if n != 0 {
				t.Errorf("%d bytes moved", n)
			}
		}
	}
}

// Modes are checked on both sides of both directions before anything is sent.
// parity: H71 T08
func TestTransferModes(t *testing.T) {
	p := newBulkPair(t)
	for _, remote := range []Mode{ReadOnly, WriteOnly, ReadWrite} {
		for _, local := range []Mode{ReadOnly, WriteOnly, ReadWrite} {
			t.Run(fmt.Sprintf("%v and %v", remote, local), func(t *testing.T) {
				theirs := expose(t, p.there, remote, []byte("theirs"))
				mine := expose(t, p.here, local, []byte("mine.."))
				r := p.remote(t, theirs)
				_, err := r.Push(t.Context(), mine)
				checkMode(t, err, remote.allows(WriteOnly) && local.allows(ReadOnly))
				if err != nil && string(contents(theirs)) != "theirs" {
					t.Error("a refused push has changed bytes")
				}
				_, err = theirs.WriteAt([]byte("theirs"), 0)
				if err != nil {
					t.Error(err)
				}
				_, err = r.Pull(t.Context(), mine)
				checkMode(t, err, remote.allows(ReadOnly) && local.allows(WriteOnly))
				if err != nil && string(contents(mine)) != "mine.." {
					t.Error("a refused pull has changed bytes")
				}
			})
		}
	}
}

func checkMode(t *testing.T, err error, allowed bool) {
	t.Helper()
	if allowed && err != nil {
		t.Errorf("refused: %v", err)
	}
	if !allowed {
		wantCode(t, err, codes.Permission, "bulk is")
	}
}

// Whoever lies to himself about the mode, the range or the key is refused by the owner, and no byte changes.
// parity: H71
func TestHostileInitiator(t *testing.T) {
	p := newBulkPair(t)
	secret := expose(t, p.there, WriteOnly, []byte("do not read"))
	fixed := expose(t, p.there, ReadOnly, []byte("do not write"))
	narrow := expose(t, p.there, ReadWrite, []byte("0123456789")).Slice(3, 3)
	for _, c := range []struct {
		name string
		h    BulkHandle
		d    *direction
		lie  func(desc []byte)
	}{
		{"read of write-only memory", secret.Handle(), pull, claimReadWrite},
		{"write to read-only memory", fixed.Handle(), push, claimReadWrite},
		{"read beyond a part", narrow.Handle(), pull, func(b []byte) { claimLength(b, 7) }},
		{"write beyond a part", narrow.Handle(), push, func(b []byte) { claimLength(b, 7) }},
		{"guessed key", narrow.Handle(), pull, func(b []byte) { b[40] ^= 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			desc, err := c.h.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			c.lie(desc)
			var lie BulkHandle
			if err := lie.UnmarshalBinary(desc); err != nil {
				t.Fatal(err)
			}
			rogue := bulkEngine(t, nil)
			ep, err := rogue.Lookup(p.there.Addr())
			if err != nil {
				t.Fatal(err)
			}
			local := expose(t, rogue, ReadWrite, bytes.Repeat([]byte("x"), int(lie.Len())))
			n, err := lie.On(ep).transfer(t.Context(), c.d, local)
			if err == nil || n != 0 {
				t.Errorf("moved %d bytes, %v", n, err)
			}
			if got := contents(local); c.d == pull && !bytes.Equal(got, bytes.Repeat([]byte("x"), len(got))) {
				t.Errorf("read %q", got)
			}
		})
	}
	if got := string(contents(secret)) + string(contents(fixed)) + string(contents(narrow)); got != "do not readdo not write345" {
		t.Errorf("memory is %q", got)
	}
	// The honest are still served.
	if _, err := p.remote(t, fixed).ReadAt(t.Context(), make([]byte, 3), 0); err != nil {
		t.Error(err)
	}
}

// The offsets of a descriptor of one segment: total length, count, flags; base, length; size of the handle; key, length,
// count, access, base, length.
func claimReadWrite(desc []byte) {
	desc[12] |= byte(ReadWrite)
	desc[40+24] = byte(ReadWrite)
}

func claimLength(desc []byte, n uint64) {
	for _, off := range []int{0, 24, 40 + 8, 40 + 40} {
		binary.LittleEndian.PutUint64(desc[off:], n)
	}
}

// A transfer between memories of one process is a copy over segment edges, as strict as any other.
// parity: H83
func TestTransferWithinProcess(t *testing.T) {
	e := bulkEngine(t, nil)
	from := expose(t, e, ReadOnly, pieces([]byte("0123456789"), 3, 4, 3)...)
	into := expose(t, e, WriteOnly, pieces(make([]byte, 8), 1, 7)...)
	before := e.core.Stats()
	for _, r := range []RemoteBulk{from.Handle().On(e.Self()), travel(t, from.Handle()).On(e.Self())} {
		if n, err := r.Slice(1, 9).Pull(t.Context(), into.Slice(0, 7)); n != 7 || err != nil {
			t.Fatalf("pull: %d, %v", n, err)
		}
		if got := contents(into); string(got) != "1234567\x00" {
			t.Errorf("memory is %q", got)
		}
		if _, err := r.Push(t.Context(), from); err == nil {
			t.Error("pushed to read-only memory")
		}
		if _, err := into.WriteAt(make([]byte, 8), 0); err != nil {
			t.Fatal(err)
		}
	}
	into2 := expose(t, e, ReadWrite, make([]byte, 10))
	if n, err := into2.Handle().On(e.Self()).Push(t.Context(), from); n != 10 || err != nil || string(into2.Bytes()) != "0123456789" {
		t.Errorf("push: %d, %v, %q", n, err, into2.Bytes())
	}
	if after := e.core.Stats(); after.Reads != before.Reads || after.Writes != before.Writes {
		t.Error("a copy went over the wire")
	}
}

// parity: G63
func TestStartManyThenWait(t *testing.T) {
	p := newBulkPair(t)
	data := noise(8 * 1000)
	r := p.remote(t, expose(t, p.there, ReadWrite, data))
	into := expose(t, p.here, ReadWrite, make([]byte, len(data)))
	var ops []*Pending[int64]
	for i := range int64(8) {
		ops = append(ops, r.Slice(i*1000, 1000).StartPull(t.Context(), into.Slice(i*1000, 1000)))
	}
	seen := 0
	for i, op := range Completed(t.Context(), ops...) {
		if n, err := op.Wait(); n != 1000 || err != nil {
			t.Errorf("pull %d: %d, %v", i, n, err)
		}
		op.cancel() // too late for any effect
		seen++
	}
	if seen != 8 || !bytes.Equal(into.Bytes(), data) {
		t.Errorf("%d of 8 are over, or the bytes are wrong", seen)
	}
	op := r.StartPush(t.Context(), into)
	<-op.Done()
	if n, err := op.Wait(); n != 8000 || err != nil {
		t.Errorf("push: %d, %v", n, err)
	}
}

func TestStartWithEndedContext(t *testing.T) {
	p := newBulkPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := p.remote(t, expose(t, p.there, ReadOnly, make([]byte, 100)))
	local := expose(t, p.here, WriteOnly, make([]byte, 100))
	_, err := r.h.On(silentPeer(t, p.here)).StartPull(ctx, local).Wait()
	wantCode(t, err, codes.Canceled, "pull")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v is not context.Canceled", err)
	}
}

// Chunks put the same bytes in the same place as one transfer, whatever remains at the end.
// parity: G65
func TestTransferChunks(t *testing.T) {
	p := newBulkPair(t)
	large := int64(64 << 20)
	if brief() {
		large = 4 << 20
	}
	for _, c := range []struct {
		size, chunk int64
		inFlight    int
	}{
		{10, 4, 0}, {10, 4, 1}, {10, 5, 2}, {10, 10, 3}, {10, 11, 3}, {1, 1, 1}, {10, 3, 100},
		{large, large / 64, 4}, {large - 1, large / 64, 16}, {1<<20 + 1, 4096, 64},
	} {
		t.Run(fmt.Sprintf("%d in %d by %d", c.size, c.chunk, c.inFlight), func(t *testing.T) {
			data := noise(int(c.size))
			theirs := expose(t, p.there, ReadWrite, data)
			r := p.remote(t, theirs)
			mine := expose(t, p.here, ReadWrite, make([]byte, c.size+3))
			if n, err := r.PullChunks(t.Context(), mine.Slice(0, c.size), c.chunk, c.inFlight); n != c.size || err != nil {
				t.Fatalf("pull: %d, %v", n, err)
			}
			got := mine.Bytes()
			if !bytes.Equal(got[:c.size], data) || !bytes.Equal(got[c.size:], make([]byte, 3)) {
				t.Fatal("pulled bytes are wrong")
			}
			want := append(slices.Clone(data[c.size/3:]), data[:c.size/3]...)
			copy(got, want)
			if n, err := r.PushChunks(t.Context(), mine, c.chunk, c.inFlight); n != c.size || err != nil { // mine is larger
				t.Fatalf("push: %d, %v", n, err)
			}
			if !bytes.Equal(theirs.Bytes(), want) {
				t.Fatal("pushed bytes are wrong")
			}
		})
	}
}

// parity: G65
func TestTransferChunksRefused(t *testing.T) {
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadWrite, make([]byte, 10)))
	local := expose(t, p.here, ReadWrite, make([]byte, 10))
	_, err := r.PullChunks(t.Context(), local, 0, 1)
	wantCode(t, err, codes.InvalidArg, "chunks of 0 bytes")
	_, err = r.PushChunks(t.Context(), local, -1, 1)
	wantCode(t, err, codes.InvalidArg, "chunks of -1 bytes")
	_, err = r.PullChunks(t.Context(), local, 1, -1)
	wantCode(t, err, codes.InvalidArg, "-1 chunks in flight")
	wrong := p.remote(t, expose(t, p.there, WriteOnly, make([]byte, 10)))
	n, err := wrong.PullChunks(t.Context(), local, 3, 2)
	wantCode(t, err, codes.Permission, "pull")
	if n != 0 {
		t.Errorf("%d bytes moved", n)
	}
}

// Chunks towards a frozen peer end with the context, all of them, and none holds the memory.
func TestTransferChunksCancelled(t *testing.T) {
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadWrite, make([]byte, 1000))).h.On(silentPeer(t, p.here))
	local, err := p.here.Alloc(ReadWrite, 1000)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	n, err := r.PullChunks(ctx, local, 10, 5)
	wantCode(t, err, codes.Timeout, "pull")
	if n != 0 {
		t.Errorf("%d bytes moved", n)
	}
	closeBulk(t, local) // would wait for a chunk that is still under way
}

// A frozen peer ends a transfer with the deadline; the local memory may be used again at once.
// parity: G64 D02
func TestTransferTimeout(t *testing.T) {
	p := newBulkPair(t)
	h := travel(t, expose(t, p.there, ReadWrite, make([]byte, 1000)).Handle())
	frozen := h.On(silentPeer(t, p.here))
	local := expose(t, p.here, ReadWrite, make([]byte, 1000))
	for _, do := range []func(context.Context, *Bulk) (int64, error){
		frozen.Pull, frozen.Push,
		func(ctx context.Context, b *Bulk) (int64, error) { return frozen.StartPull(ctx, b).Wait() },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := do(ctx, local)
		cancel()
		wantCode(t, err, codes.Timeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not context.DeadlineExceeded", err)
		}
		fillNoise(local.Bytes())
	}
	if n, err := h.On(p.ep).Pull(t.Context(), local); n != 1000 || err != nil {
		t.Errorf("the living peer: %d, %v", n, err)
	}
}

// 64 goroutines pull disjoint parts through one handle into one Bulk.
// parity: H89
func TestManyPullsOfOneHandle(t *testing.T) {
	p := newBulkPair(t)
	const parts, size, rounds = 64, 32 << 10, 8
	data := noise(parts * size)
	r := p.remote(t, expose(t, p.there, ReadOnly, pieces(data, repeat(size/2, 2*parts)...)...))
	into := expose(t, p.here, WriteOnly, make([]byte, len(data)))
	var wg sync.WaitGroup
	for i := range int64(parts) {
		wg.Go(func() {
			for range rounds {
				if n, err := r.Slice(i*size, size).Pull(t.Context(), into.Slice(i*size, size)); n != size || err != nil {
					t.Errorf("part %d: %d, %v", i, n, err)
				}
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(into.Bytes(), data) {
		t.Error("pulled bytes are wrong")
	}
}

// Transfers that are cancelled at random times leave the memory and the connection usable. TestCancelOnTime says how soon
// they return.
// parity: Y01 D03
func TestCancelAtRandomTimes(t *testing.T) {
	p := newBulkPair(t)
	runs := 10_000
	if brief() {
		runs = 500
	}
	const size = 256 << 10
	theirs := expose(t, p.there, ReadWrite, make([]byte, size))
	r := p.remote(t, theirs)
	before := runtime.NumGoroutine()
	rng := rand.New(rand.NewPCG(1, 2))
	local := make([]byte, size)
	for range runs {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(400))*time.Microsecond)
		mine, err := p.here.Expose(ReadWrite, local)
		if err != nil {
			t.Fatal(err)
		}
		op := []func(context.Context, *Bulk) (int64, error){r.Pull, r.Push, r.waitPull}[rng.IntN(3)]
		n, err := op(ctx, mine)
		cancel()
		clear(local) // the race detector would see the network touch it
		if err == nil && n != size || err != nil && n != 0 {
			t.Fatalf("%d, %v", n, err)
		}
		closeBulk(t, mine)
	}
	if _, err := r.ReadAt(t.Context(), local, 0); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

func (r RemoteBulk) waitPull(ctx context.Context, b *Bulk) (int64, error) {
	return r.StartPull(ctx, b).Wait()
}

// An engine that closes ends its transfers with ErrClosed, or they are over before.
func TestEngineCloseEndsTransfers(t *testing.T) {
	there := bulkEngine(t, nil)
	here, err := Listen(t.Context(), network, withDevice(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	h := travel(t, expose(t, there, ReadWrite, make([]byte, 1000)).Handle())
	local, err := here.Alloc(ReadWrite, 1000)
	if err != nil {
		t.Fatal(err)
	}
	op := h.On(silentPeer(t, here)).StartPull(t.Context(), local)
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := op.Wait(); err == nil {
		t.Error("the transfer has succeeded")
	}
	closeBulk(t, local)
	ep := &Endpoint{e: here, addr: there.Self().addr}
	if _, err := h.On(ep).ReadAt(t.Context(), make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

func TestModeText(t *testing.T) {
	for m, want := range map[Mode]string{0: "no access", ReadOnly: "read-only", WriteOnly: "write-only", ReadWrite: "read-write", 9: "mode 9"} {
		if got := m.String(); got != want {
			t.Errorf("mode %d is %q, want %q", m, got, want)
		}
	}
	if ReadOnly.access() != na.ReadOnly || WriteOnly.access() != na.WriteOnly || ReadWrite.access() != na.ReadWrite {
		t.Error("the network layer has other values")
	}
}

// events is a monitor that keeps what it is told of transfers.
type events struct {
	mu sync.Mutex
	// +checklocks:mu
	got []stats.Event
}

func (m *events) Event(_ context.Context, ev stats.Event) {
	if ev.Kind == stats.EventTransfer {
		m.mu.Lock()
		m.got = append(m.got, ev)
		m.mu.Unlock()
	}
}

// take returns what came since the last take, in a line.
func (m *events) take() (line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ev := range m.got {
		line += fmt.Sprintf("%s %v %d %v; ", ev.Info.RPC, ev.End, ev.Bytes, ev.Err == nil)
	}
	m.got = nil
	return line
}

// parity: G86
func TestTransferEvents(t *testing.T) {
	var log events
	there, here := bulkEngine(t, nil), bulkEngine(t, &Config{Monitor: &log})
	ep, err := here.Lookup(there.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r := travel(t, expose(t, there, ReadWrite, make([]byte, 100)).Handle()).On(ep)
	local := expose(t, here, ReadWrite, make([]byte, 70))
	for _, c := range []struct {
		name string
		do   func() (int64, error)
		want string
	}{
		{"pull", func() (int64, error) { return r.Pull(t.Context(), local) }, "pull false 70 true; pull true 70 true; "},
		{"push", func() (int64, error) { return r.Push(t.Context(), local) }, "push false 70 true; push true 70 true; "},
		{"start", func() (int64, error) { return r.StartPull(t.Context(), local).Wait() }, "pull false 70 true; pull true 70 true; "},
		{"chunks", func() (int64, error) { return r.PullChunks(t.Context(), local, 40, 1) },
			"pull false 40 true; pull true 40 true; pull false 30 true; pull true 30 true; "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n, err := c.do(); n != 70 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			if got := log.take(); got != c.want {
				t.Errorf("told %q, want %q", got, c.want)
			}
		})
	}
	op := r.h.On(silentPeer(t, here)).StartPush(t.Context(), local)
	op.cancel()
	_, err = op.Wait()
	wantCode(t, err, codes.Canceled, "push")
	if got, want := log.take(), "push false 70 true; push true 0 false; "; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// waits are the ways in which a handler may wait for a transfer.
var waits = map[string]func(ctx context.Context, r RemoteBulk, local *Bulk) error{
	"pull": func(ctx context.Context, r RemoteBulk, b *Bulk) error { _, err := r.Pull(ctx, b); return err },
	"push": func(ctx context.Context, r RemoteBulk, b *Bulk) error { _, err := r.Push(ctx, b); return err },
	"start": func(ctx context.Context, r RemoteBulk, b *Bulk) error {
		_, err := r.StartPull(ctx, b).Wait()
		return err
	},
	"chunks": func(ctx context.Context, r RemoteBulk, b *Bulk) error {
		_, err := r.PushChunks(ctx, b, 3, 2)
		return err
	},
	"read at": func(ctx context.Context, r RemoteBulk, _ *Bulk) error {
		_, err := r.ReadAt(ctx, make([]byte, 5), 0)
		return err
	},
}

// A handler that waits for a transfer does not keep the only worker of its pool, in whatever way it waits.
func TestTransferFreesWorker(t *testing.T) {
	there := bulkEngine(t, &Config{Pools: []PoolConfig{{Name: "one", Workers: 1}}})
	here := bulkEngine(t, nil)
	ep := reach(t, here, there)
	frozen := silentPeer(t, there)
	type in struct {
		Way    string
		Handle BulkHandle
	}
	slow, fast := NewRPC[in, struct{}]("bulk_test_slow"), NewRPC[int32, int32]("bulk_test_fast")
	one := WithPool(there.LookupPool("one"))
	release := make(chan struct{})
	local := alloc(t, there, ReadWrite, 10)
	must(t, slow.Handle(there, func(ctx context.Context, in in) (struct{}, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			<-release
			cancel()
		}()
		return struct{}{}, waits[in.Way](ctx, in.Handle.On(frozen), local)
	}, one))
	must(t, fast.Handle(there, func(_ context.Context, in int32) (int32, error) { return in + 1, nil }, one))
	handle := expose(t, here, ReadWrite, make([]byte, 10_000)).Handle()
	var ps []*Pending[struct{}]
	for way := range waits { // all of them at once
		ps = append(ps, slow.Start(patient(t), ep, in{way, handle}))
		if got, err := fast.Call(patient(t), ep, 1); got != 2 || err != nil {
			t.Errorf("while another waits by %s: %d, %v", way, got, err)
		}
	}
	waitFor(t, func() bool { return there.Stats().Pools["one"].Waiting == len(waits) })
	close(release)
	for _, p := range ps {
		_, err := p.Wait()
		wantCode(t, err, codes.Canceled)
	}
	waitFor(t, func() bool { s := there.Stats().Pools["one"]; return s.Running == 0 && s.Waiting == 0 })
}

// A transfer allocates nothing in either process.
func TestTransferAllocs(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector allocates, and sync.Pool drops at random under it")
	}
	p := newBulkPair(t)
	r := p.remote(t, expose(t, p.there, ReadWrite, pieces(make([]byte, 4096), 96, 4000)...))
	local := expose(t, p.here, ReadWrite, make([]byte, 4096))
	buf := make([]byte, 4096)
	for name, do := range map[string]func() error{
		"pull":    func() error { _, err := r.Pull(t.Context(), local); return err },
		"push":    func() error { _, err := r.Push(t.Context(), local); return err },
		"read at": func() error { _, err := r.ReadAt(t.Context(), buf, 0); return err },
	} {
		for range 100 {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		n := testing.AllocsPerRun(1000, func() {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		})
		if n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
