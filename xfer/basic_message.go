package xfer

import (
	"encoding/binary"

	"cinnabar/verbs"
)

// The messages of the basic protocol, as the paper's C program lays out its
// struct message on a 64-bit machine. Numbers have the byte order of the
// machine that sends them. This package sends and expects little-endian numbers, because the
// program runs on little-endian machines. The C program does not
// initialise padding, so it is ignored here, and sent as zeros.
//
//	 0  id, int32: 1 MR, 2 READY, 3 DONE
//	 4  padding
//	 8  address of the server's buffer, uint64
//	16  its rkey, uint32
//	20  padding
//
// READY and DONE carry the last address and key too, and mean nothing by it.
//
// Between two programs of this package there is a fourth, which the paper's
// never sees: id 4, with an error message in the place of all that follows the padding.
const (
	basicLen = 24

	basicMR     = 1
	basicReady  = 2
	basicDone   = 3
	basicFailed = 4
)

// basicMessage is a message of the basic protocol.
type basicMessage struct {
	id     int32
	remote verbs.RemoteAddr
	why    errorMessage // of basicFailed
}

// appendBasic appends the encoding of m to b.
func appendBasic(b []byte, m basicMessage) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.id))
	b = append(b, 0, 0, 0, 0)
	if m.id == basicFailed {
		start := len(b)
		b = appendErrorMessage(b, m.why, maxErrorMessage)
		for len(b)-start < basicLen-8 { // never shorter than the others
			b = append(b, 0)
		}
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, m.remote.Addr)
	b = binary.LittleEndian.AppendUint32(b, m.remote.RKey)
	return append(b, 0, 0, 0, 0)
}

// parseBasic reads a message and its length, which is negative if it is
// malformed.
func parseBasic(b []byte) (m basicMessage, n int) {
	if len(b) < basicLen {
		return m, -1
	}
	m.id = int32(binary.LittleEndian.Uint32(b))
	switch m.id {
	case basicMR, basicReady, basicDone:
		m.remote = verbs.RemoteAddr{Addr: binary.LittleEndian.Uint64(b[8:]), RKey: binary.LittleEndian.Uint32(b[16:])}
		return m, basicLen
	case basicFailed:
		if m.why, n = parseErrorMessage(b[8:]); n < 0 {
			return m, -1
		}
		return m, max(8+n, basicLen)
	}
	return m, -1
}

// basicName returns the name of a message in traces.
func basicName(id int32) string {
	switch id {
	case basicMR:
		return "MR"
	case basicReady:
		return "READY"
	case basicDone:
		return "DONE"
	}
	return "FAILED"
}

// The size of a chunk in the form for devices without immediate data: the
// SEND behind the WRITE carries the size in place of the immediate data, in the same
// network byte order.
const sizeLen = 4

// sizeAbort in the place of a chunk's size means that the sender gives up; the
// error message stands at the beginning of the buffer. Only programs of this package
// send and understand it. No buffer is that large.
const sizeAbort = 1<<32 - 1
