package xfer

import "fmt"

// Op is the operation of a [Step].
type Op uint8

// The operations that are traced. Steps are traced in the order in which this side does them
// or finds their completions.
const (
	OpPostReceive Op = 1 + iota // a receive was posted: Slot
	OpConnect                   // the connection is there
	OpReceive                   // a message or immediate data has come: Message or Bytes
	OpSend                      // a message was posted: Message
	OpWrite                     // a write was posted: Slot, Bytes
	OpSent                      // a write is complete at this side: Slot
	OpRead                      // the source was read: Slot, Bytes; traced by the basic protocol when the chunk's turn to be written has come
	OpOpen                      // the file was made: Message has its name
	OpStore                     // the file was written: Slot, Bytes
	OpHash                      // a buffer was added to the digest: Slot, Bytes
	OpCommit                    // the file has its name
	OpFinish                    // the transfer is over
)

var opNames = [...]string{OpPostReceive: "post receive", OpConnect: "connect", OpReceive: "receive", OpSend: "send", OpWrite: "write",
	OpSent: "sent", OpRead: "read", OpOpen: "open", OpStore: "store", OpHash: "hash",
	OpCommit: "commit", OpFinish: "finish"}

// String names the operation.
func (o Op) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return "unknown"
}

// Step is one thing that a side of a transfer did.
type Step struct {
	Op      Op
	Slot    int    // number of the buffer or receive, -1: none; the basic protocol has one buffer
	Bytes   int    // of data, or of the immediate data's number
	Entries int    // OpPostReceive: scatter entries
	Message string // kind of message; "immediate" for immediate data
}

// String prints a step in one line.
func (s Step) String() string {
	out := s.Op.String()
	if s.Message != "" {
		out += " " + s.Message
	}
	if s.Op == OpPostReceive {
		return fmt.Sprintf("%s, %d entries", out, s.Entries)
	}
	if s.Bytes > 0 || s.Op == OpWrite || s.Message == "immediate" {
		out += fmt.Sprintf(" %d", s.Bytes)
	}
	if s.Slot > 0 {
		out += fmt.Sprintf(" buffer %d", s.Slot)
	}
	return out
}

// Tracer is called for each step of a transfer, in order, by one goroutine at a time. It
// must not block.
type Tracer func(Step)
