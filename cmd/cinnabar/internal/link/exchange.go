package link

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs/oob"
)

// Limits of an exchange.
const (
	ExchangeTimeout = 10 * time.Second // for each message that is sent, and for the steps of a meeting
	ExchangeLimit   = 4 << 10          // bytes of one message
)

// Exchange is the plain TCP connection over which two sides send each other the
// values that RDMA needs to begin. Each message is a line of JSON.
// Nothing beyond a line is read, so verbs/oob can use the connection too.
type Exchange struct {
	net.Conn
	Bytes atomic.Int64 // both ways
}

// NewExchange returns an exchange over c. Its Close closes c.
func NewExchange(c net.Conn) *Exchange { return &Exchange{Conn: c} }

// Read reads from the connection and counts the bytes.
func (x *Exchange) Read(b []byte) (int, error) {
	n, err := x.Conn.Read(b)
	x.Bytes.Add(int64(n))
	return n, err
}

// Write writes to the connection and counts the bytes.
func (x *Exchange) Write(b []byte) (int, error) {
	n, err := x.Conn.Write(b)
	x.Bytes.Add(int64(n))
	return n, err
}

// Connect joins queue pairs with the other side by verbs/oob.
func (x *Exchange) Connect(ctx context.Context, l *Link, cfg oob.Config) (oob.QPInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, ExchangeTimeout)
	defer cancel()
	c, info, err := cfg.Connect(ctx, x, l.QP)
	l.Conn = c
	if err != nil {
		err = cli.Reason(ctx, err)
	}
	return info, err
}

// Send writes one message.
func (x *Exchange) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("out-of-band exchange: %w", err)
	}
	if err := x.SetWriteDeadline(time.Now().Add(ExchangeTimeout)); err != nil {
		return fmt.Errorf("out-of-band exchange: %w", err)
	}
	if _, err := x.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("out-of-band exchange: %w", err)
	}
	return nil
}

// Receive reads one message of bounded size. It waits until ctx ends.
func (x *Exchange) Receive(ctx context.Context, v any) error {
	defer cli.Interrupt(ctx, x)()
	line, err := x.ReadLine()
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		return fmt.Errorf("out-of-band exchange: the other side sent nothing usable: %w", cli.Reason(ctx, err))
	}
	return nil
}

// ReadLine reads byte by byte, because the bytes behind the line are for another reader.
func (x *Exchange) ReadLine() ([]byte, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < ExchangeLimit; line = append(line, b[0]) {
		if _, err := io.ReadFull(x, b); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			return line, nil
		}
	}
	return nil, fmt.Errorf("a line of over %d bytes", ExchangeLimit)
}
