package fault

import (
	"fmt"

	"cinnabar/verbs"
)

// Below the layer a work request has an id of the layer's own, so that a
// completion leads back to the program's request, even if the program's ids repeat:
//
//	 63  62 61                40 39                                  0
//	+------+--------------------+-------------------------------------+
//	| kind | object, from 0     | number of the request at the object |
//	+------+--------------------+-------------------------------------+
type tag uint64

type kind uint8

const (
	kindSend  kind = iota
	kindAgain      // the second time of a duplicated send; its completion is swallowed
	kindRecv
	kindShared
)

const (
	seqBits    = 40
	objectBits = 22
)

func makeTag(k kind, object int, seq uint64) uint64 {
	return uint64(k)<<(seqBits+objectBits) | uint64(object)<<seqBits | seq
}

func (t tag) kind() kind  { return kind(t >> (seqBits + objectBits)) }
func (t tag) object() int { return int(t >> seqBits & (1<<objectBits - 1)) }
func (t tag) seq() uint64 { return uint64(t) & (1<<seqBits - 1) }

// entry is the layer's record of an outstanding request.
type entry struct {
	id     uint64 // the program's
	op     verbs.Opcode
	silent bool   // makes no completion when it succeeds
	do     Action // applied to its completion, nil: pass it on
}

// ledger holds the outstanding requests of one queue.
type ledger struct {
	next    uint64 // number of the next request
	oldest  uint64 // no entry is older
	entries map[uint64]entry
}

// add enters a request and returns its number.
func (l *ledger) add(e entry) uint64 {
	if l.entries == nil {
		l.entries = make(map[uint64]entry)
	}
	seq := l.next
	l.next = (l.next + 1) & (1<<seqBits - 1)
	l.entries[seq] = e
	return seq
}

// cancel takes back the latest add.
func (l *ledger) cancel(seq uint64) {
	delete(l.entries, seq)
	l.next = seq
}

// take removes a request from a queue in which they may end in any order.
func (l *ledger) take(seq uint64) entry {
	e, ok := l.entries[seq]
	if !ok {
		panic(fmt.Sprintf("fault: completion of request %d, which is not outstanding", seq))
	}
	delete(l.entries, seq)
	return e
}

// takeOrdered removes a request from a queue that completes in order, with the
// silent ones before it.
func (l *ledger) takeOrdered(seq uint64) entry {
	e := l.take(seq)
	for ; l.oldest != seq; l.oldest = (l.oldest + 1) & (1<<seqBits - 1) {
		delete(l.entries, l.oldest)
	}
	return e
}
