//go:build linux

package rdmacore

// A token stands in the place of the program's work request id, because a
// completion alone does not say enough: a failed one has no operation, so that it
// could be a send or a receive; and the requests before it that made no
// completion are done too. Its parts are the kind of queue (2 bits), the serial
// number of the queue (29 bits) and the position in it (32 bits).

// The kinds of queue that a token can name.
const (
	kindSend   = uint64(0)
	kindRecv   = uint64(1)
	kindShared = uint64(2)
	kindMarker = uint64(3) // our own request at the end of a send queue, see qp.drain
)

const (
	serialMask  = 1<<29 - 1
	serialShift = 32
	kindShift   = 62
)

func makeToken(kind, serial uint64, pos uint32) uint64 {
	return kind<<kindShift | serial<<serialShift | uint64(pos)
}

func splitToken(t uint64) (kind, serial uint64, pos uint32) {
	return t >> kindShift, t >> serialShift & serialMask, uint32(t)
}
