package sm

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// relayName is the name of the socket through which an endpoint's memory is served. It is an abstract one: nothing of
// it is in the file system, so nothing is left of it when the process is killed. Who may bind or connect to it is for
// both ends to check, see trusted.
func relayName(who identity) string { return "@" + objectPrefix + who.uri() + ".relay" }

// maxRelays is how many connections are served at once: enough for all peers that there can be, each of which has one for
// each transfer that is under way, and one for arenas. One that says nothing costs a goroutine and a descriptor.
const maxRelays = pairs * (maxLinks + 1)

// relay serves the endpoint's memory to peers that the kernel does not let reach it.
type relay struct {
	mem *memories
	log *slog.Logger

	mu sync.Mutex
	// +checklocks:mu
	ln *net.UnixListener
	// +checklocks:mu
	conns map[*net.UnixConn]struct{}
	// +checklocks:mu
	closed bool
	stop   chan struct{} // closed by close; made by listen
	// warned is when a refused connection was last told of.
	// +checklocks:mu
	warned time.Time

	grants grants
	wg     sync.WaitGroup
}

// listen begins to serve. It is called when memory is registered and returns at once if that is not the first time.
func (r *relay) listen(who identity, mem *memories, log *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ln != nil || r.closed {
		return
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: relayName(who), Net: "unix"})
	if err != nil { // the name is another process's; all else works without it
		r.closed = true
		log.Warn("sm: peers that the kernel does not let reach this process's memory will not reach it at all", keyError, err)
		return
	}
	r.ln, r.mem, r.log, r.conns, r.stop = ln, mem, log, make(map[*net.UnixConn]struct{}), make(chan struct{})
	r.wg.Go(func() { r.accept(ln) })
}

// acceptor is what accept needs of a listener.
type acceptor interface {
	AcceptUnix() (*net.UnixConn, error)
}

// acceptPause is how long accept waits after an error. Those that there are do not pass at once: no descriptor is left.
const acceptPause = 50 * time.Millisecond

// accept takes connections until the listener is closed.
func (r *relay) accept(ln acceptor) {
	for {
		c, err := ln.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			r.warn("sm: no connection for memory can be taken", err)
			if !r.pause() {
				return
			}
			continue
		}
		if err := r.admit(c); err != nil {
			r.warn("sm: connection for memory refused", err)
			_ = c.Close() // it was not used
		}
	}
}

// pause waits for a moment; false: the relay is closed.
func (r *relay) pause() bool {
	t := time.NewTimer(acceptPause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.stop:
		return false
	}
}

// warn logs once a minute at most: anybody on this host can connect.
func (r *relay) warn(msg string, err error) {
	r.mu.Lock()
	due := r.warned.IsZero() || time.Since(r.warned) >= complainEvery
	if due {
		r.warned = time.Now()
	}
	r.mu.Unlock()
	if due {
		r.log.Warn(msg, keyError, err)
	}
}

var errManyRelays = fmt.Errorf("%d are served already", maxRelays)

func (r *relay) admit(c *net.UnixConn) error {
	if _, err := trusted(c); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return net.ErrClosed
	}
	if len(r.conns) == maxRelays {
		return errManyRelays
	}
	r.conns[c] = struct{}{}
	r.wg.Go(func() {
		defer r.drop(c)
		if err := r.serve(c); err != nil {
			r.log.Debug("sm: connection for memory ends", keyError, err)
		}
	})
	return nil
}

func (r *relay) drop(c *net.UnixConn) {
	r.grants.drop(c)
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	_ = c.Close() // nothing is to be saved
}

// trusted returns the process at the other end of c; it must be of the same user, or of root, as the kernel demands for
// what the socket stands in for.
func trusted(c *net.UnixConn) (pid int32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var sysErr error
	err = raw.Control(func(fd uintptr) { cred, sysErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, sysErr); err != nil {
		return 0, err
	}
	if own := os.Geteuid(); cred.Uid != 0 && int(cred.Uid) != own {
		return 0, fmt.Errorf("process %d is of user %d, and this one of user %d", cred.Pid, cred.Uid, own)
	}
	return cred.Pid, nil
}

// relayed is the state of serving one request.
type relayed struct {
	segs []segment
	raw  []byte // the segments as they come
	out  []byte // the answer
	data []byte // a put's
}

// relayStates keeps memory for as many requests as are served at once. Connections are far more.
var relayStates = sync.Pool{New: func() any { return new(relayed) }}

// serve answers the requests of one connection.
func (r *relay) serve(c *net.UnixConn) error {
	var head [relayRequest]byte
	for {
		if _, err := io.ReadFull(c, head[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		h, err := parseRelayHead(head[:])
		if err != nil {
			return err
		}
		if err := r.serveOne(c, h); err != nil {
			return err
		}
	}
}

// serveOne reads what is left of a request and answers it.
func (r *relay) serveOne(c *net.UnixConn, h relayHead) error {
	s, _ := relayStates.Get().(*relayed)
	defer relayStates.Put(s)
	if err := s.read(c, h); err != nil {
		return err
	}
	if h.access == relayMap {
		return r.grants.give(c, &r.mem.arenas, s.segs[0].addr)
	}
	s.answer(r.mem, h)
	_, err := c.Write(s.out)
	return err
}

// read reads a request behind its head.
func (s *relayed) read(c io.Reader, h relayHead) (err error) {
	s.raw = room(s.raw, h.segments*relaySegment)
	if _, err := io.ReadFull(c, s.raw); err != nil {
		return err
	}
	if s.segs, err = parseRelaySegments(s.segs[:0], s.raw, h); err != nil {
		return err
	}
	if h.access == na.WriteOnly {
		s.data = room(s.data, h.bytes)
		_, err = io.ReadFull(c, s.data)
	}
	return err
}

// answer does what a request asks for and makes the answer.
func (s *relayed) answer(of *memories, h relayHead) {
	n := 0
	if h.access == na.ReadOnly {
		n = h.bytes
	}
	s.out = room(s.out, relayAnswer+n)
	appendRelayAnswer(s.out[:0], relayDone, n)
	data := s.data
	if h.access == na.ReadOnly {
		data = s.out[relayAnswer:]
	}
	for _, seg := range s.segs {
		part := data[:seg.len]
		err := of.use(seg.addr, seg.len, h.access, func(mem []byte) {
			if h.access == na.ReadOnly {
				copyExposed(part, mem)
			} else {
				copyExposed(mem, part)
			}
		})
		if err != nil {
			text := err.Error()
			text = text[:min(len(text), relayText)]
			s.out = append(appendRelayAnswer(s.out[:0], relayRefused, len(text)), text...)
			return
		}
		data = data[seg.len:]
	}
}

// room returns a slice of n bytes, b's memory if that suffices.
func room(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// close ends serving and waits until no memory is touched any more.
func (r *relay) close() {
	r.mu.Lock()
	if r.ln != nil && !r.closed {
		close(r.stop)
		_ = r.ln.Close() // which ends accept, whatever it returns
	}
	r.closed = true
	for c := range r.conns {
		_ = c.Close() // which ends serve
	}
	r.mu.Unlock()
	r.wg.Wait()
}
