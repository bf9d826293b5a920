package perfverbs

import (
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"cinnabar/verbs"
)

// Rounds before a measurement, which warm both sides up.
const warmUp = 4

// The number of looks at memory between two polls of the completion queue: the polls make the software device progress, and for
// other devices they are needed only to see failures.
const (
	looks        = 8
	looksOutside = polls
)

// result is the measurement of one size.
type result struct {
	size  int64
	count int64                   // operations, or round trips
	took  time.Duration           // for all of them
	times *hdrhistogram.Histogram // latencies in nanoseconds; nil for bandwidth
	clock time.Duration           // the cost of one reading of the clock, which is taken off them
}

// measure measures one size as the client.
func (e *side) measure(ctx context.Context, size int64) (r result, err error) {
	e.load(size)
	r = result{size: size}
	e.control.active.Store(true)
	defer e.control.active.Store(false)
	if e.o.latency {
		err = e.measureLatency(ctx, &r)
		return r, err
	}
	if _, _, err := e.pump(ctx, warmUp, time.Hour); err != nil {
		return r, err
	}
	r.count, r.took, err = e.pump(ctx, e.o.count, e.o.duration)
	return r, err
}

// pump keeps the send queue full until count operations are done, or, if count is 0, for as long as limit says, and waits
// for all of them.
func (e *side) pump(ctx context.Context, count int, limit time.Duration) (int64, time.Duration, error) {
	first := e.sender.posted
	goal := uint64(math.MaxUint64)
	if count > 0 {
		goal = first + uint64(count)
	}
	start := time.Now()
	for {
		if err := e.sender.fill(goal); err != nil {
			return 0, 0, e.Cause(err)
		}
		if e.sender.done == goal {
			err := e.flush(ctx)
			return int64(goal - first), time.Since(start), err
		}
		if err := e.reap(ctx); err != nil {
			return 0, 0, err
		}
		if count == 0 && goal == math.MaxUint64 && time.Since(start) >= limit {
			goal = e.sender.posted
		}
	}
}

// flush waits until all that was sent has arrived. On iWARP a completion says only that the data is with TCP; a read is
// answered behind all that was posted before it (RFC 5040, section 5.5).
func (e *side) flush(ctx context.Context) error {
	if e.attr.Transport != verbs.TransportIWARP || e.o.op.fetches() {
		return nil
	}
	if err := e.sender.post(e.behind[:]); err != nil {
		return e.Cause(err)
	}
	return e.settle(ctx)
}

// sink takes the client's messages until ctx ends.
func (e *side) sink(ctx context.Context) error {
	for {
		if err := e.reap(ctx); err != nil {
			return err
		}
	}
}

// measureLatency makes round trips. The cost of a reading of the clock is taken off each: in some virtual machines the
// system has to be asked, which takes as long as a message.
func (e *side) measureLatency(ctx context.Context, r *result) error {
	r.clock = clockCost()
	r.times = hdrhistogram.New(1, int64(time.Hour), 3)
	for range warmUp {
		if err := e.roundTrip(ctx); err != nil {
			return err
		}
	}
	ways := time.Duration(2)
	if e.o.op.fetches() {
		ways = 1
	}
	start := time.Now()
	for e.o.count == 0 && r.took < e.o.duration || r.count < int64(e.o.count) {
		if err := e.roundTrip(ctx); err != nil {
			return err
		}
		now := time.Since(start)
		if err := r.times.RecordValue(int64(max(1, now-r.took-r.clock) / ways)); err != nil {
			return err // over an hour
		}
		r.count++
		r.took = now
		e.rounds.Add(1)
	}
	return nil
}

// made returns the number of operations or round trips of the client. It is safe for concurrent use.
func (e *side) made() uint64 {
	if e.o.latency {
		return e.rounds.Load()
	}
	return e.control.progress.Load()
}

// clockCost measures the cost of one reading of the clock. The least of several tries counts: on a busy machine any one is
// interrupted.
func clockCost() time.Duration {
	const tries, readings = 8, 16
	least := time.Hour
	for range tries {
		start := time.Now()
		var took time.Duration
		for range readings {
			took = time.Since(start)
		}
		least = min(least, took/readings)
	}
	return least
}

// roundTrip makes one request and waits for its answer.
func (e *side) roundTrip(ctx context.Context) error {
	switch {
	case e.o.op.fetches():
		if err := e.sender.one(true); err != nil {
			return e.Cause(err)
		}
		return e.settle(ctx)
	case e.o.op == opWrite:
		if err := e.writeNext(ctx); err != nil {
			return err
		}
		return e.awaitWrite(ctx)
	}
	if err := e.sendNext(ctx); err != nil {
		return err
	}
	return e.awaitMessage(ctx)
}

// echo answers the client's messages until ctx ends.
func (e *side) echo(ctx context.Context) error {
	await, answer := e.awaitMessage, e.sendNext
	if e.o.op == opWrite {
		await, answer = e.awaitWrite, e.writeNext
	}
	for {
		if err := await(ctx); err != nil {
			return err
		}
		if err := answer(ctx); err != nil {
			return err
		}
	}
}

// sendNext sends a message.
func (e *side) sendNext(ctx context.Context) error {
	for e.sender.full(1) {
		if err := e.reap(ctx); err != nil {
			return err
		}
	}
	e.sent++
	return e.Cause(e.sender.one(false))
}

// awaitMessage waits for the peer's next message.
func (e *side) awaitMessage(ctx context.Context) error {
	for e.received == e.heard {
		if err := e.reap(ctx); err != nil {
			return err
		}
	}
	e.heard++
	return nil
}

// writeNext writes a message with a last byte that counts the rounds, as ib_write_lat does. The message before must be done
// with its memory, unless it went inline.
func (e *side) writeNext(ctx context.Context) error {
	for e.sender.full(1) || e.sender.done < e.reading {
		if err := e.reap(ctx); err != nil {
			return err
		}
	}
	e.sent++
	e.source.Bytes()[e.source.Len()-1] = byte(e.sent)
	if e.sender.group[0].Flags&verbs.Inline != 0 {
		return e.Cause(e.sender.one(false))
	}
	err := e.sender.one(true)
	e.reading = e.sender.posted
	return e.Cause(err)
}

// awaitWrite waits until the peer's next write is in place, which only the memory itself shows.
func (e *side) awaitWrite(ctx context.Context) error {
	want := byte(e.heard + 1)
	looks := looks
	if e.o.outside() {
		looks = looksOutside
	}
	for ctx.Err() == nil {
		for range polls / looks {
			for range looks {
				if e.lastByte() == want {
					e.heard++
					return nil
				}
			}
			if err := e.poll(); err != nil {
				return err
			}
		}
		runtime.Gosched()
	}
	return context.Cause(ctx)
}

// lastByte is the last byte of the memory that the peer writes to. Both devices put the word that it is in in place as
// one, behind all before it.
func (e *side) lastByte() byte {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], atomic.LoadUint32(&e.words[len(e.words)-1]))
	return b[len(b)-1]
}
