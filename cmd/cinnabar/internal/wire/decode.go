package wire

import (
	"fmt"
	"net/netip"
	"sort"
	"time"

	"cinnabar/internal/capture"
)

// Limits of the decoder, in bytes of one message and in entries of all tables together.
const (
	maxKept    = 1 << 16 // bytes of a message that are kept; the rest is counted only
	maxBudget  = 1 << 26 // bytes that all unfinished messages keep
	maxCalls   = 1 << 16 // calls that wait for their responses, and keys of memory
	maxPending = 1 << 8  // reads or writes of one direction that wait for their answers
	maxPairs   = 1 << 13 // queue pairs and connections of RoCE
)

// decoder turns the packets of a capture into messages.
type decoder struct {
	emit    func(*message)
	names   map[uint64]string // of RPCs, by their ids without provider
	streams *capture.Assembler
	roce    *roce
	calls   *bounded[callKey, *call]
	memory  *bounded[memoryKey, *call]

	packet  capture.Packet // the one that is being decoded
	first   time.Time
	last    int // number of the last call
	links   int // numbers for channels
	kept    int // bytes that unfinished messages keep
	skipped map[string]int
}

func newDecoder(emit func(*message)) *decoder {
	d := &decoder{emit: emit, names: map[uint64]string{}, skipped: map[string]int{}}
	d.calls, d.memory = newBounded[callKey, *call](maxCalls), newBounded[memoryKey, *call](maxCalls)
	d.streams = capture.NewAssembler(capture.DefaultLimits, func(src, dst netip.AddrPort, start bool) capture.Handler {
		return &tcpConn{d: d, ends: [2]netip.AddrPort{src, dst}, start: start}
	})
	d.roce = newRoCE(d)
	return d
}

// rocePort is the port of RoCEv2.
const rocePort = 4791

// add decodes a packet.
func (d *decoder) add(p *capture.Packet) {
	d.packet = *p
	if d.first.IsZero() {
		d.first = p.Time
	}
	s, skip := capture.Parse(p)
	switch {
	case skip == capture.LinkWrong:
		d.count(fmt.Sprintf("packets of link type %d, which is not known", p.Link))
	case skip == capture.Fragment:
		d.count("fragments of IP packets")
	case skip == capture.Short:
		d.count("packets with incomplete headers")
	case skip != capture.Taken:
	case s.TCP:
		d.streams.Add(&s)
	case s.Dst.Port() == rocePort:
		d.roce.add(&s)
	}
}

// close decodes the ends of streams that the capture breaks off.
func (d *decoder) close() { d.streams.Close() }

// count counts a part of the capture that is not decoded.
func (d *decoder) count(reason string) {
	if len(d.skipped) < 64 || d.skipped[reason] > 0 {
		d.skipped[reason]++
	}
}

// notes returns lines about the parts that were not decoded.
func (d *decoder) notes() []string {
	var list []string
	for reason, n := range d.skipped {
		list = append(list, fmt.Sprintf("%d %s", n, reason))
	}
	sort.Strings(list)
	return list
}

// message returns a message that ends in the packet that is being decoded.
func (d *decoder) message(from, to, protocol, operation string) *message {
	m := &message{packet: d.packet.Number, time: d.packet.Time, from: from, to: to, protocol: protocol, operation: operation}
	if !d.first.IsZero() && !d.packet.Time.IsZero() {
		m.seconds = d.packet.Time.Sub(d.first).Seconds()
	}
	return m
}

// body collects the bytes of one message: the first maxKept of them, and the number of all.
type body struct {
	d       *decoder
	data    []byte
	total   uint64
	missing uint64 // bytes that the capture does not have
}

// add adds bytes. Once some were not kept, none are, because the kept ones are the beginning of the message.
func (b *body) add(p []byte) {
	whole := uint64(len(b.data)) == b.total
	b.total += uint64(len(p))
	n := min(len(p), maxKept-len(b.data), maxBudget-b.d.kept)
	if whole && n > 0 {
		b.data = append(b.data, p[:n]...)
		b.d.kept += n
	}
}

// gap adds bytes that the capture does not have.
func (b *body) gap(n uint64) { b.total, b.missing = b.total+n, b.missing+n }

// free gives the kept bytes up, before the body is dropped or used again.
func (b *body) free() {
	b.d.kept -= len(b.data)
	*b = body{d: b.d}
}

// note adds a field for bytes that the capture does not have.
func (b *body) note(m *message) {
	if b.missing > 0 {
		m.add("missing", b.missing)
	}
}

// bounded is a map that forgets its oldest entry when it is full.
type bounded[K comparable, V any] struct {
	limit int
	drop  func(V) // called with each value that is forgotten; may be nil
	m     map[K]entry[V]
	order []K // oldest first; a key that was put again is in it twice, and turn shows which place counts
	turn  []uint64
	turns uint64
}

type entry[V any] struct {
	value V
	turn  uint64
}

func newBounded[K comparable, V any](limit int) *bounded[K, V] {
	return &bounded[K, V]{limit: limit, m: map[K]entry[V]{}}
}

func (b *bounded[K, V]) get(k K) (V, bool) {
	e, ok := b.m[k]
	return e.value, ok
}

func (b *bounded[K, V]) put(k K, v V) {
	b.turns++
	b.m[k] = entry[V]{v, b.turns}
	b.order, b.turn = append(b.order, k), append(b.turn, b.turns)
	for len(b.m) > b.limit || len(b.order) > 2*b.limit {
		old, turn := b.order[0], b.turn[0]
		b.order, b.turn = b.order[1:], b.turn[1:]
		if e := b.m[old]; e.turn == turn {
			delete(b.m, old)
			if b.drop != nil {
				b.drop(e.value)
			}
		}
	}
}
