package sm

// Layout of a region as na_sm.c has it (struct na_sm_region), which is the same on all processors. Offsets and sizes in
// bytes; all words are little endian and aligned.
//
//	0x00000  process 4, id 1, padding 3
//	0x00008  64 spin locks of 4, one for each copy buffer
//	0x00108  64 copy buffers of 4096
//	0x40108  bitmap of the copy buffers: 1 is free
//	0x41000  256 queue pairs of 0x500: the client's sending ring, then the server's
//	0x91000  command ring
//	0x92080  bitmap of the queue pairs, 4 words: 1 is free
//	0x920C0  never touched by C; see extension.go
//	0x93000  end
const (
	offPID       = 0x00000
	offID        = 0x00004
	offLocks     = 0x00008
	offBuffers   = 0x00108
	offBufferMap = 0x40108
	offPairs     = 0x41000
	offCommands  = 0x91000
	offPairMap   = 0x92080
	offTail      = 0x920C0
	regionSize   = 0x93000

	lockSize   = 4
	bufferSize = 4096 // also the largest message
	buffers    = 64
	pairs      = 256
	pairSize   = 0x500
	pairRx     = 0x280 // where in a pair the server's ring is
	pairWords  = pairs / 64
)

// ownPair is the pair that every owner keeps to itself: for messages to itself, which go by its first ring.
const ownPair = 0

// Layout of a ring (struct hg_atomic_queue). Positions are indices into the slots, so they are less than size.
//
//	0x00  producers' head 4, tail 4, size 4, mask 4, count of drops 8
//	0x40  consumers' head 4, tail 4, size 4, mask 4
//	0x80  slots of 8
const (
	offProdHead = 0x00
	offProdTail = 0x04
	offProdSize = 0x08
	offProdMask = 0x0C
	offConsHead = 0x40
	offConsTail = 0x44
	offConsSize = 0x48
	offConsMask = 0x4C
	offSlots    = 0x80
	slotSize    = 8

	ringSlots    = 64
	commandSlots = 512
)

// Types of messages: values of na_cb_type. Mercury 2.1 and 2.2 have 2 for the second.
const (
	typeUnexpected  = 0
	typeExpectedOld = 2
	typeExpected    = 3
	typeRebuilt     = 0xFE // of this package: the region was made anew, and its messages are lost
	typeEvicted     = 0xFD // of this package: the server has ended the connection, which was idle, to make room
	typeRefused     = 0xFC // of this package: the server has no connection left for the client's process
)

// descriptor stands in a slot of a ring for a message:
//
//	bits 0-31 tag, 32-47 length, 48-55 copy buffer, 56-63 type
//
// A message without bytes has no buffer.
type descriptor uint64

func makeDescriptor(tag uint32, n, buffer int, kind uint8) descriptor {
	return descriptor(uint64(tag) | uint64(uint16(n))<<32 | uint64(uint8(buffer))<<48 | uint64(kind)<<56)
}

func (d descriptor) tag() uint32 { return uint32(d) }
func (d descriptor) len() int    { return int(uint16(d >> 32)) }
func (d descriptor) buffer() int { return int(uint8(d >> 48)) }
func (d descriptor) kind() uint8 { return uint8(d >> 56) }

// buffered reports whether d can be the descriptor of a message in a copy buffer.
func (d descriptor) buffered() bool {
	return d.len() > 0 && d.len() <= bufferSize && d.buffer() < buffers && (d.kind() == typeUnexpected || d.kind() == typeExpected)
}

// Kinds of commands.
const (
	commandReserved = 1 // NA_SM_RESERVED: the client has claimed a pair
	commandReleased = 2 // NA_SM_RELEASED: the client will not use the pair any more
)

// command is a message of a client to a server, by a datagram or in the command ring:
//
//	bits 0-31 process, 32-39 id, 40-47 pair, 48-55 kind, 56-63 zero
//
// The last byte, which C's servers ignore, is the version of the extension that the client uses.
type command uint64

// commandSize is the length of a datagram.
const commandSize = 8

func makeCommand(ident identity, pair int, kind, extension uint8) command {
	return command(uint64(uint32(ident.pid)) | uint64(ident.id)<<32 | uint64(uint8(pair))<<40 | uint64(kind)<<48 | uint64(extension)<<56)
}

func (c command) ident() identity  { return identity{int32(uint32(c)), uint8(c >> 32)} }
func (c command) pair() int        { return int(uint8(c >> 40)) }
func (c command) kind() uint8      { return uint8(c >> 48) }
func (c command) extension() uint8 { return uint8(c >> 56) }
