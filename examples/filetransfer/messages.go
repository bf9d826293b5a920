// Package filetransfer has the common parts of the two programs of Bedeir's paper on flow
// control: the server's messages and the names and sizes that both know,
// as messages.h does in the C sources. The programs are in the folders client
// and server; docs/filetransfer.md walks through them.
package filetransfer

import (
	"encoding/binary"
	"net"
	"time"

	"cinnabar/verbs"
)

const (
	// DefaultPort is the port of the paper's programs.
	DefaultPort = "12345"
	// BufferSize is the size in bytes of the server's buffer, and so of a chunk.
	BufferSize = 10 << 20
	// IdleLimit bounds the time that a peer may take over one chunk.
	IdleLimit = time.Minute
	// MaxNameLen is how many bytes a file name may have, without its NUL.
	MaxNameLen = 255
)

// MessageID is the kind of a message from the server to the client.
type MessageID uint32

const (
	// MsgMR has the address and the key of the memory to write to (MSG_MR).
	MsgMR MessageID = iota + 1
	// MsgReady asks for the next chunk (MSG_READY).
	MsgReady
	// MsgDone says that all has arrived (MSG_DONE).
	MsgDone
)

// Message is struct message of the C program. It crosses the network as it lies
// in memory there, padding included:
//
//	 0        4        8                 16       20       24
//	┌────────┬────────┬─────────────────┬────────┬────────┐
//	│ id     │ unused │ address         │ rkey   │ unused │
//	└────────┴────────┴─────────────────┴────────┴────────┘
//
// Its byte order is the sender's in C. Here it is little-endian, the order of
// all machines that the C program is likely to run on.
type Message struct {
	ID     MessageID
	Buffer verbs.RemoteAddr // the server's buffer; meant for MsgMR, sent in all
}

// MessageLen is the size of a message in bytes.
const MessageLen = 24

// Offsets of the fields.
const (
	idOff   = 0
	addrOff = 8
	rkeyOff = 16
)

// AppendMessage appends the bytes of m to b.
func AppendMessage(b []byte, m Message) []byte {
	var msg [MessageLen]byte
	binary.LittleEndian.PutUint32(msg[idOff:], uint32(m.ID))
	binary.LittleEndian.PutUint64(msg[addrOff:], m.Buffer.Addr)
	binary.LittleEndian.PutUint32(msg[rkeyOff:], m.Buffer.RKey)
	return append(b, msg[:]...)
}

// ParseMessage reads a message. It is false unless b is exactly one, of a known
// kind. The padding is ignored, because C programs do not clear it.
func ParseMessage(b []byte) (Message, bool) {
	if len(b) != MessageLen {
		return Message{}, false
	}
	m := Message{
		ID:     MessageID(binary.LittleEndian.Uint32(b[idOff:])),
		Buffer: verbs.RemoteAddr{Addr: binary.LittleEndian.Uint64(b[addrOff:]), RKey: binary.LittleEndian.Uint32(b[rkeyOff:])},
	}
	return m, m.ID >= MsgMR && m.ID <= MsgDone
}

// HostPort adds the default port to a server's address that has none.
func HostPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(server, DefaultPort)
}
