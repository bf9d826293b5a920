package tlsio

import (
	"errors"

	"cinnabar/internal/sockio"
)

// Stream is the socket of a connection, with TLS around it or without. Its methods move plaintext.
type Stream struct {
	*sockio.Conn
	TLS *Conn // nil: none. Attach has given it the socket, or one around that
}

// TryReadv is [sockio.Conn.TryReadv].
func (s *Stream) TryReadv(bufs [][]byte) (int, error) {
	if s.TLS != nil {
		return s.TLS.TryReadv(bufs)
	}
	return s.Conn.TryReadv(bufs)
}

// TryWritev is [sockio.Conn.TryWritev]. After ErrWouldBlock the next call must begin with the same bytes, see [Conn.TryWritev].
func (s *Stream) TryWritev(bufs [][]byte) (int, error) {
	if s.TLS != nil {
		return s.TLS.TryWritev(bufs)
	}
	return s.Conn.TryWritev(bufs)
}

// Buffered reports whether TLS has bytes that were taken from the socket and that TryReadv has not returned. The socket wakes no reader for them.
func (s *Stream) Buffered() bool { return s.TLS != nil && s.TLS.Buffered() }

// Encrypted returns the number of bytes that the peer may have although TryWritev has not counted them, see [Conn.Encrypted].
func (s *Stream) Encrypted() int {
	if s.TLS == nil {
		return 0
	}
	return s.TLS.Encrypted()
}

// WaitRead is [sockio.Conn.WaitRead]. It does not park while bytes are buffered.
func (s *Stream) WaitRead(ready func() bool) error {
	if s.TLS == nil {
		return s.Conn.WaitRead(ready)
	}
	return s.Conn.WaitRead(func() bool {
		for !ready() {
			if !s.TLS.Buffered() {
				return false
			}
		}
		return true
	})
}

// EndWriting sends the end of the stream. Over TLS it returns [sockio.ErrWouldBlock] until the socket has taken the close_notify, without which the peer
// would take the end for that of this process. Other errors are not returned, because the connection is gone then, which its reader finds out.
func (s *Stream) EndWriting() error {
	if s.TLS != nil && errors.Is(s.TLS.EndWriting(), sockio.ErrWouldBlock) {
		return sockio.ErrWouldBlock
	}
	_ = s.Conn.CloseWrite() // see above
	return nil
}

// NotifyClose sends a close_notify, as far as the socket takes it. Without TLS it does nothing: the end of the stream says as much there.
func (s *Stream) NotifyClose() {
	if s.TLS != nil {
		s.TLS.CloseWrite()
	}
}

// CloseWrite is [sockio.Conn.CloseWrite], after NotifyClose.
func (s *Stream) CloseWrite() error {
	s.NotifyClose()
	return s.Conn.CloseWrite()
}

// Identity returns the certificate of the peer; the zero Identity without TLS.
func (s *Stream) Identity() Identity {
	if s.TLS == nil {
		return Identity{}
	}
	return s.TLS.Identity()
}
