package tlsio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"cinnabar/internal/invariants"
)

// Sizes in bytes.
const (
	inBytes     = 64 << 10  // ciphertext that one call of TryReadv takes from the socket
	recordBytes = 16 << 10  // plaintext of one record (RFC 8446, section 5.1)
	pieceBytes  = 128 << 10 // plaintext that one call of TryWritev encrypts at most
	// outBytes is the limit of ciphertext that waits for the socket: a piece with the headers and tags of its records, and 32 KiB for
	// key updates and alerts, which crypto/tls writes while it reads.
	outBytes = pieceBytes + pieceBytes/recordBytes*64 + 32<<10
)

// inbound is memory for ciphertext. A Conn has one only while there is something in it.
type inbound [inBytes]byte

var inbounds = sync.Pool{New: func() any { return new(inbound) }}

// outbound is memory for the ciphertext of one piece.
type outbound [outBytes]byte

var outbounds = sync.Pool{New: func() any { return new(outbound) }}

// emptyError is the error of a read from memory that is empty. crypto/tls forgets it, because it is temporary.
type emptyError struct{}

func (emptyError) Error() string   { return "no ciphertext has come" }
func (emptyError) Timeout() bool   { return true }
func (emptyError) Temporary() bool { return true }

// memory is the net.Conn below crypto/tls. In the handshake it passes reads and writes on to a net.Conn. Afterwards a Read returns ciphertext that
// fetch has stored, and a Write stores ciphertext for flush. Only one goroutine at a time reads; writes may come from the reader and the writer.
type memory struct {
	under  net.Conn // in the handshake
	local  net.Addr // of the connection
	remote net.Addr
	begin  func() (end func()) // in the handshake: called before and after work of the processor; may be nil
	end    func()              // result of begin; nil while the goroutine waits for the network
	heard  bool                // in the handshake: bytes have come
	first  []byte              // in the handshake: the byte that peek has read, until it is read again

	given framing // of the bytes that crypto/tls has read

	in  *inbound // nil while there is nothing in it
	r   int      // start of the unread bytes in it
	w   int      // their end
	eof error    // the end of the socket's stream, after the bytes in it
	met bool     // crypto/tls has been given eof

	pending atomic.Bool // out holds ciphertext

	mu invariants.Mutex
	// out holds ciphertext from sent on.
	// +checklocks:mu
	out []byte
	// +checklocks:mu
	sent int
	// vec is the argument of a write to the socket.
	// +checklocks:mu
	vec [1][]byte
	// flood is the error of a write beyond the limit.
	// +checklocks:mu
	flood error
	// large is the memory of out while a piece is in it.
	// +checklocks:mu
	large *outbound
}

// Read implements [net.Conn].
func (m *memory) Read(p []byte) (int, error) {
	n, err := m.read(p)
	m.given.add(p[:n])
	return n, err
}

func (m *memory) read(p []byte) (int, error) {
	switch {
	case len(m.first) > 0:
		n := copy(p, m.first)
		m.first = m.first[n:]
		return n, nil
	case m.r < m.w:
		n := copy(p, m.in[m.r:m.w])
		m.r += n
		m.drop()
		return n, nil
	case m.under != nil:
		return m.readUnder(p)
	case m.eof != nil:
		m.met = true
		return 0, m.eof
	}
	m.given.unused = 0 // because crypto/tls reads only when it has no whole record
	return 0, emptyError{}
}

// used reports whether crypto/tls has used all ciphertext that has come.
func (m *memory) used() bool {
	return m.r == m.w && m.eof == nil && m.given == framing{head: m.given.head}
}

// framing counts the records of a stream (RFC 8446, section 5.1).
//
//	 0      1         3        5
//	+------+---------+--------+----------
//	| type | version | length | fragment
//	+------+---------+--------+----------
type framing struct {
	head [headBytes]byte // header of the next record, of which have bytes have come
	have int
	left int // bytes of the fragment that follow; have is 0 then

	// unused is the number of whole records that crypto/tls may still have. It is an upper bound, because crypto/tls reports no use of a record without
	// data, such as a key update.
	unused int
}

// Bytes of the header of a record, and the place of the length in it.
const (
	headBytes = 5
	offLength = 3
)

// add takes the next bytes of the stream.
func (f *framing) add(b []byte) {
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, len(b))
			f.left, b = f.left-n, b[n:]
			if f.left == 0 {
				f.unused++
			}
			continue
		}
		n := copy(f.head[f.have:], b)
		f.have, b = f.have+n, b[n:]
		if f.have == headBytes {
			f.have, f.left = 0, int(binary.BigEndian.Uint16(f.head[offLength:]))
			if f.left == 0 {
				f.unused++ // which crypto/tls refuses
			}
		}
	}
}

// readUnder waits for bytes of the handshake.
func (m *memory) readUnder(p []byte) (int, error) {
	m.rest()
	n, err := m.under.Read(p)
	m.heard = m.heard || n > 0
	if err == nil && !m.work() {
		return 0, errGivenUp
	}
	return n, err
}

// errGivenUp is the error of a handshake that its owner has given up.
var errGivenUp = errors.New("the connection was given up while its handshake waited for the processor")

// work is called when the handshake needs the processor, and rest when it does not. work returns false if the handshake is given up.
func (m *memory) work() bool {
	if m.begin != nil && m.end == nil {
		m.end = m.begin()
		return m.end != nil
	}
	return true
}

func (m *memory) rest() {
	if m.end != nil {
		m.end()
		m.end = nil
	}
}

// peek waits for the first byte of the peer, without taking it.
func (m *memory) peek() (byte, error) {
	b := make([]byte, 1) // because thousands of connections may be waiting for it
	for {
		n, err := m.under.Read(b)
		if n > 0 {
			m.first, m.heard = b, true
			return b[0], nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// drop gives the memory for ciphertext back if there is nothing in it.
func (m *memory) drop() {
	if m.in != nil && m.r == m.w {
		inbounds.Put(m.in)
		m.in, m.r, m.w = nil, 0, 0
	}
}

// Write implements [net.Conn].
func (m *memory) Write(p []byte) (int, error) {
	if m.under != nil {
		m.rest() // because the peer need not read; crypto/tls writes at the end of its work
		return m.under.Write(p)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.out) - m.sent + len(p); n > outBytes {
		m.flood = fmt.Errorf("%w: %d bytes, and the limit is %d", ErrFlood, n, outBytes)
		m.pending.Store(true) // so that flush returns it
		return 0, m.flood
	}
	if m.sent > 0 && len(m.out)+len(p) > cap(m.out) {
		m.out = m.out[:copy(m.out, m.out[m.sent:])]
		m.sent = 0
	}
	m.out = append(m.out, p...)
	m.pending.Store(true)
	return len(p), nil
}

// keepBytes is the room in bytes that an empty out keeps, that of a piece of smallBytes. More is given back, because most connections are
// idle.
const keepBytes = 2 * smallBytes

// ErrFlood is the error of a connection whose peer asks for answers of TLS itself, such as those to key updates, and does not read them.
var ErrFlood = errors.New("too much ciphertext waits for a peer that does not read it")

// flush writes ciphertext to the socket until there is none, or until it returns the socket's error, or ErrFlood.
func (m *memory) flush(s Socket) error {
	if !m.pending.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.flood != nil {
		return m.flood
	}
	for m.sent < len(m.out) {
		m.vec[0] = m.out[m.sent:]
		n, err := s.TryWritev(m.vec[:])
		if err != nil {
			return err
		}
		m.sent += n
	}
	m.pending.Store(false)
	m.out, m.sent, m.vec[0] = m.out[:0], 0, nil
	if m.large != nil {
		outbounds.Put(m.large)
		m.large, m.out = nil, nil
	} else if cap(m.out) > keepBytes {
		m.out = nil // it has grown by answers of crypto/tls
	}
	return nil
}

// smallBytes is the plaintext in bytes up to which a connection keeps its memory for ciphertext. More is shared by all connections, because
// most of them are idle.
const smallBytes = 4 << 10

// room makes room for the ciphertext of n bytes. Nothing may wait for the socket.
func (m *memory) room(n int) {
	if n <= smallBytes {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.large == nil && len(m.out) == 0 {
		m.large, _ = outbounds.Get().(*outbound)
		m.out = m.large[:0]
	}
}

// Close implements [net.Conn]. The socket has another owner.
func (m *memory) Close() error {
	if m.under != nil {
		return m.under.Close()
	}
	return nil
}

// LocalAddr implements [net.Conn].
func (m *memory) LocalAddr() net.Addr { return m.local }

// RemoteAddr implements [net.Conn].
func (m *memory) RemoteAddr() net.Addr { return m.remote }

// SetDeadline and its kin implement [net.Conn]. The owner of the connection below sets the deadlines of a handshake.
func (*memory) SetDeadline(time.Time) error      { return nil }
func (*memory) SetReadDeadline(time.Time) error  { return nil }
func (*memory) SetWriteDeadline(time.Time) error { return nil }
