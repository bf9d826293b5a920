package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/mpa"
	"cinnabar/internal/iwarp/rdmap"
)

// iwarp decodes MPA, DDP and RDMAP over a TCP connection.
type iwarp struct {
	c    *tcpConn
	ch   *channel
	rdma rdmaConn
	crc  bool // one of the frames wants checksums
	dirs [2]iwarpDir
}

type iwarpDir struct {
	framed  bool   // the start-up frame has come
	dead    bool   // a frame was malformed, or bytes are missing, so the next frame cannot be found
	buf     []byte // a start-up frame or FPDU that is not whole
	need    int    // bytes of buf that make it whole, if they are known
	holes   uint64 // bytes of buf that the capture does not have; they are zero
	send    body   // the SEND whose segments are coming
	tagged  body   // the write or the data of a read whose segments are coming
	stag    uint32
	address uint64
}

func (w *iwarp) message(dir int, operation string) *message {
	return w.c.message(dir, "iwarp", operation)
}

func (w *iwarp) bytes(dir int, b []byte) {
	s := &w.dirs[dir]
	s.send.d, s.tagged.d, w.rdma.ch = w.c.d, w.c.d, w.ch
	if s.dead {
		return
	}
	if len(s.buf) > 0 {
		w.c.d.kept -= len(s.buf)
		b, s.buf = append(s.buf, b...), nil
		if len(b) < s.need {
			w.keep(dir, b)
			return
		}
	}
	for len(b) > 0 && !s.dead {
		s.need = 0
		n := w.next(dir, b)
		if n == 0 {
			if !s.dead {
				w.keep(dir, bytes.Clone(b))
			}
			return
		}
		b = b[n:]
	}
}

// keep takes b over, which is the beginning of a frame, until the rest comes.
func (w *iwarp) keep(dir int, b []byte) {
	s := &w.dirs[dir]
	if w.c.d.kept+len(b) <= maxBudget {
		w.c.d.kept += len(b)
		s.buf = b
		return
	}
	s.dead = true
	m := w.message(dir, "dropped")
	m.add("problem", "more unfinished messages than can be kept")
	w.c.d.emit(m)
}

// next decodes the start-up frame or the FPDU at the start of b, and returns its length, or 0 if more bytes are needed.
func (w *iwarp) next(dir int, b []byte) int {
	s := &w.dirs[dir]
	if !s.framed {
		f, n, err := mpa.ParseFrame(b)
		switch {
		case err != nil:
			w.fail(dir, err)
		case n > 0:
			s.framed = true
			w.begin(dir, f, n)
		}
		return n
	}
	if len(b) < mpa.HeaderLen {
		return 0
	}
	size := int(binary.BigEndian.Uint16(b))
	if size == 0 {
		w.fail(dir, errors.New("an FPDU without contents"))
		return 0
	}
	n := mpa.FPDULen(size)
	if len(b) < n {
		s.need = n
		return 0
	}
	end := mpa.HeaderLen + size
	if w.crc && s.holes == 0 && !mpa.CheckTrailer(b[end:n], size, mpa.Update(0, b[:end])) {
		m := w.message(dir, "")
		m.size = uint64(size)
		m.malformed(errors.New("the checksum of an FPDU is wrong"))
		w.c.d.emit(m)
		return n
	}
	w.segment(dir, b[mpa.HeaderLen:end])
	s.holes = 0
	return n
}

func (w *iwarp) fail(dir int, err error) {
	w.dirs[dir].dead = true
	m := w.message(dir, "")
	m.malformed(err)
	w.c.d.emit(m)
}

// begin reports a start-up frame.
func (w *iwarp) begin(dir int, f mpa.Frame, n int) {
	w.crc = w.crc || f.CRC
	m := w.message(dir, "connect")
	m.size = uint64(n)
	m.add("revision", uint64(f.Revision))
	m.add("crc", f.CRC)
	if f.Enhanced {
		m.add("ird", uint64(f.Setup.IRD))
		m.add("ord", uint64(f.Setup.ORD))
	}
	switch {
	case f.Reject:
		m.operation = "refuse"
		w.rdma.refused(m, f.PrivateData)
		w.dirs[0].dead, w.dirs[1].dead = true, true
	case f.Reply:
		m.operation = "accept"
		w.rdma.accepted(m, f.PrivateData)
	default:
		w.rdma.offered(m, f.PrivateData)
	}
	if f.Markers {
		m.add("problem", "the sender demands markers, which cannot be read")
		w.dirs[1-dir].dead = true
	}
	w.c.d.emit(m)
}

// segment decodes a DDP segment.
func (w *iwarp) segment(dir int, b []byte) {
	s := &w.dirs[dir]
	h, n := ddp.ParseHeader(b)
	_, op := rdmap.ParseControl(h.ULP)
	payload := b[n:]
	m := w.message(dir, op.String())
	m.size = uint64(len(payload))
	switch {
	case n == 0 || h.Version != ddp.Version:
		m.malformed(fmt.Errorf("%d bytes that are no segment of DDP", len(b)))
	case h.Tagged != op.Tagged():
		m.malformed(fmt.Errorf("%s in a segment of the other model", op))
	case h.Tagged:
		w.place(dir, m, op, h, payload)
		return
	default:
		if !w.untagged(dir, m, op, h, payload) {
			return
		}
	}
	if s.holes > 0 {
		m.add("missing", s.holes)
	}
	w.c.d.emit(m)
}

// place takes a segment of a write or of the data of a read.
func (w *iwarp) place(dir int, m *message, op rdmap.Opcode, h ddp.Header, payload []byte) {
	s := &w.dirs[dir]
	if s.tagged.total == 0 {
		s.stag, s.address = h.STag, h.TO
	}
	s.tagged.total += uint64(len(payload))
	if !h.Last {
		return
	}
	m.size = s.tagged.total
	s.tagged.free()
	if op == rdmap.OpWrite {
		m.operation = "write"
		w.c.d.accessed(&w.rdma, dir, m, uint64(s.stag), s.address, m.size)
	} else {
		m.operation = "read-data"
		m.add("length", m.size)
		m.belongs(answered(&w.ch.reads[1-dir]))
	}
	w.c.d.emit(m)
}

// untagged takes a segment of an untagged message, and reports whether the message is complete and in m.
func (w *iwarp) untagged(dir int, m *message, op rdmap.Opcode, h ddp.Header, payload []byte) bool {
	s := &w.dirs[dir]
	bad := false
	switch op {
	case rdmap.OpSend, rdmap.OpSendInvalidate, rdmap.OpSendSE, rdmap.OpSendSEInvalidate:
		s.send.add(payload)
		if !h.Last {
			return false
		}
		m.size = s.send.total
		w.c.d.received(&w.rdma, dir, m, s.send.data)
		if op.Invalidates() {
			m.add("invalidate", key(h.Rsvd))
		}
		s.send.free()
	case rdmap.OpReadRequest:
		r, n := rdmap.ParseReadRequest(payload)
		if bad = n < 0; bad {
			break
		}
		m.operation, m.size = "read", uint64(r.Size)
		sent(&w.ch.reads[dir], w.c.d.accessed(&w.rdma, dir, m, uint64(r.SourceSTag), r.SourceTO, uint64(r.Size)))
	case rdmap.OpTerminate:
		t, _, n := rdmap.ParseTerminate(payload)
		if bad = n < 0; bad {
			break
		}
		m.operation = "terminate"
		m.add("layer", uint64(t.Layer))
		m.add("type", uint64(t.Type))
		m.add("code", uint64(t.Code))
		m.add("text", t.Cause().String())
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		if bad = len(payload) < rdmap.ImmediateLen; bad {
			break
		}
		m.operation = "immediate"
		m.add("immediate", uint64(binary.BigEndian.Uint32(payload)))
	case rdmap.OpAtomicRequest:
		a, n := rdmap.ParseAtomicRequest(payload)
		if bad = n < 0; bad {
			break
		}
		m.operation = "atomic"
		m.add("key", key(a.STag))
		m.add("address", key(a.TO))
	case rdmap.OpAtomicResponse:
		m.operation = "atomic-result"
	default:
		bad = true
	}
	if bad {
		m.malformed(fmt.Errorf("%s of %d bytes", op, len(payload)))
	}
	return true
}

func (w *iwarp) gap(dir int, n uint64) {
	s := &w.dirs[dir]
	if s.dead {
		return
	}
	if s.framed && len(s.buf) >= mpa.HeaderLen {
		if size := mpa.FPDULen(int(binary.BigEndian.Uint16(s.buf))); n <= uint64(size-len(s.buf)) {
			s.holes += n
			w.bytes(dir, make([]byte, n))
			return
		}
	}
	w.end(dir)
	s.dead = true
	m := w.message(dir, "gap")
	m.add("missing", n)
	w.c.d.emit(m)
}

func (w *iwarp) end(dir int) {
	s := &w.dirs[dir]
	if !s.dead && (len(s.buf) > 0 || s.send.total > 0 || s.tagged.total > 0) {
		m := w.message(dir, "unfinished")
		m.size = uint64(len(s.buf)) + s.send.total + s.tagged.total
		w.c.d.emit(m)
	}
	w.c.d.kept -= len(s.buf)
	s.buf = nil
	if s.send.d != nil {
		s.send.free()
		s.tagged.free()
	}
}
