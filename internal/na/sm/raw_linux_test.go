package sm

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
)

// rawClient does by hand what a client in C does, and what none should.
type rawClient struct {
	t         testing.TB
	cfg       *Config
	r         *region
	uri       string
	ident     identity
	pair      int
	out       ring
	in        ring
	doorbell  int // rung for the server
	recvEvent int // rung by it
	sock      int
	tokens    int // read from recvEvent
}

var rawIDs atomic.Uint32

// newRaw maps a server's region and claims a pair.
func newRaw(t testing.TB, server *Endpoint) *rawClient {
	t.Helper()
	return mapRaw(t, server).claim()
}

// claim claims a pair.
func (c *rawClient) claim() *rawClient {
	c.t.Helper()
	if c.pair = c.r.claimPair(); c.pair < 0 {
		c.t.Fatal("no pair is free")
	}
	c.out, c.in = producer(c.r.tx(c.pair)), consumer(c.r.rx(c.pair))
	return c
}

// mapRaw maps a server's region.
func mapRaw(t testing.TB, server *Endpoint) *rawClient {
	t.Helper()
	return mapRawAt(t, &server.cfg, server.ident)
}

// mapRawAt maps the region of a server that may be in another process.
func mapRawAt(t testing.TB, cfg *Config, ident identity) *rawClient {
	t.Helper()
	m, err := shm.Open(cfg.objectPath(ident.uri()), regionSize, extendedSize)
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{
		t: t, cfg: cfg, r: newRegion(m), uri: ident.uri(), pair: -1, doorbell: -1, recvEvent: -1,
		ident: identity{int32(os.Getpid()), uint8(100 + rawIDs.Add(1)%100)},
	}
	if err := c.r.check(ident); err != nil {
		t.Fatal(err)
	}
	if c.sock, err = openSocket(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeAll(c.sock, c.doorbell, c.recvEvent)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// announce sends the datagram as a client in C does that sleeps.
func (c *rawClient) announce() {
	c.t.Helper()
	var err error
	for _, fd := range [...]*int{&c.doorbell, &c.recvEvent} {
		if *fd, err = unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
			c.t.Fatal(err)
		}
	}
	c.datagram(makeCommand(c.ident, c.pair, commandReserved, 0), c.doorbell, c.recvEvent)
}

// announceBusy puts the command into the ring, as a client does that never sleeps.
func (c *rawClient) announceBusy() {
	c.t.Helper()
	if err := c.r.commands.push(makeCommand(c.ident, c.pair, commandReserved, 0)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) datagram(cmd command, fds ...int) {
	c.t.Helper()
	e := &Endpoint{sock: c.sock}
	eventually(c.t, "the server reads its socket", func() bool {
		err := e.sendCommand(c.cfg.socketPath(c.uri), cmd, fds...)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

func (c *rawClient) release() {
	c.t.Helper()
	c.datagram(makeCommand(c.ident, c.pair, commandReleased, 0))
}

// request sends a message as C does.
func (c *rawClient) request(tag uint32, msg []byte) {
	c.t.Helper()
	b := 0
	if len(msg) > 0 {
		eventually(c.t, "a copy buffer", func() bool {
			b = claimBit(c.r.bufferMap)
			return b >= 0
		})
		copy(c.r.buffer(b), msg)
	}
	c.push(makeDescriptor(tag, len(msg), b, typeUnexpected))
}

// push sends a descriptor and rings.
func (c *rawClient) push(d descriptor) {
	c.t.Helper()
	eventually(c.t, "room in the ring", func() bool { return !c.out.full() })
	c.out.push(d)
	if c.doorbell >= 0 {
		if err := addTokens(c.doorbell, 1); err != nil {
			c.t.Error(err)
		}
	}
}

// answer waits for a message, for which a client that sleeps wants a token.
func (c *rawClient) answer() (d descriptor, msg []byte) {
	c.t.Helper()
	if c.recvEvent >= 0 {
		c.token()
	}
	eventually(c.t, "an answer", func() (ok bool) {
		d, _, ok = c.in.peek()
		return ok
	})
	if n := d.len(); n > 0 {
		msg = append(msg, c.r.buffer(d.buffer())[:n]...)
		releaseBit(c.r.bufferMap, d.buffer())
	}
	c.in.advance()
	return d, msg
}

// token waits for one token.
func (c *rawClient) token() {
	c.t.Helper()
	fds := [1]unix.PollFd{{Fd: int32(c.recvEvent), Events: unix.POLLIN}}
	for end := time.Now().Add(testLimit); time.Now().Before(end); {
		if n, err := unix.Poll(fds[:], 1000); n > 0 && err == nil {
			var b [8]byte
			if n, err := unix.Read(c.recvEvent, b[:]); n == 8 && err == nil {
				c.tokens++
				return
			}
		}
	}
	c.t.Fatalf("no token within %v\n%s", testLimit, traces())
}

// moreTokens tells whether there are tokens without a message.
func (c *rawClient) moreTokens() bool {
	var b [8]byte
	n, err := unix.Read(c.recvEvent, b[:])
	return n == 8 && err == nil
}

// addTokens adds n to an eventfd of a test's own.
func addTokens(fd int, n uint64) error {
	_, err := unix.Write(fd, binary.NativeEndian.AppendUint64(nil, n))
	return err
}

// eventually waits until cond holds, which takes moments.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	if cond() {
		return
	}
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for end := time.Now().Add(testLimit); time.Now().Before(end); {
		<-tick.C
		if cond() {
			return
		}
	}
	t.Fatalf("not within %v: %s\n%s", testLimit, what, traces())
}

// freePairs is how many pairs of a region are free, and which copy buffers.
func (e *Endpoint) free() (pairs int, buffers uint64) {
	for w := range pairWords {
		pairs += popcount(e.region.pairMap(w).Load())
	}
	return pairs, e.region.bufferMap.Load()
}

func popcount(v uint64) (n int) {
	for ; v != 0; v &= v - 1 {
		n++
	}
	return n
}

// settled waits until all of a server's pairs and buffers are free.
func settled(t testing.TB, e *Endpoint) {
	t.Helper()
	eventually(t, "all pairs and buffers are free", func() bool {
		p, b := e.free()
		return p == pairs-1 && b == ^uint64(0)
	})
}
