package xfer

import (
	"errors"
	"io"
	"sync"
	"time"

	"cinnabar/internal/crc32c"
)

// A stream is a source of unknown length. Its transfer is one of the fast protocol with three differences, on which both sides agree by a bit of
// the request: the size is not known before END, each chunk may be shorter than a buffer, and a chunk may be empty. An empty chunk says that the
// source has nothing to send yet, so that a source that pauses does not look like a sender that is dead:
//
//	source   ──▶ pump: reads ahead ──▶ reader: takes those bytes   ──▶ CHUNK
//	                                   nothing for a pulse         ──▶ CHUNK of 0 bytes
//	                                   the end                     ──▶ END with the size

// pulse is the longest time between two chunks of a stream. A quarter of the timeout is the bound if it is shorter.
const pulse = time.Second

// Sizes of a pump.
const (
	pumpPart    = 64 << 10 // bytes of a read; no more than that fits into a pipe
	pumpParts   = 8        // reads ahead
	pumpRetries = 100      // reads without bytes and without an error, after which the source is broken
)

// pump reads a stream ahead, on a goroutine of its own, because a read may block for as long as the source likes.
type pump struct {
	parts chan part     // in the order of the stream
	spare chan []byte   // buffers that the reader is through with
	quit  chan struct{} // closed by stop
	once  sync.Once

	// The following fields are used by take only.
	rest part // of a part that was not taken whole
	tick *time.Timer
}

// part is the result of a read.
type part struct {
	b    []byte // the rest of it
	buf  []byte
	err  error // behind the bytes
	read bool  // it has come
}

// startPump begins to read. The goroutine ends when src does, or with the read that is under way at stop.
func startPump(src io.Reader) *pump {
	p := &pump{parts: make(chan part, pumpParts), spare: make(chan []byte, pumpParts), quit: make(chan struct{}), tick: time.NewTimer(0)}
	for range pumpParts {
		p.spare <- make([]byte, pumpPart)
	}
	go p.read(src) // it is not waited for, because a read may block for ever
	return p
}

func (p *pump) read(src io.Reader) {
	for idle := 0; ; {
		var buf []byte
		select {
		case buf = <-p.spare:
		case <-p.quit:
			return
		}
		n, err := src.Read(buf)
		if n < 0 || n > len(buf) {
			n, err = 0, errors.New("the Read of the source returns a count that cannot be")
		}
		if n == 0 && err == nil {
			if idle++; idle < pumpRetries {
				p.spare <- buf
				continue
			}
			err = io.ErrNoProgress
		}
		idle = 0
		select {
		case p.parts <- part{b: buf[:n], buf: buf, err: err, read: true}:
		case <-p.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// stop ends take. It does not wait for a read that is under way.
func (p *pump) stop() { p.once.Do(func() { close(p.quit) }) }

// take copies the bytes that are there to b, at least one byte, unless nothing comes for the time wait, or the stream has ended. Its error is io.EOF at the end.
func (p *pump) take(b []byte, wait time.Duration) (n int, err error) {
	for n < len(b) {
		if !p.rest.read && !p.next(wait, n == 0) {
			return n, nil
		}
		k := copy(b[n:], p.rest.b)
		n, p.rest.b = n+k, p.rest.b[k:]
		if len(p.rest.b) > 0 {
			return n, nil
		}
		if p.rest.err != nil {
			return n, p.rest.err
		}
		p.spare <- p.rest.buf
		p.rest = part{}
	}
	return n, nil
}

// next fetches the next part, and waits for it if it may. It reports whether there is one.
func (p *pump) next(wait time.Duration, may bool) bool {
	select {
	case p.rest = <-p.parts:
		return true
	default:
	}
	if !may {
		return false
	}
	p.tick.Reset(wait)
	select {
	case p.rest = <-p.parts:
	case <-p.tick.C:
	case <-p.quit:
	}
	return p.rest.read
}

// streamReader reads a stream for a client. It is used by one goroutine.
type streamReader struct {
	pump  *pump
	buf   []byte // the data buffers, one behind the other
	chunk int
	pulse time.Duration
}

// do is the job of the client's worker.
func (r *streamReader) do(a action) event {
	ev := event{kind: evRead, slot: a.slot}
	b := r.buf[a.slot*r.chunk:][:a.n]
	n, err := r.pump.take(b, r.pulse)
	switch {
	case errors.Is(err, io.EOF):
		ev.end = true
	case err != nil:
		ev.err = orOwn(err, failf(CodeSource, "cannot read at offset %d: %w", a.offset+int64(n), err))
		return ev
	}
	ev.n, ev.crc = n, crc32c.Checksum(b[:n])
	return ev
}

// fillStream starts a read of the stream into the next buffer, if that is empty. One read is under way at a time, because a read that is started
// behind the end would use a buffer for nothing.
func (c *fastClient) fillStream(acts []action) []action {
	slot := c.window.Slot(c.reads)
	b := &c.buffers[slot]
	if c.state != fastStreaming || c.size >= 0 || c.reading > 0 || b.state != bufferEmpty || b.hashing {
		return acts
	}
	b.state = bufferReading
	c.reads++
	c.reading++
	return append(acts, action{kind: actRead, slot: slot, offset: c.offset, n: c.chunk})
}

// streamFilled processes the end of a read of a stream.
func (c *fastClient) streamFilled(ev event, acts []action) []action {
	b := &c.buffers[ev.slot]
	c.offset += int64(ev.n)
	if ev.end {
		c.size = c.offset
		if ev.n == 0 {
			b.state = bufferEmpty
			c.reads--
			return c.wrapUp(acts)
		}
	}
	b.n, b.crc, b.state = ev.n, ev.crc, bufferFull
	if ev.n > 0 && c.digest != NoDigest {
		b.hashing = true
		c.hashing++
		acts = append(acts, action{kind: actHash, slot: ev.slot, n: b.n})
	}
	return c.wrapUp(c.fillStream(c.pump(acts)))
}

// endStream takes the size of a stream from the client's END.
func (s *fastServer) endStream(m fastMessage) error {
	if m.number != uint64(s.arrived) {
		return failf(CodeProtocol, "the client says that its stream has %d bytes, and %d came", m.number, s.arrived)
	}
	s.size, s.limit = s.arrived, s.arrived
	return nil
}

// checkStream refuses a stream for reasons that are known before the connection.
func (d *delivery) checkStream() error {
	if d.src.Stream == nil {
		return nil
	}
	if d.src.Data != nil {
		return failf(CodeSource, "the source has both Data and Stream")
	}
	if d.src.Choice != nil {
		return failf(CodeSource, "the source has both Stream and Choice; a receiver can choose only ranges of Data")
	}
	if d.Protocol == Basic {
		return failf(CodeUnsupported, "a stream needs the fast protocol")
	}
	return nil
}
