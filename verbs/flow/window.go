package flow

import (
	"fmt"

	"cinnabar/regmem/ring"
)

// Window is the sender's half of flow control: which records may go, and where in the peer's ring they lie. It is a plain
// state without I/O and not safe for concurrent use. Records are numbered from 0.
type Window struct {
	layout  ring.Layout
	records int      // limit of records under way
	bytes   int      // limit of bytes under way
	inline  int      // longest record that does not lie in the ring
	sent    []parcel // of records granted to next-1, at their numbers modulo the length
	next    uint64
	granted uint64 // records that the peer has released
	used    int    // bytes under way

	soon, now bool // questions that the peer has not answered
}

// parcel is a record under way.
type parcel struct {
	length int
	inRing bool
	place  uint64 // number of its block in the layout
}

// Ticket is a record that may go.
type Ticket struct {
	Seq    uint64
	InRing bool
	Offset int  // in the peer's ring, if InRing
	Ask    bool // the record carries the question to tell soon
}

// NewWindow returns the window onto a peer that takes that many records and bytes at a time; records of more than inline
// bytes lie in its ring, which has bytes bytes.
func NewWindow(records, bytes, inline int) *Window {
	return &Window{layout: ring.NewLayout(bytes), records: records, bytes: bytes, inline: inline, sent: make([]parcel, records)}
}

// Longest returns the length of the longest record that can ever go.
func (w *Window) Longest() int { return max(w.layout.Size(), min(w.inline, w.bytes)) }

// Fits tells whether a record of n bytes may go now.
func (w *Window) Fits(n int) bool {
	if w.next-w.granted >= uint64(w.records) || n > w.bytes-w.used {
		return false
	}
	return n <= w.inline || w.layout.Fits(n)
}

// Take has a record of n bytes go, which must fit.
func (w *Window) Take(n int) Ticket {
	p := parcel{length: n, inRing: n > w.inline}
	t := Ticket{Seq: w.next, InRing: p.inRing}
	if p.inRing {
		t.Offset, p.place = w.layout.Place(n)
	}
	*w.parcel(w.next) = p
	w.next++
	w.used += n
	if half := w.next-w.granted > uint64(w.records)/2 || w.used > w.bytes/2 || w.layout.Used() > w.layout.Size()/2; half && !w.soon {
		w.soon, t.Ask = true, true
	}
	return t
}

func (w *Window) parcel(seq uint64) *parcel { return &w.sent[seq%uint64(len(w.sent))] }

// AskNow tells whether the peer should be asked for a grant at once, since somebody waits; it is asked once at a time.
func (w *Window) AskNow() bool {
	ask := !w.now && w.next != w.granted
	w.now = w.now || ask
	return ask
}

// Grant takes the peer's word that it has released total records in all, modulo 2^32. The error names a lie.
func (w *Window) Grant(total uint32) error {
	more := total - uint32(w.granted)
	if under := w.next - w.granted; uint64(more) > under {
		if more > 1<<31 { // an older word, which came later
			return nil
		}
		return fmt.Errorf("the peer grants %d records, %d are under way", more, under)
	}
	for ; more > 0; more-- {
		p := w.parcel(w.granted)
		w.used -= p.length
		if p.inRing {
			if err := w.layout.Free(p.place); err != nil {
				return err
			}
		}
		w.granted++
	}
	return nil
}

// Answered takes note of answers to questions. The error names one that was not asked.
func (w *Window) Answered(soon, now bool) error {
	if soon && !w.soon || now && !w.now {
		return fmt.Errorf("the peer answers what it was not asked (soon %v, now %v)", soon, now)
	}
	if soon {
		w.soon = false
	}
	if now {
		w.now = false
	}
	return nil
}

// Known returns how many grants have been heard of, modulo 2^32.
func (w *Window) Known() uint32 { return uint32(w.granted) }

// UnderWay returns how many records and bytes the peer has not released.
func (w *Window) UnderWay() (records, bytes int) { return int(w.next - w.granted), w.used }

// Sent returns how many records ever went.
func (w *Window) Sent() uint64 { return w.next }
