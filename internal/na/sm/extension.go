package sm

import (
	"encoding/binary"
	"sync/atomic"

	"cinnabar/internal/shm"
)

// The extension changes how endpoints of this package exchange messages with each other, in ways that C does not notice. A server
// offers it in the part of its region that C never touches, and a client requests it in the last byte of its command.
//
//	0x920C0  magic     8  "cinnabar"
//	0x920C8  version   4  1
//	0x920CC  closing   4  1: the owner takes no new clients, 2: nor messages
//	0x920D0  started   8  the start time of the owner's process in /proc/PID/stat
//	0x920D8  rebuilt   4  the number of times that the owner has made the region anew after it was cut off
//	0x920DC  zero      4
//	0x920E0  beside    8  the hash of the owner's address in the network beside shared memory, 0: there is none
//
// Behind the region of C's layout follows one block for each pair:
//
//	0x0000  1: the server sleeps and wants its doorbell rung       4
//	0x0040  1: the client sleeps and wants its doorbell rung       4
//	0x0080  copy buffers that the client is about to claim or fill 8
//	0x0088  the client that has claimed the pair: its process       4
//	0x008C  and the number of its endpoint, + 1; 0: not known       4
//	0x0100  64 slots of 256 for short messages to the server
//	0x4100  64 slots of 256 for short messages to the client
//
// A message of at most 256 bytes lies in the slot with the number of its descriptor's slot, and the descriptor then has inlineBuffer
// in the place of a copy buffer's number. A side that is awake clears its word; a sender rings only after it has changed the word from
// 1 to 0.
const (
	offMagic   = offTail
	offVersion = offTail + 8
	offClosing = offTail + 12
	offStarted = offTail + 16
	offRebuilt = offTail + 24
	offBeside  = offTail + 32

	extensionVersion = 1

	blockSize   = 0x9000
	blockServer = 0x0000
	blockClient = 0x0040
	blockHolds  = 0x0080
	blockOwner  = 0x0088
	blockTx     = 0x0100
	blockRx     = 0x4100

	inlineSize   = 256
	inlineBuffer = 0xFF
	inlineRing   = ringSlots * inlineSize

	extendedSize = regionSize + pairs*blockSize
)

var magic = binary.LittleEndian.Uint64([]byte("cinnabar"))

// block is the part of the extension for one pair, from the view of one of its ends.
type block struct {
	sleep  *atomic.Uint32 // this end sleeps
	asleep *atomic.Uint32 // the other end sleeps
	holds  *atomic.Uint64 // the copy buffer that the client is about to claim or fill
	out    []byte         // slots of messages to the other end
	in     []byte         // slots of messages from it
}

func newBlock(b []byte, pair int, server bool) *block {
	b = b[regionSize+pair*blockSize:][:blockSize]
	k := &block{
		sleep: shm.Uint32(b, blockClient), asleep: shm.Uint32(b, blockServer), holds: shm.Uint64(b, blockHolds),
		out: b[blockTx:][:inlineRing], in: b[blockRx:][:inlineRing],
	}
	if server {
		k.sleep, k.asleep, k.out, k.in = k.asleep, k.sleep, k.in, k.out
	}
	return k
}

// claimant returns the word of a pair to which the client that has claimed the pair writes its identity. The server needs it to
// refuse another process's command for the same pair, because the client's own command may arrive much later: the server's socket
// holds only a few. Clients in C leave the word 0.
func (r *region) claimant(pair int) *atomic.Uint64 {
	return shm.Uint64(r.b, regionSize+pair*blockSize+blockOwner)
}

// asClaimant encodes an identity for the word of claimant.
func asClaimant(ident identity) uint64 { return uint64(uint32(ident.pid)) | (uint64(ident.id)+1)<<32 }

// slot returns the bytes of slot i of the slots in b.
func slot(b []byte, i int) []byte { return b[i*inlineSize:][:inlineSize:inlineSize] }
