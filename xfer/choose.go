package xfer

import (
	"crypto/sha256"
	"hash"
	"io"
)

// Wishes are the requests of a sender to a receiver that chooses.
type Wishes uint32

// The wishes. Their numbers are part of the wire format.
const (
	WishUpdate   Wishes = 1 << iota // the receiver keeps files of which size and time are those of the sender
	WishChecksum                    // the receiver keeps files of which size and contents are those of the sender
	WishDelete                      // the receiver removes entries that the sender does not have
	WishDryRun                      // the receiver lists the entries that it would remove, and stores nothing
)

// Choice lets a receiver choose the parts of a [Source] that cross. Then a transfer that was cut goes on where it stopped, if the receiver
// has kept the received part, and a receiver need not take bytes that it has already. All bytes cross if the receiver does not have this part of the fast protocol.
type Choice struct {
	// Head is the number of bytes at the beginning of the source that cross in any case and before the others, because the receiver chooses by
	// them. It is at most Source.Size.
	Head   int64
	Wishes Wishes
	// SumData is read instead of Source.Data for the sums of ranges that the receiver has, by the same goroutine; nil: Source.Data. It has the same bytes.
	SumData io.ReaderAt
	// Must makes Send fail with [CodeUnsupported] if the receiver cannot choose.
	Must bool
	// Remove is called for each entry that the receiver will remove at the end of the transfer, and reports whether it may. The path has slashes, and is
	// below the name of the source. A directory comes before its contents. Remove must not block. nil: everything may be removed. The
	// names in the path have no separator and no NUL, and are otherwise unchecked input of the peer.
	Remove func(path string, directory bool) bool
}

// Offer describes a source from which a receiver chooses.
type Offer struct {
	Head   int64 // bytes that cross in any case
	Size   int64 // bytes of the source, with the head
	Wishes Wishes
	// NewHash returns the hash function of sums: that of the transfer's digest, SHA-256 if it has none.
	NewHash func() hash.Hash
}

// Range is a range of a source that a receiver needs.
type Range struct {
	Offset, Length int64
	// Sum asks for the sum of the range instead of its data. Length is then at most [MaxSumRange].
	Sum bool
}

// MaxSumRange is the largest length of the range of one sum, in bytes. It bounds the time for which a sender that hashes is silent.
const MaxSumRange = 64 << 20

// Removal is an entry in the list of removals of a receiver, which has a directory before its contents.
type Removal struct {
	Name  string // the last element of its path, at most 255 bytes
	Depth int    // directories between the source's name and the entry; at most 1024
	Dir   bool
	Stays bool // a directory that stays, and is in the list because of entries below it
}

// Wanted is a part of the needs of a receiver.
type Wanted struct {
	Removals []Removal // more of the list of removals
	// Ranges are further ranges behind the head. Those for data ascend, in all calls together, and do not overlap; so do those for sums.
	Ranges []Range
	Last   bool // there are no more
}

// Chooser is a [File] that chooses the ranges that cross, if the sender lets it. If so, the calls are:
//
//	Choose                     once, first
//	WriteAt                    the head
//	Want, WriteAt, Sum, Spare  in turn, until Want has said that there is no more, and all has come
//	Commit or Discard
//
// WriteAt gets the offsets of the source. A File that is no Chooser gets all bytes, and so does a Chooser of which Choose is not called.
type Chooser interface {
	File
	// Choose takes the offer. An error refuses the transfer.
	Choose(Offer) error
	// Want returns further ranges. A result without removals and ranges is in order only while data or sums are under way: Want is called again after they have come.
	Want() (Wanted, error)
	// Sum takes the sum of a range at the sender.
	Sum(r Range, sum [SumLen]byte) error
	// Spare takes the number of a removal that the sender does not want, counted from 0 over all that Want has returned.
	Spare(n int)
}

// Worker is a [File] that may work for longer than the timeout of a transfer in one call. A sender waits as long as it goes on; a server of files waits for a limited time.
type Worker interface {
	// Steps returns a number that grows with the work. It is called while another goroutine calls the other methods.
	Steps() uint64
}

// sumHash returns the constructor of the hash function of sums.
func (h Hashes) sumHash(d Digest) func() hash.Hash {
	if f := h.find(d); f != nil {
		return f
	}
	return sha256.New
}

// crossing returns the number of bytes by which a request is answered.
func (r *Range) crossing() int64 {
	if r.Sum {
		return SumLen
	}
	return r.Length
}

// everything is the choice for files that are no Choosers.
type everything struct {
	File
	offer Offer
}

func (e *everything) Choose(o Offer) error {
	e.offer = o
	if o.Wishes&(WishDelete|WishDryRun) != 0 {
		return failf(CodeUnsupported, "this receiver removes nothing for senders")
	}
	return nil
}

func (e *everything) Want() (Wanted, error) {
	w := Wanted{Last: true}
	if n := e.offer.Size - e.offer.Head; n > 0 {
		w.Ranges = []Range{{Offset: e.offer.Head, Length: n}}
	}
	return w, nil
}

func (e *everything) Sum(Range, [SumLen]byte) error { return nil }

func (e *everything) Spare(int) {}
