package credit

import (
	"errors"
	"fmt"
	"math"
)

// Errors of [ReceiveWindow.Release].
var (
	ErrNotReceived = errors.New("the message has not been received")
	ErrReleased    = errors.New("the message has been released already")
)

// SendWindow is the sender's half. It remembers the length of each message that the receiver has not released.
//
// Invariant: granted <= sent <= granted+len(lengths), and used is the sum of the lengths from granted to sent-1.
type SendWindow struct {
	lengths []uint32 // of the messages from granted to sent-1, at their slots
	bytes   int64    // limit of used
	sent    uint64
	granted uint64
	used    int64
}

// longest is the largest length of a message in bytes. Windows store lengths in 32 bits, because the windows of a server's idle connections
// would otherwise take twice the memory.
const longest = math.MaxUint32

// NewSendWindow returns the window of a sender to a receiver with room for that many messages and bytes. It panics if messages is
// less than 1, because no message could ever be sent.
func NewSendWindow(messages int, bytes int64) SendWindow {
	return SendWindow{lengths: make([]uint32, atLeastOne(messages)), bytes: bytes}
}

// Fits reports whether the receiver has room for a message of n bytes now. It returns false if n is larger than 4,294,967,295.
func (w *SendWindow) Fits(n int) bool {
	return w.sent-w.granted < uint64(len(w.lengths)) && int64(n) <= min(w.bytes-w.used, longest)
}

// Send counts a message of n bytes as sent and returns its number. It panics if the message does not fit.
func (w *SendWindow) Send(n int) uint64 {
	if !w.Fits(n) {
		panic(fmt.Sprintf("credit: a message of %d bytes is sent without credit", n))
	}
	seq := w.sent
	w.lengths[w.Slot(seq)] = uint32(n)
	w.sent++
	w.used += int64(n)
	return seq
}

// Grant counts the first total messages as released. A total below an earlier one is an old grant and changes nothing. A total
// above the number of messages that were sent is an error.
func (w *SendWindow) Grant(total uint64) error {
	if total > w.sent {
		return fmt.Errorf("a grant for %d messages, and %d have been sent", total, w.sent)
	}
	for ; w.granted < total; w.granted++ {
		w.used -= int64(w.lengths[w.Slot(w.granted)])
	}
	return nil
}

// Sent returns the number of messages that have been sent, which is the number of the next one.
func (w *SendWindow) Sent() uint64 { return w.sent }

// Granted returns the largest grant so far.
func (w *SendWindow) Granted() uint64 { return w.granted }

// Outstanding returns the number of messages that the receiver has not released, and their bytes.
func (w *SendWindow) Outstanding() (messages int, bytes int64) {
	return int(w.sent - w.granted), w.used
}

// Messages returns the limit of outstanding messages.
func (w *SendWindow) Messages() int { return len(w.lengths) }

// Bytes returns the limit of outstanding bytes.
func (w *SendWindow) Bytes() int64 { return w.bytes }

// Slot returns seq modulo the limit of messages. Outstanding messages have different slots.
func (w *SendWindow) Slot(seq uint64) int { return int(seq % uint64(len(w.lengths))) }

// ReceiveWindow is the receiver's half. It remembers the length of each message from the oldest unreleased one on.
//
// Invariant: released <= received <= released+len(messages), used is the sum of the lengths from released to received-1, and
// message released, if it has been received, has not been released.
type ReceiveWindow struct {
	messages []message // from released to received-1, at their slots
	bytes    int64     // limit of used
	received uint64
	released uint64
	used     int64
}

// message is one that has been received.
type message struct {
	length   uint32
	released bool
}

// NewReceiveWindow returns the window of a receiver with room for that many messages and bytes. It panics if messages is less
// than 1.
func NewReceiveWindow(messages int, bytes int64) ReceiveWindow {
	return ReceiveWindow{messages: make([]message, atLeastOne(messages)), bytes: bytes}
}

// Receive counts the message with number seq and n bytes as received. It is an error of the sender if seq is not the next number
// or if there is no room for the message.
func (w *ReceiveWindow) Receive(seq uint64, n int) error {
	switch {
	case seq != w.received:
		return fmt.Errorf("number %d is out of order: %d is next", seq, w.received)
	case w.received-w.released >= uint64(len(w.messages)):
		return fmt.Errorf("number %d has no credit: all %d slots are in use", seq, len(w.messages))
	case int64(n) > min(w.bytes-w.used, longest):
		return fmt.Errorf("number %d has %d bytes, and the receiver has room for %d", seq, n, w.bytes-w.used)
	}
	w.messages[w.Slot(seq)] = message{length: uint32(n)}
	w.received++
	w.used += int64(n)
	return nil
}

// Release counts message seq as released. Its room is free when all messages before it are released too. The error is
// [ErrNotReceived] or [ErrReleased], and is one of the program.
func (w *ReceiveWindow) Release(seq uint64) error {
	if seq >= w.received {
		return ErrNotReceived
	}
	if seq < w.released || w.messages[w.Slot(seq)].released {
		return ErrReleased
	}
	w.messages[w.Slot(seq)].released = true
	for ; w.released < w.received; w.released++ {
		m := w.messages[w.Slot(w.released)]
		if !m.released {
			break
		}
		w.used -= int64(m.length)
	}
	return nil
}

// Received returns the number of messages that have been received, which is the number of the next one.
func (w *ReceiveWindow) Received() uint64 { return w.received }

// Released returns how many messages, from the first one on, have been released: the grant for the sender.
func (w *ReceiveWindow) Released() uint64 { return w.released }

// Outstanding returns the number of messages from the oldest unreleased one on, and their bytes.
func (w *ReceiveWindow) Outstanding() (messages int, bytes int64) {
	return int(w.received - w.released), w.used
}

// Idle reports whether all messages that have been received are released.
func (w *ReceiveWindow) Idle() bool { return w.released == w.received }

// Messages returns the limit of outstanding messages.
func (w *ReceiveWindow) Messages() int { return len(w.messages) }

// Bytes returns the limit of outstanding bytes.
func (w *ReceiveWindow) Bytes() int64 { return w.bytes }

// Slot returns seq modulo the limit of messages. Outstanding messages have different slots.
func (w *ReceiveWindow) Slot(seq uint64) int { return int(seq % uint64(len(w.messages))) }

// Extend returns the number with those low 32 bits that is nearest to near. It returns 0 if that number is negative.
func Extend(near uint64, low uint32) uint64 {
	diff := int64(int32(low - uint32(near)))
	if diff < 0 && uint64(-diff) > near {
		return 0
	}
	return near + uint64(diff)
}

func atLeastOne(messages int) int {
	if messages < 1 {
		panic(fmt.Sprintf("credit: a window of %d messages; at least 1 is needed", messages))
	}
	return messages
}
