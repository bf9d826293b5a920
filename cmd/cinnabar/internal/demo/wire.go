package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"

	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
)

// The demonstration's two sides send each other over plain TCP the addresses and keys
// that RDMA needs to begin, and from then on Sends of one fixed message:
//
//	 0      1      2           8            16                      48
//	+------+------+-----------+------------+-----------------------+
//	| kind |  op  |     0     |   value    |    SHA-256 or zeros   |
//	+------+------+-----------+------------+-----------------------+
//
// The value is in network byte order. The peer never speaks unasked:
//
//	parent                             peer
//	  | -- begin op, n bytes ------------> |  posts receives, or fills its memory
//	  | <------------------------- ready -- |
//	  | == the data, by op ==============> |  (read: the parent fetches it, and
//	  | -- moved -------------------------> |   there is no moved and no arrived)
//	  | <----------------------- arrived -- |
//	  |        ... round by round ...      |
//	  | -- sum op ------------------------> |
//	  | <---------------- sum, its digest -- |
//	  | -- word i ------------------------> |
//	  | <------------- word, its content -- |
//	  | -- bye ---------------------------> |  and on with the transfers of files
const (
	messageLen    = 48
	messageOp     = 1
	messageValue  = 8
	messageDigest = 16
)

// messageKind is the kind of a message.
type messageKind uint8

const (
	kindBegin messageKind = iota + 1
	kindReady
	kindMoved
	kindArrived
	kindSum
	kindWord
	kindBye
)

var kindNames = [...]string{"", "begin", "ready", "moved", "arrived", "sum", "word", "bye"}

func (k messageKind) String() string {
	if int(k) < len(kindNames) && k > 0 {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// operation is a way to move data.
type operation uint8

const (
	opSendReceive operation = iota + 1
	opWrite
	opWriteImm
	opRead
)

var opNames = [...]string{"", "send/receive", "RDMA write", "RDMA write, immediate", "RDMA read"}

func (o operation) String() string {
	if int(o) < len(opNames) && o > 0 {
		return opNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// message is one Send of the conversation.
type message struct {
	kind   messageKind
	op     operation
	value  uint64
	digest [32]byte
}

func appendMessage(b []byte, m message) []byte {
	b = append(b, byte(m.kind), byte(m.op), 0, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, m.value)
	return append(b, m.digest[:]...)
}

func parseMessage(b []byte) (message, error) {
	if len(b) != messageLen {
		return message{}, fmt.Errorf("a message of the demonstration has %d bytes, not %d", messageLen, len(b))
	}
	m := message{kind: messageKind(b[0]), op: operation(b[messageOp]), value: binary.BigEndian.Uint64(b[messageValue:])}
	copy(m.digest[:], b[messageDigest:])
	return m, nil
}

// settings returns the values that both sides must agree on; verbs/oob compares them.
func settings() map[string]string {
	return map[string]string{"chunk": strconv.Itoa(chunkLen), "round": strconv.Itoa(roundLen)}
}

// talker sends and receives messages over a link. One receive is posted for each
// message that is expected, before the other side can send it.
type talker struct {
	*link.Link
	box *verbs.MR // the message received, and the message to send
}

// newTalker makes a link for the demonstration.
func newTalker(dev *verbs.Device) (*talker, error) {
	l, err := link.New(dev, link.Config{Sends: depth, Receives: depth})
	if err != nil {
		return nil, err
	}
	t := &talker{Link: l}
	if t.box, err = l.Alloc(2*messageLen, verbs.LocalWrite); err != nil {
		return nil, fmt.Errorf("register memory for messages: %w", err)
	}
	return t, nil
}

// listen posts the receive of the next message.
func (t *talker) listen() error {
	return t.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{t.box.SGE(0, messageLen)}})
}

// sendWR is the request that sends m. Only one is outstanding at a time.
func (t *talker) sendWR(m message) verbs.SendWR {
	appendMessage(t.box.Bytes()[messageLen:messageLen], m)
	return verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{t.box.SGE(messageLen, messageLen)}}
}

// say sends m.
func (t *talker) say(ctx context.Context, m message) error { return t.do(ctx, t.sendWR(m)) }

// do posts signaled requests and waits until all are done.
func (t *talker) do(ctx context.Context, wrs ...verbs.SendWR) error {
	if err := t.Post(wrs...); err != nil {
		return err
	}
	return t.Sent(ctx, len(wrs))
}

// hear waits for the message that listen made room for.
func (t *talker) hear(ctx context.Context) (message, error) {
	wc, err := t.Received(ctx, verbs.WCRecv)
	if err != nil {
		return message{}, err
	}
	return parseMessage(t.box.Bytes()[:min(int(wc.Len), messageLen)])
}

// ask sends m and waits for an answer of the given kind.
func (t *talker) ask(ctx context.Context, m message, want messageKind) (message, error) {
	if err := t.listen(); err != nil {
		return message{}, err
	}
	if err := t.say(ctx, m); err != nil {
		return message{}, err
	}
	return t.expect(ctx, want)
}

// expect waits for a message of the given kind.
func (t *talker) expect(ctx context.Context, want messageKind) (message, error) {
	m, err := t.hear(ctx)
	if err != nil {
		return message{}, fmt.Errorf("wait for the peer's %q: %w", want, err)
	}
	if m.kind != want {
		return message{}, fmt.Errorf("the peer said %q instead of %q", m.kind, want)
	}
	return m, nil
}
