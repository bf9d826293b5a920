package wire

import (
	"bytes"

	"cinnabar/internal/na/ofiverbs"
	"cinnabar/xfer"
)

// program is the protocol that two programs speak over an RDMA connection.
type program uint8

const (
	programUnknown program = iota
	programRXM             // Mercury's ofi+verbs
	programBasic           // file transfer, in the paper's messages
	programFast            // file transfer, in those of this module
)

// rdmaConn is an RDMA connection: a queue pair at each end.
type rdmaConn struct {
	ch      *channel
	program program
	foreign bool // a side has sent private data of no known form
}

// offered adds the private data of a connection request, which show the program that connects.
func (r *rdmaConn) offered(m *message, b []byte) {
	if o, err := ofiverbs.ParseOffer(b); err == nil {
		r.program = programRXM
		addOffer(m, o)
		return
	}
	if _, fields, err := xfer.Describe(xfer.PartRequest, b); err == nil {
		m.add("program", "xfer")
		m.addAttrs(fields)
		return
	}
	r.addPrivate(m, b)
}

// accepted adds the private data of an acceptance.
func (r *rdmaConn) accepted(m *message, b []byte) {
	if r.program == programRXM || r.program == programUnknown {
		if o, err := ofiverbs.ParseAcceptance(b); err == nil {
			r.program = programRXM
			addOffer(m, o)
			return
		}
	}
	if _, fields, err := xfer.Describe(xfer.PartAnswer, b); err == nil {
		m.add("program", "xfer")
		m.addAttrs(fields)
		r.program = programBasic
		for _, f := range fields {
			if f.Key == "transfer" && f.Value.String() == xfer.Fast.String() {
				r.program = programFast
			}
		}
		return
	}
	r.addPrivate(m, b)
}

// refused adds the private data of a refusal.
func (r *rdmaConn) refused(m *message, b []byte) {
	if reason, ok := ofiverbs.ParseRefusal(b); ok {
		m.add("program", "rxm")
		m.add("why", reason)
		return
	}
	if _, fields, err := xfer.Describe(xfer.PartRefusal, b); err == nil {
		m.add("program", "xfer")
		m.addAttrs(fields)
		return
	}
	r.addPrivate(m, b)
}

func addOffer(m *message, o ofiverbs.Offer) {
	m.add("program", "rxm")
	if o.Port != 0 {
		m.add("port", uint64(o.Port))
	}
	m.add("credits", o.Flow)
	m.add("index", uint64(o.Index))
	m.add("process", uint64(o.Process))
}

// addPrivate adds the length of private data, without the zeros that InfiniBand puts behind them. The programs of the paper have none, so
// messages behind such data are not theirs, though they may have the same length.
func (r *rdmaConn) addPrivate(m *message, b []byte) {
	if n := len(bytes.TrimRight(b, "\x00")); n > 0 {
		m.add("private", uint64(n))
		r.foreign = true
	}
}

// received describes the message that a SEND carries. m.size is the number of its bytes, of which data may lack the last.
func (d *decoder) received(r *rdmaConn, dir int, m *message, data []byte) {
	whole := uint64(len(data)) == m.size
	if r.program == programUnknown || r.program == programRXM {
		if ofiverbs.IsPacket(data) {
			r.program = programRXM
			d.rxm(r, dir, m, data, whole)
			return
		}
	}
	if r.program == programUnknown && !r.foreign && whole && len(data) == basicLen || r.program == programBasic {
		if name, fields, err := xfer.Describe(xfer.PartBasic, data); err == nil {
			r.program = programBasic
			m.protocol, m.operation = "xfer", name
			m.addAttrs(fields)
			return
		}
	}
	if r.program == programFast {
		if name, fields, err := xfer.Describe(xfer.PartFast, data); err == nil {
			m.protocol, m.operation = "xfer", name
			m.addAttrs(fields)
			return
		}
	}
	m.operation = "send"
}

// basicLen is the length of the paper's messages.
const basicLen = 24

// rxm describes a packet of ofi+verbs.
func (d *decoder) rxm(r *rdmaConn, dir int, m *message, data []byte, whole bool) {
	m.protocol = "ofi+verbs"
	p, err := ofiverbs.ParsePacket(data)
	switch {
	case err != nil && !whole:
		m.operation = "packet"
	case err != nil:
		m.malformed(err)
	case p.Request:
		d.request(r.ch, dir, m, uint64(p.Tag), p.Payload, uint64(len(p.Payload)))
	case p.Response:
		d.response(r.ch, dir, m, uint64(p.Tag), p.Payload, uint64(len(p.Payload)))
	case p.Type == "credit":
		m.operation = "credit"
		m.add("credits", p.Credits)
	default:
		m.operation = "packet"
		m.add("type", p.Type)
		m.add("message", p.Size)
	}
}

// accessed describes an access to remote memory, and returns its call.
func (d *decoder) accessed(r *rdmaConn, dir int, m *message, k, address, length uint64) *call {
	m.add("key", key(k))
	m.add("address", key(address))
	m.add("length", length)
	c := d.access(r.ch, dir, k)
	m.belongs(c)
	return c
}
