package sm

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// hostile is a peer in shared memory that takes the steps of its input: each step is a byte that names it and seven that say
// how.
type hostile struct {
	*rawClient

	server *Endpoint
	pipe   [2]int
	ruined bool // the part of the region that all share has been written to: others' calls may fail
}

// Steps of a hostile peer. Those from stepShared on change the part that all peers share.
const (
	stepTx       = iota // a word of its ring to the server
	stepRx              // a word of the ring to it
	stepBlock           // a word of its block
	stepMessage         // a message as it should be
	stepPush            // any descriptor
	stepRing            // tokens
	stepReserve         // a datagram that announces it, with the descriptors that it should have, or others
	stepRelease         // a datagram that ends its connection, or another's
	stepDatagram        // a datagram of any bytes
	stepCommand         // any command in the ring
	stepCommands        // a word of the command ring
	stepClaim           // another pair
	stepFill            // its doorbell is full and blocks
	stepTake            // the oldest message to it
	stepCall            // an innocent peer makes a call
	stepConnect         // another one connects
	stepShared          // a word of the part that all share
	stepTruncate        // the file of the region is cut off
	stepRemove          // a file of the server is removed
	hostileSteps
)

const mostHostileSteps = 48

// hostileConnections is the server's MaxConnections. Each step adds one connection at most to those of the hostile and an innocent
// peer, and a host may have 54 of 96: no innocent peer is refused because of the number of connections.
const hostileConnections = 2 * mostHostileSteps

// do takes one step.
func (h *hostile) do(step byte, b [7]byte) {
	word := uint32(b[3]) | uint32(b[4])<<8 | uint32(b[5])<<16 | uint32(b[6])<<24
	store := func(mem []byte) {
		off := (int(b[1]) | int(b[2])<<8) * 4 % len(mem)
		_ = h.r.read(func() { shm.Uint32(mem, off&^3).Store(word) }) // it may have cut off the region
	}
	long := uint64(word)<<32 | uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8
	switch step {
	case stepTx:
		store(h.r.tx(h.pair))
	case stepRx:
		store(h.r.rx(h.pair))
	case stepBlock:
		store(h.r.b[regionSize+h.pair*blockSize:][:blockSize])
	case stepMessage:
		_ = h.r.read(func() { h.message(uint32(b[0]), b[1:1+b[0]%7]) })
	case stepPush:
		_ = h.r.read(func() { h.out.push(descriptor(long | uint64(b[2]&3))) })
	case stepRing:
		h.tokens(uint64(b[0]))
	case stepReserve:
		h.command(b, commandReserved)
	case stepRelease:
		h.command(b, commandReleased)
	case stepDatagram:
		h.raw(b[:b[0]%8], h.some(b[1])...)
	case stepCommand:
		_ = h.r.read(func() { _ = h.r.commands.push(h.commandOf(b, b[2]%4)) })
	case stepCommands:
		store(h.r.commands.b)
	case stepClaim:
		_ = h.r.read(func() {
			if p := h.r.claimPair(); p >= 0 {
				h.pair, h.out, h.in = p, producer(h.r.tx(p)), consumer(h.r.rx(p))
			}
		})
	case stepFill:
		if h.recvEvent >= 0 {
			_ = unix.SetNonblock(h.recvEvent, true)
			_ = addTokens(h.recvEvent, 1<<64-2)
			_ = unix.SetNonblock(h.recvEvent, b[0]&1 == 0)
		}
	case stepTake:
		_ = h.r.read(func() {
			if _, _, ok := h.in.peek(); ok {
				h.in.advance()
			}
		})
	case stepShared:
		h.ruined = true
		shared := [][]byte{h.r.b[:offBuffers], h.r.b[offBufferMap:offPairs], h.r.b[offPairMap:regionSize], h.r.b[offBuffers:offBufferMap]}
		store(shared[int(b[0])%len(shared)])
	case stepTruncate:
		h.ruined = true
		_ = os.Truncate(h.cfg.objectPath(h.uri), int64(word%(2*extendedSize)))
	case stepRemove:
		c := h.cfg
		paths := []string{c.objectPath(h.uri), c.spareObject(h.uri), c.socketPath(h.uri), c.spareSocket(h.uri)}
		h.ruined = true
		_ = os.Remove(paths[int(b[0])%len(paths)])
	}
}

// message sends a message as a client of either kind does, if there is room.
func (h *hostile) message(tag uint32, msg []byte) {
	if h.out.full() {
		return
	}
	buffer := 0
	if len(msg) > 0 {
		if buffer = claimBit(h.r.bufferMap); buffer < 0 {
			return
		}
		copy(h.r.buffer(buffer), msg)
	}
	h.out.push(makeDescriptor(tag, len(msg), buffer, typeUnexpected))
	h.tokens(1)
}

func (h *hostile) tokens(n uint64) {
	if h.doorbell >= 0 {
		_ = unix.SetNonblock(h.doorbell, true)
		_ = addTokens(h.doorbell, n)
	}
}

// some returns descriptors: its doorbells, or too few, too many, or ones that are no eventfds.
func (h *hostile) some(kind byte) []int {
	switch kind % 8 {
	case 0:
		return nil
	case 1:
		return []int{h.doorbell}
	case 2:
		return []int{h.doorbell, h.recvEvent, h.doorbell, h.recvEvent}
	case 3:
		return h.pipe[:]
	case 4:
		return []int{h.sock, h.doorbell}
	case 5:
		return []int{h.doorbell, h.doorbell}
	case 6:
		many := make([]int, 100)
		for i := range many {
			many[i] = h.recvEvent
		}
		return many
	}
	return []int{h.doorbell, h.recvEvent}
}

// commandOf returns a command that names this peer and its pair, or others.
func (h *hostile) commandOf(b [7]byte, kind uint8) command {
	ident, pair := h.ident, h.pair
	switch b[0] % 8 {
	case 0:
		pair = int(b[1])
	case 1:
		ident.id = b[1]
	case 2:
		ident.pid = int32(b[1])
	case 3:
		ident.pid = -int32(b[1])
	}
	return makeCommand(ident, pair, kind, b[3])
}

func (h *hostile) command(b [7]byte, kind uint8) {
	cmd := h.commandOf(b, kind)
	var raw [commandSize]byte
	for i := range raw {
		raw[i] = byte(cmd >> (8 * i))
	}
	h.raw(raw[:], h.some(b[4])...)
}

func (h *hostile) raw(b []byte, fds ...int) {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	_, _ = unix.SendmsgN(h.sock, b, control, &unix.SockaddrUnix{Name: h.cfg.socketPath(h.uri)}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// innocent makes calls of 200 bytes, which lie in slots of its own.
type innocent struct {
	*caller

	n byte
}

func (c *innocent) check(t *testing.T, h *hostile) {
	t.Helper()
	if h.ruined {
		return
	}
	c.n++
	msg := bytes.Repeat([]byte{c.n}, 200)
	if got, err := c.call(t, msg); err != nil || !bytes.Equal(got, msg) {
		t.Fatalf("an innocent peer's call: %d bytes, %v", len(got), err)
	}
}

// openFiles is the number of descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// FuzzHostilePeer has a peer in shared memory take the steps of the input, while another one is served: no step ends the
// process, calls of others are answered with their own bytes, and nothing is left when the endpoints are closed.
//
// parity: Q04
// fuzz:state
func FuzzHostilePeer(f *testing.F) {
	step := func(kind byte, b ...byte) []byte {
		return append(append([]byte{kind}, b...), make([]byte, 7-len(b))...)
	}
	join := func(steps ...[]byte) []byte { return bytes.Join(steps, nil) }
	f.Add(join(step(stepMessage, 3, 'a', 'b', 'c'), step(stepCall), step(stepTake)))
	f.Add(join(step(stepPush, 0, 0, 0, 0, 0xFF, 0xFF, 0), step(stepRing, 1), step(stepCall), step(stepConnect)))
	f.Add(join(step(stepReserve, 4, 0, 0, 0, 2), step(stepReserve, 4, 0, 0, 0, 3), step(stepReserve, 4, 0, 0, 0, 6), step(stepCall)))
	f.Add(join(step(stepFill, 1), step(stepMessage, 1, 1), step(stepMessage, 1, 1), step(stepMessage, 1, 1), step(stepCall)))
	f.Add(join(step(stepCommands, 0, 1, 0, 0xFF), step(stepCommand, 0, 1, 2), step(stepCommand, 1, 0, 1), step(stepConnect), step(stepCall)))
	f.Add(join(step(stepTruncate, 0, 0, 0, 0, 0x10), step(stepMessage, 2, 1, 1), step(stepRemove, 1), step(stepConnect)))
	f.Add(join(step(stepShared, 1, 0, 0), step(stepShared, 2, 0, 0), step(stepClaim), step(stepReserve, 4, 0, 0, 0, 7), step(stepRelease, 4)))
	f.Add(join(step(stepRelease, 4), step(stepMessage, 1, 1), step(stepReserve, 4, 0, 0, 1, 7), step(stepBlock, 0, 0, 0, 1), step(stepMessage, 1, 1), step(stepCall)))
	f.Add(bytes.Repeat(step(stepConnect), mostHostileSteps))
	f.Add(bytes.Repeat(join(step(stepReserve, 1, 7, 0, 0, 7), step(stepClaim), step(stepConnect)), mostHostileSteps/3))
	shm.NewDoorbell(-1) // so that the descriptors that a process opens once are open
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 8*mostHostileSteps { // the input of a failure is easier to read if each of its bytes counts
			return
		}
		files, goroutines := openFiles(t), runtime.NumGoroutine()
		prefix := privatePrefix("h")
		cfg, book := hostileRun(t, prefix, b)
		eventually(t, "no descriptor and no goroutine is left", func() bool {
			return openFiles(t) <= files && runtime.NumGoroutine() <= goroutines
		})
		for _, r := range []hostquota.Resource{hostquota.Connections, hostquota.Handshakes, hostquota.Memory} {
			if n := book.Used(r); n != 0 {
				t.Errorf("%d %v are held", n, r)
			}
		}
		if n := mappings(t, prefix); n != 0 {
			t.Errorf("%d mappings of regions are left", n)
		}
		for _, dir := range []string{cfg.ShmDir, cfg.SocketDir} {
			list, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				if strings.Contains(e.Name(), prefix+"-") {
					t.Errorf("%s is left in %s", e.Name(), dir)
				}
			}
		}
	})
}

// mappings is how many mappings of regions with a prefix this process has. Of a removed file the mapping stays in the list.
func mappings(t *testing.T, prefix string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte(prefix+"-"))
}

// hostileStage is what one input needs. Its close leaves nothing behind, because the fuzzer repeats an input that fails in
// the same process: what one run has left would make the next ones fail for another reason.
type hostileStage struct {
	t      *testing.T
	prefix string
	book   *hostquota.Book
	ends   []na.Endpoint // the server first
	h      *hostile
}

// hostileRun takes the steps of an input and closes everything, also if the input fails.
func hostileRun(t *testing.T, prefix string, b []byte) (*Config, *hostquota.Book) {
	s := &hostileStage{t: t, prefix: prefix, book: hostquota.NewBook(hostquota.Limits{hostquota.Connections: hostileConnections, hostquota.Handshakes: 8})}
	defer s.close()
	echo := &echo{}
	server := s.open(Config{Listen: true, Handler: echo, Quota: s.book, hosts: hostsByID(func(id uint8) int32 { return 1 + int32(id)/100 })})
	echo.ep.Store(server)
	good := s.open(Config{})
	call := &innocent{caller: newCaller(good, lookup(t, good, server.own.String()))}
	h := s.hostile(server)
	h.announce()
	call.check(t, h)
	for ; len(b) >= 8; b = b[8:] {
		switch step := b[0] % hostileSteps; step {
		case stepCall:
			call.check(t, h)
		case stepConnect:
			if fresh := s.open(Config{}); !h.ruined {
				(&innocent{caller: newCaller(fresh, lookup(t, fresh, server.own.String()))}).check(t, h)
			}
		default:
			h.do(step, [7]byte(b[1:8]))
		}
	}
	call.check(t, h)
	return &server.cfg, s.book
}

func (s *hostileStage) open(cfg Config) *Endpoint {
	s.t.Helper()
	cfg.Prefix, cfg.Logger = s.prefix, slog.New(slog.DiscardHandler)
	ep, err := Open(context.Background(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.ends = append(s.ends, ep)
	e, _ := ep.(*Endpoint)
	return e
}

// hostile maps a server's region for the hostile peer. The peer's number is one that no endpoint of this process has: else it
// could end the connection of an innocent one with the same identity.
func (s *hostileStage) hostile(server *Endpoint) *hostile {
	s.t.Helper()
	h := &hostile{rawClient: &rawClient{t: s.t, cfg: &server.cfg, uri: server.ident.uri(), doorbell: -1, recvEvent: -1, sock: -1}, server: server, pipe: [2]int{-1, -1}}
	id, err := takeNumber()
	if err != nil {
		s.t.Fatal(err)
	}
	h.ident = identity{int32(os.Getpid()), id}
	s.h = h // closed from here on
	m, err := shm.Open(server.cfg.objectPath(h.uri), regionSize, extendedSize)
	if err != nil {
		s.t.Fatal(err)
	}
	h.r = newRegion(m)
	if err := h.r.check(server.ident); err != nil {
		s.t.Fatal(err)
	}
	if h.sock, err = openSocket(); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Pipe2(h.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		s.t.Fatal(err)
	}
	h.claim()
	return h
}

// close closes the hostile peer, the clients, and the server.
func (s *hostileStage) close() {
	if h := s.h; h != nil {
		closeAll(h.sock, h.doorbell, h.recvEvent, h.pipe[0], h.pipe[1])
		returnNumber(h.ident.id)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wholeLimit)
	defer cancel()
	for i := range s.ends {
		begun := time.Now()
		if err := s.ends[(i+1)%len(s.ends)].Close(ctx); err != nil {
			s.t.Errorf("after %v: %v", time.Since(begun), err)
		}
	}
	if s.h != nil && s.h.r != nil {
		if err := s.h.r.Close(); err != nil {
			s.t.Error(err)
		}
	}
}
