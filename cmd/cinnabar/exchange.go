package main

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

const (
	exchangeTimeout = 10 * time.Second // for each message that is sent, and for the steps of a meeting
	exchangeLimit   = 4 << 10          // bytes of one message
)

// exchange is the plain TCP connection over which two sides tell each other
// what has to be known before RDMA can begin. Each message is a line of JSON.
// Nothing beyond a line is read, so verbs/oob can use the connection too.
type exchange struct {
	net.Conn
	bytes atomic.Int64 // both ways
}

func newExchange(c net.Conn) *exchange { return &exchange{Conn: c} }

// Read counts what comes.
func (x *exchange) Read(b []byte) (int, error) {
	n, err := x.Conn.Read(b)
	x.bytes.Add(int64(n))
	return n, err
}

// Write counts what goes.
func (x *exchange) Write(b []byte) (int, error) {
	n, err := x.Conn.Write(b)
	x.bytes.Add(int64(n))
	return n, err
}

// connect joins queue pairs with the other side by verbs/oob.
func (x *exchange) connect(ctx context.Context, l *link, cfg oob.Config) (oob.QPInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	c, info, err := cfg.Connect(ctx, x, l.qp)
	l.conn = c
	if err != nil {
		err = cli.Reason(ctx, err)
	}
	return info, err
}

// send writes one message.
func (x *exchange) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("out-of-band exchange: %w", err)
	}
	if err := x.SetWriteDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return fmt.Errorf("out-of-band exchange: %w", err)
	}
	if _, err := x.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("out-of-band exchange: %w", err)
	}
	return nil
}

// receive reads one message of bounded size. It waits until ctx ends.
func (x *exchange) receive(ctx context.Context, v any) error {
	defer cli.Interrupt(ctx, x)()
	line, err := x.readLine()
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		return fmt.Errorf("out-of-band exchange: the other side sent nothing usable: %w", cli.Reason(ctx, err))
	}
	return nil
}

// readLine reads byte by byte, because what follows the line belongs to others.
func (x *exchange) readLine() ([]byte, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < exchangeLimit; line = append(line, b[0]) {
		if _, err := io.ReadFull(x, b); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			return line, nil
		}
	}
	return nil, fmt.Errorf("a line of over %d bytes", exchangeLimit)
}
