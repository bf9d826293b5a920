package tlsio

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/invariants"
	"cinnabar/internal/sockio"
)

// Socket is a stream socket that never blocks. [sockio.Conn] implements it, and documents its methods.
type Socket interface {
	TryReadv(bufs [][]byte) (int, error)
	TryWritev(bufs [][]byte) (int, error)
}

// Conn is a TLS connection, in its handshake or after it; see the package documentation.
type Conn struct {
	tls  *tls.Conn
	mem  memory
	sock Socket // set by Attach
	id   Identity

	drained  atomic.Bool // crypto/tls has no plaintext, and the memory has no ciphertext that crypto/tls can decrypt; only the reader changes it
	between  bool        // crypto/tls holds no plaintext, so the next byte of plaintext comes from a new record; only the reader uses it
	vec      [1][]byte   // the reader's
	accepted int         // the writer's: plaintext bytes that are encrypted and that no call of TryWritev has reported yet
}

// ErrCut is the error of a stream that ends without the peer's close_notify (RFC 8446, section 6.1), so it may be incomplete.
var ErrCut = errors.New("the connection was cut: it ended without the peer's close_notify of TLS, as when the peer's process ends")

// Attach ends the first phase. s has the stream of the net.Conn of the handshake, and nothing but the Conn may use its TryReadv and
// TryWritev from now on.
func (c *Conn) Attach(s Socket) {
	c.sock = s
	c.mem.rest()
	c.mem.begin, c.mem.under = nil, nil
}

// Buffered reports whether TryReadv may have bytes although the socket has none.
func (c *Conn) Buffered() bool { return !c.drained.Load() }

// TryReadv is [sockio.Conn.TryReadv] for the plaintext. Its error is [io.EOF] after the peer's close_notify, and ErrCut after an end of the
// stream without one. Bytes that are no TLS records of this connection end it.
func (c *Conn) TryReadv(bufs [][]byte) (int, error) {
	for {
		if !c.drained.Load() {
			n, err := c.decrypt(bufs)
			ferr := c.mem.flush(c.sock) // answers of crypto/tls to key updates, and alerts; the writer meets an error, too
			if errors.Is(ferr, ErrFlood) {
				return 0, ferr // also with plaintext, because a flood may bring some with each message
			}
			if n > 0 {
				return n, nil
			}
			if err != nil {
				return 0, c.ended(err)
			}
			if !c.drained.Load() {
				return 0, nil // all buffers are empty
			}
		}
		if err := c.fetch(); err != nil {
			return 0, err
		}
	}
}

// fetch moves ciphertext from the socket to memory.
func (c *Conn) fetch() error {
	m := &c.mem
	if m.eof != nil {
		return c.ended(m.eof)
	}
	if m.in == nil {
		m.in, _ = inbounds.Get().(*inbound)
		m.r, m.w = 0, 0
	}
	c.vec[0] = m.in[m.w:]
	n, err := c.sock.TryReadv(c.vec[:])
	m.w += n
	switch {
	case errors.Is(err, io.EOF):
		m.eof = io.EOF // crypto/tls decides whether the stream may end here
	case err != nil:
		m.drop()
		return err
	}
	m.drop()
	c.drained.Store(false)
	return nil
}

// decrypt fills bufs with plaintext, as far as there is ciphertext in memory.
func (c *Conn) decrypt(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		for len(b) > 0 {
			most := min(len(b), recordBytes)
			k, err := c.readRecord(b)
			if c.between && k > 0 {
				c.mem.given.unused--
			}
			c.between = k < most
			n += k
			b = b[k:]
			if _, ok := errors.AsType[emptyError](err); ok {
				c.drained.Store(true)
				return n, nil
			}
			if err != nil {
				return n, err
			}
			if c.between && c.mem.used() { // a read that finds nothing would cost an allocation
				c.drained.Store(true)
				return n, nil
			}
		}
	}
	return n, nil
}

// records are buffers of the plaintext of one record.
var records = sync.Pool{New: func() any { return new([recordBytes]byte) }}

// readRecord reads plaintext of one record into b. With the race detector it does so by hostmem.CopyExposed, because b may be memory
// that is exposed to the peer.
func (c *Conn) readRecord(b []byte) (int, error) {
	if !invariants.Race {
		return c.tls.Read(b)
	}
	r, _ := records.Get().(*[recordBytes]byte)
	defer records.Put(r)
	n, err := c.tls.Read(r[:min(len(b), recordBytes)])
	hostmem.CopyExposed(b, r[:n])
	return n, err
}

// ended returns the error of a stream that has ended with err.
func (c *Conn) ended(err error) error {
	switch {
	case errors.Is(err, io.EOF) && !c.mem.met:
		return io.EOF // a close_notify
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrCut
	}
	if text, ok := remoteAlert(err); ok {
		return fmt.Errorf("the peer ended the TLS connection: %s", text)
	}
	return fmt.Errorf("the bytes that came are no TLS records of this connection, so plaintext was mixed in or the bytes were changed: %w", err)
}

// TryWritev is [sockio.Conn.TryWritev] for plaintext. It returns the number of bytes after the socket has taken all of their ciphertext.
// Until then it returns [sockio.ErrWouldBlock], and bufs of the next call must begin with the same bytes.
func (c *Conn) TryWritev(bufs [][]byte) (int, error) {
	if c.accepted == 0 {
		if err := c.mem.flush(c.sock); err != nil {
			return 0, err
		}
		if err := c.encrypt(bufs); err != nil {
			return 0, fmt.Errorf("TLS: %w", err)
		}
	}
	if err := c.mem.flush(c.sock); err != nil {
		return 0, err
	}
	n := c.accepted
	c.accepted = 0
	return n, nil
}

// Encrypted returns the number of plaintext bytes that TryWritev has encrypted and not counted yet. The peer may have some of them, and can
// read those of whole records. Only the writer may call Encrypted.
func (c *Conn) Encrypted() int { return c.accepted }

// encrypt encrypts up to pieceBytes bytes of bufs, in as few records as possible, and adds their number to accepted. It copies them first,
// because they may be memory of a file that has become shorter, or that the program changes. A fault in that memory is a panic, after which
// accepted is right, because the caller may write the rest of a message behind the records that were made before.
func (c *Conn) encrypt(bufs [][]byte) error {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	c.mem.room(min(total, pieceBytes))
	r, _ := records.Get().(*[recordBytes]byte)
	fill := 0
	for _, b := range bufs {
		for len(b) > 0 && c.accepted+fill < pieceBytes {
			k := min(len(b), recordBytes-fill)
			hostmem.CopyExposed(r[fill:fill+k], b[:k])
			b = b[k:]
			if fill += k; fill == recordBytes {
				if err := c.seal(r[:]); err != nil {
					return err
				}
				fill = 0
			}
		}
	}
	if fill > 0 {
		if err := c.seal(r[:fill]); err != nil {
			return err
		}
	}
	records.Put(r)
	return nil
}

// seal encrypts one record.
func (c *Conn) seal(plain []byte) error {
	n, err := c.tls.Write(plain)
	c.accepted += n
	return err
}

// CloseWrite sends a close_notify, as far as the socket takes it. It is safe for concurrent use, and later calls of TryWritev fail.
func (c *Conn) CloseWrite() {
	_ = c.EndWriting() // a peer that does not read gets no end of the stream
}

// EndWriting is CloseWrite for a caller that waits for the socket. It returns [sockio.ErrWouldBlock] until the socket has taken the
// close_notify and all ciphertext before it.
func (c *Conn) EndWriting() error {
	if err := c.tls.CloseWrite(); err != nil {
		return err
	}
	return c.mem.flush(c.sock)
}

var _ Socket = (*sockio.Conn)(nil)
