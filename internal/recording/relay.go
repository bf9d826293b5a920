package recording

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Raw is a message as it was sent, or with nil Bytes the end of one side's stream.
type Raw struct {
	FromDialer bool
	Bytes      []byte
}

// Relay forwards the messages between a program that dials and one that listens, and records each in the order of arrival. It forwards
// a message after all messages that it has recorded before. A Relay is safe for concurrent use.
type Relay struct {
	l    net.Listener
	to   string
	busy sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	conns []*relayed
	// +checklocks:mu
	err error
}

// relayed is one connection.
type relayed struct {
	mu sync.Mutex
	// +checklocks:mu
	messages []Raw
}

// NewRelay listens at an address of TCP and connects each caller to another one.
func NewRelay(at, to string) (*Relay, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	r := &Relay{l: l, to: to}
	r.busy.Go(r.accept)
	return r, nil
}

// Addr returns the address at which the relay listens.
func (r *Relay) Addr() string { return r.l.Addr().String() }

// Close ends the relay after both sides have ended each connection, and returns the conversations in the order in which
// they began.
func (r *Relay) Close() ([][]Raw, error) {
	err := r.l.Close()
	r.busy.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all [][]Raw
	for _, c := range r.conns {
		c.mu.Lock()
		all = append(all, c.messages)
		c.mu.Unlock()
	}
	return all, errors.Join(err, r.err)
}

func (r *Relay) accept() {
	for {
		from, err := r.l.Accept()
		if err != nil {
			return // closed
		}
		to, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = from.Close() // the dialing side sees its end
			r.failed(err)
			continue
		}
		c := new(relayed)
		r.mu.Lock()
		r.conns = append(r.conns, c)
		r.mu.Unlock()
		r.busy.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { r.failed(c.pump(true, from, to)) })
			both.Go(func() { r.failed(c.pump(false, to, from)) })
			both.Wait()
			_, _ = from.Close(), to.Close() // both streams have ended
		})
	}
}

func (r *Relay) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}

// pump forwards the messages of one direction until the end of the stream.
func (c *relayed) pump(fromDialer bool, from, to net.Conn) error {
	for first := true; ; first = false {
		b, err := readMessage(from, first)
		c.mu.Lock()
		c.messages = append(c.messages, Raw{fromDialer, b})
		if err == nil {
			_, err = to.Write(b)
		}
		c.mu.Unlock()
		if err != nil {
			_ = closeWrite(to) // the other side may have ended already
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
	}
}

// Sizes and offsets in messages of ofi+tcp.
const (
	connectSize = 40
	headerSize  = 16
	offOp       = 1
	offFlags    = 2
	offHeader   = 6
	offLength   = 8
)

// readMessage reads one message, or returns io.EOF at the end of the stream. Each side's first message connects.
func readMessage(from io.Reader, first bool) ([]byte, error) {
	n := headerSize
	if first {
		n = connectSize
	}
	b := make([]byte, n)
	if got, err := io.ReadFull(from, b); err != nil {
		if got == 0 {
			return nil, io.EOF // also after a reset, which ends a stream too
		}
		return nil, fmt.Errorf("message of %d bytes: %w", got, err)
	}
	if first {
		return b, nil
	}
	size := binary.LittleEndian.Uint64(b[offLength:])
	if size < headerSize || size > maxMessage {
		return nil, fmt.Errorf("message of %d bytes, want %d to %d", size, headerSize, maxMessage)
	}
	b = append(b, make([]byte, size-headerSize)...)
	_, err := io.ReadFull(from, b[headerSize:])
	return b, err
}
