package demo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
)

// pass moves the whole source by one operation, round by round, and compares
// the digests of the data that left and the data that arrived. The time is that of the transfers:
// from the first post until the data is there, without making and hashing it.
func (d *session) pass(ctx context.Context, op operation) (err error) {
	var r io.ReadCloser
	if op != opRead { // there the peer has the source
		if r, err = d.src.open(); err != nil {
			return err
		}
		defer cli.Shut(r)
	}
	sum := sha256.New()
	row := row{step: op.String(), bytes: d.src.Size}
	for left := d.src.Size; left > 0; {
		b := d.data.Bytes()[:min(left, int64(d.data.Len()))]
		if op != opRead {
			if err := d.src.fill(r, b); err != nil {
				return err
			}
		}
		took, n, err := d.round(ctx, op, len(b))
		if err != nil {
			return err
		}
		sum.Write(b)
		row.took += took
		row.operations += int64(n)
		left -= int64(len(b))
	}
	row.rate = fmt.Sprintf("%.0f MiB/s", cli.MiBPerSecond(row.bytes, row.took))
	if err := d.compare(ctx, op, [32]byte(sum.Sum(nil))); err != nil {
		return err
	}
	row.verified = equal
	d.rows = append(d.rows, row)
	return nil
}

// equal is the text of a step with received data that equals the sent data.
const equal = "SHA-256 equal"

// compare asks the peer for its digest of the pass.
func (d *session) compare(ctx context.Context, op operation, own [32]byte) error {
	m, err := d.ask(ctx, message{kind: kindSum, op: op}, kindSum)
	if err != nil {
		return err
	}
	if m.digest != own {
		return fmt.Errorf("verification failed: SHA-256 is %x here and %x at the peer", own, m.digest)
	}
	if d.passes > 0 && own != d.digest {
		return fmt.Errorf("verification failed: both sides agree on SHA-256 %x, but an earlier pass had %x; did %s change meanwhile?", own, d.digest, d.src.name())
	}
	d.digest = own
	d.passes++
	return nil
}

// round moves the first n bytes of the registered memory and returns how long
// that took and how many operations it was.
func (d *session) round(ctx context.Context, op operation, n int) (time.Duration, int, error) {
	if _, err := d.ask(ctx, message{kind: kindBegin, op: op, value: uint64(n)}, kindReady); err != nil {
		return 0, 0, err
	}
	wrs := d.requests(op, n)
	count := len(wrs)
	if op != opRead { // the peer cannot know when a write is done, so the parent sends moved
		if err := d.listen(); err != nil {
			return 0, 0, err
		}
		wrs = append(wrs, d.sendWR(message{kind: kindMoved, op: op}))
	}
	start := time.Now()
	if err := d.do(ctx, wrs...); err != nil {
		return 0, 0, err
	}
	if op != opRead {
		if _, err := d.expect(ctx, kindArrived); err != nil {
			return 0, 0, err
		}
	}
	return time.Since(start), count, nil
}

// requests are the work requests that move n bytes.
func (d *session) requests(op operation, n int) []verbs.SendWR {
	var wrs []verbs.SendWR
	for off, size := range chunks(n, chunkLen) {
		wr := verbs.SendWR{Flags: verbs.Signaled, SGL: []verbs.SGE{d.data.SGE(off, size)}, Remote: d.at(off)}
		switch op {
		case opSendReceive:
			wr.Op = verbs.OpSend
		case opWrite:
			wr.Op = verbs.OpWrite
		case opWriteImm:
			wr.Op, wr.Imm = verbs.OpWriteImm, uint32(size)
		case opRead:
			wr.Op = verbs.OpRead
		}
		wrs = append(wrs, wr)
	}
	return wrs
}

// atomics counts and swaps on the peer's two words.
func (d *session) atomics(ctx context.Context) error {
	const fetchAdd, compareSwap = "fetch-and-add", "compare-and-swap"
	if !d.attr.Caps.Has(verbs.CapAtomics) {
		d.skip(fetchAdd)
		d.skip(compareSwap)
		return nil
	}
	if err := d.count(ctx, fetchAdd); err != nil {
		return fmt.Errorf("%s: %w", fetchAdd, err)
	}
	if err := d.swap(ctx, compareSwap); err != nil {
		return fmt.Errorf("%s: %w", compareSwap, err)
	}
	return nil
}

// oldValues is the text of a step in which each atomic returned the result of the atomic before it.
var oldValues = fmt.Sprintf("%d old values", atomicCount)

// count adds 1, 2, 3, ... to the first word. Each operation must return the sum
// of those before it, and the peer must see the total.
func (d *session) count(ctx context.Context, step string) error {
	start := time.Now()
	total := uint64(0)
	for add := uint64(1); add <= atomicCount; add++ {
		old, err := d.atomic(ctx, verbs.SendWR{Op: verbs.OpFetchAdd, CompareAdd: add, Remote: d.at(wordOffset(0))})
		if err != nil {
			return err
		}
		if old != total {
			return fmt.Errorf("verification failed: the word held %d before adding %d, expected %d", old, add, total)
		}
		total += add
	}
	d.atomicRow(step, atomicCount, time.Since(start), oldValues)
	return d.checkWord(ctx, 0, total)
}

// swap counts the second word up by compare-and-swap. One more with a wrong
// expectation must change nothing.
func (d *session) swap(ctx context.Context, step string) error {
	start := time.Now()
	at := d.at(wordOffset(1))
	for v := uint64(0); v < atomicCount; v++ {
		old, err := d.atomic(ctx, verbs.SendWR{Op: verbs.OpCompareSwap, CompareAdd: v, Swap: v + 1, Remote: at})
		if err != nil {
			return err
		}
		if old != v {
			return fmt.Errorf("verification failed: the word held %d, expected %d", old, v)
		}
	}
	took := time.Since(start)
	old, err := d.atomic(ctx, verbs.SendWR{Op: verbs.OpCompareSwap, CompareAdd: 0, Swap: 1, Remote: at})
	if err != nil {
		return err
	}
	if old != atomicCount {
		return fmt.Errorf("verification failed: a swap that must not happen saw %d, expected %d", old, atomicCount)
	}
	d.atomicRow(step, atomicCount, took, oldValues)
	return d.checkWord(ctx, 1, atomicCount)
}

// atomic carries out one atomic operation and returns the old value. Words are
// in the byte order of the machine, which is the same for both processes.
func (d *session) atomic(ctx context.Context, wr verbs.SendWR) (uint64, error) {
	wr.Flags, wr.SGL = verbs.Signaled, []verbs.SGE{d.result.SGE(0, wordLen)}
	if err := d.do(ctx, wr); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(d.result.Bytes()), nil
}

// atomicRow notes a step with atomics.
func (d *session) atomicRow(step string, n int64, took time.Duration, verified string) {
	d.rows = append(d.rows, row{
		step: step, operations: n, bytes: n * wordLen, took: took,
		rate: fmt.Sprintf("%.0f/s", cli.PerSecond(n, took)), verified: verified,
	})
}

// checkWord compares the peer's content of word i with want.
func (d *session) checkWord(ctx context.Context, i, want uint64) error {
	m, err := d.ask(ctx, message{kind: kindWord, value: i}, kindWord)
	if err != nil {
		return err
	}
	if m.value != want {
		return fmt.Errorf("verification failed: the peer sees %d in its word, expected %d", m.value, want)
	}
	return nil
}
