package flow

import (
	"errors"
	"fmt"

	"cinnabar/internal/credit"
	"cinnabar/regmem"
	"cinnabar/regmem/ring"
)

// sendWindow is the sender's half of flow control: which records may be sent, and where in the peer's ring they lie. It is plain
// state without I/O and not safe for concurrent use.
//
// It also keeps the sender's requests for a grant. There are two kinds, and each is outstanding at most once: "soon" is a flag of
// a record, and "now" is a control message.
type sendWindow struct {
	credit    credit.SendWindow
	layout    ring.Layout
	inline    int         // longest record that does not lie in the ring
	places    []ringPlace // of the outstanding records, at their slots
	askedSoon bool
	askedNow  bool
}

// ringPlace is the number of a record's block in the layout plus 1, or 0 if the record does not lie in the ring.
type ringPlace uint64

// placement is the number of a record that may be sent, and where it lies.
type placement struct {
	seq     uint64
	inRing  bool
	offset  int  // in the peer's ring, if inRing
	askSoon bool // the record requests a grant
}

// newSendWindow returns the window of a sender to a peer that has room for that many records and bytes. Records of more than inline
// bytes lie in the peer's ring, which has that many bytes, too.
func newSendWindow(records, bytes, inline int) *sendWindow {
	return &sendWindow{credit: credit.NewSendWindow(records, int64(bytes)), layout: ring.NewLayout(bytes), inline: inline, places: make([]ringPlace, records)}
}

// longest returns the length of the longest record that the peer can ever receive.
func (w *sendWindow) longest() int {
	return max(w.layout.Size(), min(w.inline, int(w.credit.Bytes())))
}

// fits reports whether the peer has room for a record of n bytes now.
func (w *sendWindow) fits(n int) bool {
	return w.credit.Fits(n) && (n <= w.inline || w.layout.Fits(n))
}

// send counts a record of n bytes as sent and returns its place. The record must fit.
func (w *sendWindow) send(n int) placement {
	p := placement{seq: w.credit.Send(n), inRing: n > w.inline}
	var place ringPlace
	if p.inRing {
		offset, block := w.layout.Place(n)
		p.offset, place = offset, ringPlace(block+1)
	}
	w.places[w.credit.Slot(p.seq)] = place
	if !w.askedSoon && w.halfUsed() {
		w.askedSoon, p.askSoon = true, true
	}
	return p
}

// halfUsed reports whether more than half of the records, of the bytes, or of the ring is in use.
func (w *sendWindow) halfUsed() bool {
	records, bytes := w.credit.Outstanding()
	return records > w.credit.Messages()/2 || bytes > w.credit.Bytes()/2 || w.layout.Used() > w.layout.Size()/2
}

// askNow reports whether the sender should request a grant for a record that waits. It returns false if the peer has nothing to
// grant, or has not answered the last such request.
func (w *sendWindow) askNow() bool {
	records, _ := w.credit.Outstanding()
	ask := !w.askedNow && records > 0
	w.askedNow = w.askedNow || ask
	return ask
}

// grant frees the room of the records that the peer has released: total of all, modulo 2^32. The error is one of the peer.
func (w *sendWindow) grant(total uint32) error {
	before := w.credit.Granted()
	if err := w.credit.Grant(credit.Extend(before, total)); err != nil {
		return err
	}
	for seq := before; seq < w.credit.Granted(); seq++ {
		if p := w.places[w.credit.Slot(seq)]; p != 0 {
			if err := w.layout.Free(uint64(p - 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// answered ends the requests that the peer answers. An answer without a request is an error of the peer.
func (w *sendWindow) answered(soon, now bool) error {
	if soon && !w.askedSoon || now && !w.askedNow {
		return fmt.Errorf("the peer answers a request that was not sent (soon %v, now %v)", soon, now)
	}
	w.askedSoon = w.askedSoon && !soon
	w.askedNow = w.askedNow && !now
	return nil
}

// recvWindow is the receiver's half of flow control: which records have been received and which released, and which requests of
// the sender have no answer yet. It is plain state without I/O and not safe for concurrent use.
type recvWindow struct {
	credit credit.ReceiveWindow
	freed  int64 // bytes of all records that credit counts as released

	soon      bool   // the sender has sent the request, and it has no answer
	soonKnown uint32 // grants that the sender knew of when it sent the request, modulo 2^32
	soonFreed int64  // freed when the request was received
	now       bool
	nowKnown  uint32
}

// newRecvWindow returns the window of a receiver with room for that many records and bytes.
func newRecvWindow(records, bytes int) *recvWindow {
	return &recvWindow{credit: credit.NewReceiveWindow(records, int64(bytes))}
}

// receive counts a record of n bytes as received. wire is the number that it carries, modulo 2^32. receive returns the whole
// number; the error is one of the peer.
func (w *recvWindow) receive(wire uint32, n int) (uint64, error) {
	seq := w.credit.Received()
	if wire != uint32(seq) {
		return 0, fmt.Errorf("record: number %d is out of order: %d is next", wire, uint32(seq))
	}
	if err := w.credit.Receive(seq, n); err != nil {
		return 0, fmt.Errorf("record: %w", err)
	}
	return seq, nil
}

// release counts a record as released. The error is one of the program.
func (w *recvWindow) release(seq uint64) error {
	_, before := w.credit.Outstanding()
	err := w.credit.Release(seq)
	_, after := w.credit.Outstanding()
	w.freed += before - after
	switch {
	case errors.Is(err, credit.ErrNotReceived):
		return regmem.ErrForeign
	case errors.Is(err, credit.ErrReleased):
		return regmem.ErrDoubleFree
	}
	return err
}

// request notes the sender's requests for a grant, and the grants that the sender knew of. A request that has no answer yet must
// not be repeated: that is an error of the peer.
func (w *recvWindow) request(soon, now bool, known uint32) error {
	if soon && w.soon || now && w.now {
		return fmt.Errorf("the peer repeats a request before the answer (soon %v, now %v)", soon, now)
	}
	if soon {
		w.soon, w.soonKnown, w.soonFreed = true, known, w.freed
	}
	if now {
		w.now, w.nowKnown = true, known
	}
	return nil
}

// due returns the requests that are to be answered now, and counts them as answered: the next message carries the answers.
//
// A "now" is due when the sender does not know of the newest grant. A "soon" is due when, moreover, the grant frees half of the
// records or bytes, or all.
func (w *recvWindow) due() (soon, now bool) {
	total := w.granted()
	if w.now && total != w.nowKnown {
		w.now, now = false, true
	}
	news := total - w.soonKnown
	if w.soon && news > 0 &&
		(w.credit.Idle() || int(news) >= w.credit.Messages()/2 || w.freed-w.soonFreed >= w.credit.Bytes()/2) {
		w.soon, soon = false, true
	}
	return soon, now
}

// granted returns the grant for the sender: the number of records that have been released, modulo 2^32.
func (w *recvWindow) granted() uint32 { return uint32(w.credit.Released()) }
