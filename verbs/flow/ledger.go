package flow

import (
	"fmt"

	"cinnabar/regmem"
)

// Ledger is the receiver's half of flow control: which records are here, which have been released, and what the sender
// wants to be told. It is a plain state without I/O and not safe for concurrent use.
type Ledger struct {
	records  int // limit of records here
	bytes    int // limit of bytes here
	here     []arrival
	arrived  uint64
	released uint64 // records released in order
	used     int    // bytes here, of records from released on

	freed int64 // bytes of records released in order, in all

	soon      bool // questions, and what the asker knew
	soonKnown uint32
	soonFreed int64 // freed when it was asked
	now       bool
	nowKnown  uint32
}

// arrival is a record that is here.
type arrival struct {
	length   int
	released bool
}

// NewLedger returns the ledger of a receiver with room for that many records and bytes.
func NewLedger(records, bytes int) *Ledger {
	return &Ledger{records: records, bytes: bytes, here: make([]arrival, records)}
}

// Arrive takes a record of n bytes with the number that it carries, modulo 2^32. The error names what the sender did wrong.
func (l *Ledger) Arrive(seq uint32, n int) (uint64, error) {
	switch {
	case seq != uint32(l.arrived):
		return 0, fmt.Errorf("record %d comes where %d is next", seq, uint32(l.arrived))
	case l.arrived-l.released >= uint64(l.records):
		return 0, fmt.Errorf("record %d comes without a grant: %d are here", seq, l.records)
	case n > l.bytes-l.used:
		return 0, fmt.Errorf("record %d has %d bytes, there is room for %d", seq, n, l.bytes-l.used)
	}
	at := l.arrived
	*l.at(at) = arrival{length: n}
	l.used += n
	l.arrived++
	return at, nil
}

func (l *Ledger) at(seq uint64) *arrival { return &l.here[seq%uint64(len(l.here))] }

// Release says that record seq is done with. The room comes back in the order of the records.
func (l *Ledger) Release(seq uint64) error {
	if seq >= l.arrived {
		return regmem.ErrForeign
	}
	if seq < l.released || l.at(seq).released {
		return regmem.ErrDoubleFree
	}
	l.at(seq).released = true
	for ; l.released != l.arrived && l.at(l.released).released; l.released++ {
		l.used -= l.at(l.released).length
		l.freed += int64(l.at(l.released).length)
	}
	return nil
}

// Ask takes the sender's questions, with the grants that it knew of. The error names one that it asks again.
func (l *Ledger) Ask(soon, now bool, known uint32) error {
	if soon && l.soon || now && l.now {
		return fmt.Errorf("the peer asks again before it is answered (soon %v, now %v)", soon, now)
	}
	if soon {
		l.soon, l.soonKnown, l.soonFreed = true, known, l.freed
	}
	if now {
		l.now, l.nowKnown = true, known
	}
	return nil
}

// Due tells which questions are to be answered now, and takes them as answered: the next message carries the answers.
func (l *Ledger) Due() (soon, now bool) {
	total := uint32(l.released)
	if l.now && total != l.nowKnown {
		l.now, now = false, true
	}
	news := total - l.soonKnown
	if l.soon && news > 0 && (l.released == l.arrived || int(news) >= l.records/2 || l.freed-l.soonFreed >= int64(l.bytes/2)) {
		l.soon, soon = false, true
	}
	return soon, now
}

// Granted returns what to tell the sender: how many records have been released in all, modulo 2^32.
func (l *Ledger) Granted() uint32 { return uint32(l.released) }

// Here returns how many records and bytes are here and not released in order.
func (l *Ledger) Here() (records, bytes int) { return int(l.arrived - l.released), l.used }
