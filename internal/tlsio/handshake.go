package tlsio

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// recordHandshake is the first byte of a TLS connection: the type of a record of the handshake (RFC 8446, section 5.1).
const recordHandshake = 22

// ErrPlain is the error of a handshake with a peer that does not speak TLS.
var ErrPlain = errors.New("the peer does not speak TLS")

func newConn(conn net.Conn, work func() func()) *Conn {
	return &Conn{mem: memory{under: conn, local: conn.LocalAddr(), remote: conn.RemoteAddr(), begin: work}}
}

// Client makes the handshake of a client on conn. cfg is a result of [Prepare]; name is the host name or IP address that the server's
// certificate must have if cfg has no ServerName. A deadline of conn bounds the handshake.
//
// The server checks the client's certificate after the handshake of the client is over. Its refusal is an error of the first Read.
func Client(conn net.Conn, cfg *tls.Config, name string) (*Conn, error) {
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = name
	}
	c := newConn(conn, nil)
	c.tls = tls.Client(&c.mem, cfg)
	if err := c.tls.Handshake(); err != nil {
		return nil, c.explainClient(err)
	}
	return c.agreed()
}

// Server makes the handshake of a server on conn. cfg is a result of [Prepare]. A deadline of conn bounds the handshake. If work is not nil, Server calls it
// before it computes, and calls the function that work returned before it waits for the network; if work returns nil, the handshake fails. Until the peer
// has sent its first byte, Server holds no memory but that of crypto/tls.
//
// If the first byte of the peer belongs to no TLS handshake, Server returns an error that is ErrPlain, and a Conn that reads and writes
// plaintext, from that byte on, for an answer that the peer understands.
func Server(conn net.Conn, cfg *tls.Config, work func() func()) (*Conn, error) {
	c := newConn(conn, work)
	defer func() {
		c.mem.rest()
		c.mem.begin = nil
	}()
	first, err := c.mem.peek()
	if err != nil {
		return nil, fmt.Errorf("a connection without a TLS handshake: %w", err)
	}
	if first != recordHandshake {
		return c, fmt.Errorf("%w: its first byte is %d, and a TLS handshake begins with %d", ErrPlain, first, recordHandshake)
	}
	c.tls = tls.Server(&c.mem, cfg)
	if err := c.tls.Handshake(); err != nil {
		return nil, c.explain(err)
	}
	return c.agreed()
}

// agreed returns c after its handshake. It refuses a peer that names no protocol inside TLS: crypto/tls accepts that, and the peer may be a
// server of another protocol to which an attacker has passed on the connection.
func (c *Conn) agreed() (*Conn, error) {
	if c.tls.ConnectionState().NegotiatedProtocol == "" {
		return nil, errors.New("the peer speaks TLS and has not agreed on the protocol inside it (ALPN), so it is a program of another kind")
	}
	c.identify()
	return c, nil
}

// Read implements [io.Reader] until Attach. Without a handshake it reads plaintext.
func (c *Conn) Read(b []byte) (int, error) {
	if c.tls == nil {
		return c.mem.Read(b)
	}
	n, err := c.tls.Read(b)
	if text, ok := remoteAlert(err); ok {
		err = fmt.Errorf("this side's certificate is missing or was refused: the server ended the TLS connection: %s", text)
	}
	return n, err
}

// Write implements [io.Writer] until Attach. Without a handshake it writes plaintext.
func (c *Conn) Write(b []byte) (int, error) {
	if c.tls == nil {
		return c.mem.Write(b)
	}
	return c.tls.Write(b)
}

// explainClient is explain for a client, whose server may be one without TLS.
func (c *Conn) explainClient(err error) error {
	if h, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("%w: its answer to the TLS handshake begins with % x", ErrPlain, h.RecordHeader)
	}
	gone := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if gone && !c.mem.heard {
		return fmt.Errorf("%w: it closed the connection at the TLS handshake", ErrPlain)
	}
	return c.explain(err)
}

// explain returns the error of a handshake, in words that name the party. It is never ErrPlain, because Server returns a Conn with that.
func (c *Conn) explain(err error) error {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("the peer's certificate is not accepted: %w", err)
	}
	if h, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("TLS handshake: % x is no header of a TLS record: %w", h.RecordHeader, err)
	}
	if text, ok := remoteAlert(err); ok {
		return fmt.Errorf("the peer refused the TLS handshake: %s", text)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the TLS handshake did not end in time: %w", err)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}

// remoteAlert returns the text of an alert that the peer has sent.
func remoteAlert(err error) (string, bool) {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" {
		return "", false
	}
	return op.Err.Error(), true
}
