package native

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"cinnabar/codec"
	"cinnabar/codes"
	"cinnabar/internal/envelope"
)

// servedStream is a stream at its server, without its types. It begins with the arrival of the request that opens it, before the handler runs, and
// ends with that request.
//
// A put is answered when the handler has received all of its elements, and the answer gives the credit back to the client. The elements stay in the
// memory of the requests until then, which the engine bounds.
type servedStream struct {
	in   *incoming
	host any    // of the client
	out  outbox // its mutex is taken inside mu

	arrived chan struct{} // has room for one signal: a put is in the window, or the stream has failed

	mu sync.Mutex
	// +checklocks:mu
	puts window[*put]
	// +checklocks:mu
	last uint64 // sequence of the put with the end
	// +checklocks:mu
	ended bool // last is known
	// +checklocks:mu
	gets window[*get]
	// +checklocks:mu
	closed bool // the stream is over; frames are answered so
	// +checklocks:mu
	fault error // a protocol error of the client, or the loss of elements on their way to it
}

// put is a request with elements from the client.
type put struct {
	call *frameCall
	seq  uint64
	left uint32 // elements that the handler has not received
	body []byte // these elements, in the memory of the request
	busy bool   // an element is being decoded
}

// get is a request for elements.
type get struct {
	call  *frameCall
	grant credit
}

// window has the puts or the gets that have come and are not answered, at most streamCredits, in the order of their sequence numbers.
type window[T any] struct {
	next  uint64 // sequence of the oldest one
	slots [streamCredits]struct {
		v    T
		full bool
	}
}

// add puts the frame with that sequence number in its place.
func (w *window[T]) add(seq uint64, v T) error {
	slot := &w.slots[seq%streamCredits]
	switch {
	case seq < w.next:
		return badFrame("frame %d came twice", seq)
	case seq-w.next >= streamCredits:
		return badFrame("frame %d without a credit: frame %d is the oldest that is not answered, and there are %d credits", seq, w.next, streamCredits)
	case slot.full:
		return badFrame("frame %d came twice", seq)
	}
	slot.v, slot.full = v, true
	return nil
}

// first returns the frame that is next in order, if it is there.
func (w *window[T]) first() (v T, ok bool) {
	slot := &w.slots[w.next%streamCredits]
	return slot.v, slot.full
}

// remove removes the frame that first returned.
func (w *window[T]) remove() {
	slot := &w.slots[w.next%streamCredits]
	slot.v, slot.full = *new(T), false
	w.next++
}

// drain removes all frames and returns them.
func (w *window[T]) drain() (all []T) {
	for i := range w.slots {
		if s := &w.slots[i]; s.full {
			all = append(all, s.v)
			s.v, s.full = *new(T), false
		}
	}
	return all
}

func newServedStream(in *incoming, a *envelope.Arrival) *servedStream {
	return &servedStream{in: in, host: a.Host, out: outbox{budget: a.Budget}, arrived: make(chan struct{}, 1)}
}

// take takes a frame of the client. It does not block.
func (s *servedStream) take(c *frameCall, f *frame) {
	s.mu.Lock()
	if s.closed || s.fault != nil {
		s.mu.Unlock()
		answerOver(c, f)
		return
	}
	err := s.takeLocked(c, f)
	s.mu.Unlock()
	if err != nil {
		s.offend(c, err)
		return
	}
	if f.magic == magicGet {
		s.deliver()
	} else {
		s.signal()
	}
}

// +checklocks:s.mu
func (s *servedStream) takeLocked(c *frameCall, f *frame) error {
	if f.magic == magicGet {
		return s.gets.add(f.seq, &get{c, f.size})
	}
	switch {
	case !fullCredit.admits(f.size):
		return overrun(f, fullCredit)
	case s.ended && f.seq > s.last:
		return badFrame("put %d came after put %d, which is the end", f.seq, s.last)
	}
	for i := range s.puts.slots {
		if slot := &s.puts.slots[i]; f.end() && slot.full && slot.v.seq > f.seq {
			return badFrame("put %d is the end, and put %d came before it", f.seq, slot.v.seq)
		}
	}
	if err := s.puts.add(f.seq, &put{call: c, seq: f.seq, left: f.size.count, body: f.body}); err != nil {
		return err
	}
	if f.end() {
		s.last, s.ended = f.seq, true
	}
	return nil
}

// signal wakes the goroutine that receives.
func (s *servedStream) signal() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// offend ends the stream with err, because the frame of c breaks the protocol, and answers the frame. It counts the first such frame of a stream, and each
// such frame of an unknown stream, for which s is nil.
func (s *servedStream) offend(c *frameCall, err error) {
	if first := s == nil || s.blame(err); first && codes.Of(err) == codes.ProtocolError { // another version is no offence
		c.In.arrival.Breaches.Broken(err)
	}
	_ = c.Fail(err) // a caller that is gone needs no answer
}

// blame ends the stream with err. first is false if blame was called before, because the stream keeps the first error.
func (s *servedStream) blame(err error) (first bool) {
	s.mu.Lock()
	if first = s.fault == nil; first {
		s.fault = err
	}
	s.mu.Unlock()
	s.out.fail(err)
	s.signal()
	s.in.abort(err)
	return first
}

// failure returns the error that blame was called with.
func (s *servedStream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// deliver answers gets with elements, as far as there are both.
func (s *servedStream) deliver() {
	for {
		g, f, ok := s.match()
		if !ok {
			return
		}
		s.answer(g, f)
	}
}

// match takes the oldest get and the elements for it.
func (s *servedStream) match() (g *get, f frame, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok = s.gets.first(); !ok || s.fault != nil {
		return nil, f, false
	}
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	if !s.out.dueLocked() {
		return nil, f, false
	}
	f = frame{magic: magicElements, id: s.in.id, seq: s.gets.next}
	s.out.takeLocked(g.grant, &f)
	s.gets.remove()
	s.out.leaving++
	return g, f, true
}

// smallAnswer is the length in bytes up to which an answer fits into any message, so that it can be sent without waiting.
const smallAnswer = 256

// answer answers a get. An answer of more than smallAnswer bytes may wait until the client has fetched it, on a goroutine that ends then, or with the
// handler's context.
func (s *servedStream) answer(g *get, f frame) {
	respond := func(ctx context.Context) {
		if err := g.call.Respond(ctx, frameAnswer{f}); err != nil {
			s.blame(fmt.Errorf("native: elements of the stream are lost on their way to the client: %w", err))
		}
		f.memory.exit()
		s.out.arrive()
	}
	if len(f.body) <= smallAnswer {
		respond(g.call.Context())
		return
	}
	go respond(s.in)
}

// next decodes the next element from the client into v. It returns false at the end.
func (s *servedStream) next(ctx context.Context, p codec.Plan, v any) (bool, error) {
	for {
		w, element, done, err := s.element()
		switch {
		case err != nil || done:
			return false, err
		case w == nil:
			if err := await(ctx, s.in, s.arrived); err != nil {
				return false, cmp.Or(s.failure(), err)
			}
			continue
		}
		err = s.decode(w, element, p, v)
		switch {
		case err != nil:
			err = elementError(err)
			s.blame(err)
			return false, err
		case element != nil:
			return true, nil
		}
	}
}

// decode decodes an element of w, if there is one. Then it answers w if that has no further element, also if a type's own decoding panics.
func (s *servedStream) decode(w *put, element []byte, p codec.Plan, v any) (err error) {
	defer func() {
		if s.consumed(w) {
			s.credit(w)
		}
	}()
	if element != nil {
		_, err = p.Decode(element, v)
	}
	return err
}

// element takes an element from the oldest put, and keeps the memory of the put until consumed is called. The element is nil if the put has none.
// w is nil if there is no put, and done is true at the end.
func (s *servedStream) element() (w *put, element []byte, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return nil, nil, false, s.fault
	}
	w, ok := s.puts.first()
	switch {
	case s.closed:
		return nil, nil, false, errOver
	case !ok && s.ended && s.puts.next > s.last:
		return nil, nil, true, nil
	case !ok:
		return nil, nil, false, nil
	}
	w.busy = true
	if w.left > 0 {
		element, w.body, _ = cutElement(w.body)
		w.left--
	}
	return w, element, false, nil
}

// consumed reports whether a put has no more elements, and must be answered.
func (s *servedStream) consumed(w *put) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.busy = false
	switch {
	case s.closed:
		return true
	case w.left > 0:
		return false
	}
	s.puts.remove()
	return true
}

// credit answers a put, so that the client may send another frame.
func (s *servedStream) credit(w *put) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	f := frame{magic: magicCredit, id: s.in.id, seq: w.seq, size: fullCredit}
	if closed {
		f.size, f.flags = credit{}, flagOver
	}
	_ = w.call.Respond(w.call.Context(), frameAnswer{f}) // a caller that is gone needs no answer
}

// finish ends the direction to the client, because the handler has returned, and waits until the client has received all elements, or ctx ends.
func (s *servedStream) finish(ctx context.Context) {
	if s.out.end() != nil {
		return
	}
	s.deliver()
	for {
		s.out.mu.Lock()
		if s.out.count == 0 && s.out.leaving == 0 {
			s.out.mu.Unlock()
			return
		}
		changed := s.out.waitLocked()
		s.out.mu.Unlock()
		if await(ctx, ctx, changed) != nil {
			return
		}
	}
}

// close answers the frames that are left. The handler's context has ended then, or the handler has returned.
func (s *servedStream) close() {
	s.out.fail(errOver)
	s.mu.Lock()
	s.closed = true
	puts, gets := s.puts.drain(), s.gets.drain()
	puts = slices.DeleteFunc(puts, func(p *put) bool { return p.busy }) // a goroutine that the handler has left answers these
	s.mu.Unlock()
	for _, p := range puts {
		answerOver(p.call, &frame{magic: magicPut, id: s.in.id, seq: p.seq})
	}
	for _, g := range gets {
		answerOver(g.call, &frame{magic: magicGet, id: s.in.id})
	}
	s.signal()
}

// ServerStream is a stream in its handler: it receives elements of type In from the client, and sends elements of type Out. Its methods may be called
// by several goroutines, of which one receives at a time, until the handler returns.
type ServerStream[In, Out any] struct {
	core    *servedStream
	in, out codec.Plan
	sent    Out         // the slot of addTo
	reading atomic.Bool // a goroutine receives
	decoded In          // the next element, only used by that goroutine
}

// Send sends an element. It returns when the element is in the outbox of the stream, which accepts an element while it has fewer than 1,024 elements and
// less than 256 KiB, or less than 16 KiB if Config.OverflowBudget or the share of the client's host is used up. While the outbox is full because the
// client does not receive, Send waits until there is room, ctx ends, or the handler's context ends. The program may change v when Send has returned.
func (s *ServerStream[In, Out]) Send(ctx context.Context, v Out) error {
	if err := addTo(ctx, s.core.in, &s.core.out, s.out, &s.sent, v); err != nil {
		return err
	}
	s.core.deliver()
	return nil
}

// Receive yields the client's elements. If the client has called CloseSend, the loop ends after the last one. An error is yielded once, as the last
// value: ctx has ended, the handler's context has ended (the client has cancelled, its time is over, or the connection is lost), or the client has
// broken the protocol. The program may leave the loop and call Receive again for the elements that follow.
func (s *ServerStream[In, Out]) Receive(ctx context.Context) iter.Seq2[In, error] {
	return func(yield func(In, error) bool) {
		for {
			v, ok, err := s.receive(ctx)
			if err != nil {
				yield(v, err)
				return
			}
			if !ok || !yield(v, nil) {
				return
			}
		}
	}
}

func (s *ServerStream[In, Out]) receive(ctx context.Context) (v In, ok bool, err error) {
	if !s.reading.CompareAndSwap(false, true) {
		return v, false, errReceiving
	}
	defer s.reading.Store(false)
	ok, err = s.core.next(ctx, s.in, &s.decoded) // not into v, which would be allocated
	v, s.decoded = s.decoded, v
	return v, ok, err
}

var errReceiving = fmt.Errorf("native: another goroutine receives from the stream (%w)", codes.Busy)
