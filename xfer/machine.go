package xfer

import "cinnabar/verbs"

// A machine is one side of one protocol. Its input are events, its output are actions. It does
// no input or output, has no clock and starts no goroutine: a [session] delivers the events and
// carries out the actions in order.
//
// step processes an event and appends the actions to acts. Slices in actions are valid until the next step.
// After actFinish a machine gets no event. Before, it gets evEnded or evStopped at least once, if the connection
// is over or this side gives up. It need not finish then if it waits for an event of the disk, which is sure to come.
type machine interface {
	step(ev event, acts []action) []action
	// awaits names the next event that the machine expects, in words that follow "waiting for".
	awaits() string
}

// eventKind is the kind of an event.
type eventKind uint8

const (
	evConnected eventKind = 1 + iota // the connection is there
	evReceived                       // a message or immediate data has come: slot, data, n, hasImm, imm; err instead of these: neither
	evSent                           // the write from a buffer is done here: slot
	evRead                           // the source was read: slot, n, crc, end, err
	evStored                         // the file was written: slot, err
	evHashed                         // the digest has taken in a buffer: slot
	evSummed                         // the digest is complete: sum
	evOpened                         // the file was made: err
	evCommitted                      // the file has its name: err
	evWanted                         // the file has made requests: want, err
	evSpared                         // the file knows about removals that may not happen
	evWorking                        // the file works
	evEnded                          // the connection is over: err
	evStopped                        // this side gives up: err
)

// event is something that happened. Only the fields that its kind names are set.
type event struct {
	kind   eventKind
	slot   int    // of a data buffer; of evReceived, of the receive
	n      int    // bytes
	data   []byte // evReceived: the message, valid during the step
	hasImm bool
	imm    uint32
	crc    uint32 // CRC32C of the buffer
	end    bool   // evRead: it was the last of a stream
	sum    [SumLen]byte
	want   Wanted
	err    error
}

// saysWork reports whether the event is a NOTE without a tail, which says that the peer's file is at work.
func (ev *event) saysWork() bool {
	if ev.kind != evReceived || ev.err != nil {
		return false
	}
	m, n := parseFast(ev.data)
	return n > 0 && m.kind == fastNote && len(m.tail) == 0
}

// actionKind is the kind of an action.
type actionKind uint8

const (
	actReceive actionKind = 1 + iota // post the receive again: slot
	actSend                          // send a message: msg; slot, if it announces a write, else none
	actWrite                         // write a buffer to remote: slot, n, imm if hasImm; msg is copied there before
	actRead                          // read the source into a buffer: slot, offset, n; or instead of offset, parts
	actHash                          // add a buffer to the digest: slot, n
	actSum                           // finish the digest
	actOpen                          // make the file: msg, its name; if it chooses, offset, the length of the head, and crc, the wishes
	actStore                         // write a buffer to the file: slot, offset, n, crc if checked
	actCommit                        // give the file its name
	actWant                          // ask the file for requests
	actSpare                         // let the file know which removals may not happen: offset, the first one; crc, bits
	actKeep                          // report to the observer that the receiver has offset bytes already; checked: 0, and no sums crossed
	actAdvance                       // report n stored bytes to the observer
	actFinish                        // the end: err
)

// none is the slot of a message that announces no write.
const none = -1

// action is something to be done. Only the fields that its kind names are set.
type action struct {
	kind    actionKind
	slot    int
	n       int
	offset  int64
	msg     []byte
	label   string // name of the message in traces
	remote  verbs.RemoteAddr
	hasImm  bool
	imm     uint32
	crc     uint32
	checked bool
	parts   []Range
	err     error
}

// finish is the action that ends a machine.
func finish(err error) action { return action{kind: actFinish, err: err} }

// maxMessage is the size of a control buffer, no less than any message.
const maxMessage = 512

// outbox holds the messages of one step.
type outbox struct{ buf []byte }

// reset makes room for the next step.
func (o *outbox) reset() { o.buf = o.buf[:0] }

// room returns the buffer to append the next message to. Earlier messages of this step do
// not move.
func (o *outbox) room() []byte {
	if cap(o.buf)-len(o.buf) < maxMessage {
		o.buf = make([]byte, 0, 4*maxMessage)
	}
	return o.buf[len(o.buf):]
}

// sent notes that msg, which was appended to room, is in use, and returns it.
func (o *outbox) sent(msg []byte) []byte {
	o.buf = o.buf[:len(o.buf)+len(msg)]
	return msg
}
