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

	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// relayName returns the name of the socket of an endpoint's relay. It is abstract, so no file is left of it when the process is
// killed. Every user may bind or connect to such a name, so both ends check the other with trusted.
func relayName(ident identity) string { return "@" + objectPrefix + ident.uri() + ".relay" }

// maxRelays is the largest number of connections that are served at once: enough for all possible peers, each with one for every
// transfer under way, and one for arenas. An idle connection costs a goroutine and a descriptor.
const maxRelays = pairs * (maxLinks + 1)

// mostRelays returns the largest number of connections that are served at once on a machine of that capacity. They take a quarter of
// the descriptors at most, because the rest of the program needs some too.
func mostRelays(m hostquota.Capacity) int { return int(max(1, min(maxRelays, m.Files/4))) }

// relay serves the endpoint's memory to peers that the kernel does not let access it.
type relay struct {
	ep    *Endpoint
	mem   *memories
	log   *slog.Logger
	links *hostquota.Book // counts connections for each process
	most  int             // connections at once

	mu sync.Mutex
	// +checklocks:mu
	ln *net.UnixListener
	// +checklocks:mu
	conns map[*net.UnixConn]struct{}
	// +checklocks:mu
	closed bool
	stop   chan struct{} // closed by close; made by listen

	grants grants
	wg     sync.WaitGroup
}

// listen starts the relay. It is called when memory is registered, and does nothing after the first time.
func (r *relay) listen(e *Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ln != nil || r.closed {
		return
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: relayName(e.ident), Net: "unix"})
	if err != nil { // another process has the name; everything else works without the relay
		r.closed = true
		e.cfg.Logger.Warn("sm: the socket for transfers does not listen, so peers without the kernel's permission to access this process's memory cannot use it", keyError, err)
		return
	}
	r.ep, r.ln, r.mem, r.log, r.conns, r.stop = e, ln, &e.mem, e.cfg.Logger, make(map[*net.UnixConn]struct{}), make(chan struct{})
	r.most = mostRelays(hostquota.Machine())
	r.links = hostquota.NewBook(hostquota.Limits{hostquota.Connections: int64(r.most)})
	r.wg.Go(func() { r.accept(ln) })
}

// acceptor is the interface of listeners that accept needs, so that tests can make it fail.
type acceptor interface {
	AcceptUnix() (*net.UnixConn, error)
}

// acceptPause is the time that accept waits after an error, because the usual one, that no descriptor is left, does not pass at once.
const acceptPause = 50 * time.Millisecond

// accept takes connections until the listener is closed.
func (r *relay) accept(ln acceptor) {
	for {
		c, err := ln.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if _, ok := audit.Allow(hostquota.Host{}); ok {
				r.log.Warn("sm: no connection for memory can be taken", keyError, err)
			}
			if !r.pause() {
				return
			}
			continue
		}
		if err := r.admit(c); err != nil {
			_ = c.Close() // it was not used
		}
	}
}

// pause waits for acceptPause. It returns false if the relay is closed.
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

var errManyRelays = errors.New("no more connections for memory are served at once")

// admit starts to serve a connection if its process is of a trusted user and has a share left.
func (r *relay) admit(c *net.UnixConn) error {
	cred, err := credentials(c)
	if err != nil {
		return err
	}
	h := r.ep.hosts(identity{pid: cred.Pid}, cred.Uid)
	cause := causeUser
	if err = checkCredentials(cred); err == nil {
		cause, err = "share", r.begin(c, h)
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		r.ep.cfg.Audit.Record(audit.Refused, cause, h, slog.String("connection", "memory"), slog.Any(keyError, err))
	}
	return err
}

// begin starts the goroutine that serves a connection of the host h.
func (r *relay) begin(c *net.UnixConn, h hostquota.Host) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return net.ErrClosed
	}
	if len(r.conns) >= r.most {
		return errManyRelays
	}
	link := r.links.Account(h)
	if err := link.Take(hostquota.Connections, 1); err != nil {
		return err
	}
	r.conns[c] = struct{}{}
	r.wg.Go(func() {
		defer link.Give(hostquota.Connections, 1)
		defer r.drop(c)
		if err := r.serve(c, r.ep.cfg.Quota.Account(h)); err != nil {
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
	_ = c.Close() // no bytes of it are needed any more
}

// trusted returns the process at the other end of c. It must be of a trusted user, because the kernel demands the same for
// process_vm_readv and process_vm_writev, which the socket replaces.
func trusted(c *net.UnixConn) (pid int32, err error) {
	cred, err := credentials(c)
	if err == nil {
		err = checkCredentials(cred)
	}
	if err != nil {
		return 0, err
	}
	return cred.Pid, nil
}

// credentials returns the process at the other end of c, as it was when it connected or listened.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var sysErr error
	err = raw.Control(func(fd uintptr) { cred, sysErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, sysErr)
}

func checkCredentials(cred *unix.Ucred) error {
	if !trustedUser(cred.Uid) {
		return fmt.Errorf("process %d is of user %d, and this one of user %d", cred.Pid, cred.Uid, os.Geteuid())
	}
	return nil
}

// relayed is the state of serving one request.
type relayed struct {
	segs []segment
	raw  []byte // the segments in their encoded form
	out  []byte // the answer
	data []byte // the bytes of a put
}

// relayStates keeps memory for the requests that are served at once, which are far fewer than the connections.
var relayStates = sync.Pool{New: func() any { return new(relayed) }}

// relayWait is the time that a peer has to send the rest of a request, and to read an answer.
const relayWait = 30 * time.Second

// serve answers the requests of one connection, which is of the host that account belongs to.
func (r *relay) serve(c *net.UnixConn, account *hostquota.Account) error {
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
		if err := c.SetDeadline(time.Now().Add(relayWait)); err != nil {
			return err
		}
		if err := r.serveOne(c, h, account); err != nil {
			return err
		}
		if err := c.SetDeadline(time.Time{}); err != nil { // between requests it may be silent
			return err
		}
	}
}

// serveOne reads the rest of a request and answers it.
func (r *relay) serveOne(c *net.UnixConn, h relayHead, account *hostquota.Account) error {
	n := int64(h.segments*relaySegment + h.bytes)
	if err := account.Take(hostquota.Memory, n); err != nil {
		r.ep.cfg.Audit.Record(audit.Refused, "memory", account.Host(), slog.Any(keyError, err))
		return err
	}
	defer account.Give(hostquota.Memory, n)
	s, _ := relayStates.Get().(*relayed)
	defer relayStates.Put(s)
	if err := s.read(c, h); err != nil {
		return err
	}
	if h.access == relayMap {
		return r.grants.give(c, &r.mem.arenas, s.segs[0].addr)
	}
	if err := s.answer(r.mem, h); err != nil {
		r.ep.cfg.Audit.Record(audit.Denied, "shared memory", account.Host(), slog.Any(keyError, err))
	}
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

// answer performs the access that a request asks for and makes the answer. If it is a refusal, answer returns the cause.
func (s *relayed) answer(of *memories, h relayHead) error {
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
				hostmem.CopyExposed(part, mem)
			} else {
				hostmem.CopyExposed(mem, part)
			}
		})
		if err != nil {
			text := err.Error()
			text = text[:min(len(text), relayText)]
			s.out = append(appendRelayAnswer(s.out[:0], relayRefused, len(text)), text...)
			return err
		}
		data = data[seg.len:]
	}
	return nil
}

// room returns a slice of n bytes, b's memory if that suffices.
func room(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// close ends the relay and waits until it accesses no memory any more.
func (r *relay) close() {
	r.mu.Lock()
	if r.ln != nil && !r.closed {
		close(r.stop)
		_ = r.ln.Close() // ends accept, also if it returns an error
	}
	r.closed = true
	for c := range r.conns {
		_ = c.Close() // ends serve
	}
	r.mu.Unlock()
	r.wg.Wait()
}
