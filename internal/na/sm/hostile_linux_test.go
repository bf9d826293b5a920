package sm

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// TestHostileDescriptors has clients send what none may: each loses its connection, and others do not notice.
func TestHostileDescriptors(t *testing.T) {
	server, _ := serve(t, Config{})
	good := open(t, Config{})
	for _, tt := range []struct {
		name string
		d    descriptor
	}{
		{"length", makeDescriptor(1, 0xFFFF, 0, typeUnexpected)},
		{"length 4097", makeDescriptor(1, 4097, 0, typeUnexpected)},
		{"buffer 64", makeDescriptor(1, 8, 64, typeUnexpected)},
		{"buffer 200", makeDescriptor(1, 8, 200, typeUnexpected)},
		{"free buffer", makeDescriptor(1, 8, 63, typeUnexpected)},
		{"inline without extension", makeDescriptor(1, 8, inlineBuffer, typeUnexpected)},
		{"type 1", makeDescriptor(1, 0, 0, 1)},
		{"type 2", makeDescriptor(1, 0, 0, typeExpectedOld)},
		{"type 9", makeDescriptor(1, 0, 0, 9)},
		{"type 255", makeDescriptor(1, 0, 0, 255)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newRaw(t, server)
			c.announce()
			c.request(1, []byte("good"))
			c.answer()
			before := server.stats.violations.Load()
			c.push(tt.d)
			eventually(t, "it is found out", func() bool { return server.stats.violations.Load() > before })
			calls(t, good, server.own.String())
			if server.region.claimed(c.pair) == false {
				t.Error("its pair is given to others while its process lives")
			}
			c.release()
		})
	}
	shut(t, good)
	settled(t, server)
}

// TestHostileInline has a client of this package claim a longer message than a slot has.
func TestHostileInline(t *testing.T) {
	server, _ := serve(t, Config{})
	c := newRaw(t, server)
	doorbell, err := unix.Eventfd(0, unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	c.doorbell = doorbell
	if c.recvEvent, err = unix.Eventfd(0, unix.EFD_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	c.datagram(makeCommand(c.ident, c.pair, commandReserved, extensionVersion), c.doorbell, c.recvEvent)
	c.push(makeDescriptor(1, inlineSize+1, inlineBuffer, typeUnexpected))
	eventually(t, "it is found out", func() bool { return server.stats.violations.Load() == 1 })
	c.release()
	settled(t, server)
}

// TestHostileCommands sends datagrams and commands that make no sense.
func TestHostileCommands(t *testing.T) {
	server, _ := serve(t, Config{})
	owner := newRaw(t, server)
	owner.announce()
	owner.request(1, nil)
	owner.answer()
	stranger := identity{owner.ident.pid, owner.ident.id + 1}
	free := 200
	pipe := make([]int, 2)
	if err := unix.Pipe(pipe); err != nil {
		t.Fatal(err)
	}
	defer closeAll(pipe...)
	doorbells := make([]int, 4)
	for i := range doorbells {
		doorbells[i], _ = unix.Eventfd(0, unix.EFD_NONBLOCK)
	}
	defer closeAll(doorbells...)
	claimed := mapRaw(t, server)
	claimed.pair = claimed.r.claimPair()
	for _, tt := range []struct {
		name string
		cmd  command
		fds  []int
	}{
		{"pair 0", makeCommand(stranger, 0, commandReserved, 0), doorbells[:2]},
		{"a pair that is not claimed", makeCommand(stranger, free, commandReserved, 0), doorbells[:2]},
		{"another's pair", makeCommand(stranger, owner.pair, commandReserved, 0), doorbells[:2]},
		{"another process", makeCommand(identity{1, 0}, claimed.pair, commandReserved, 0), doorbells[:2]},
		{"no process", makeCommand(identity{-5, 0}, claimed.pair, commandReserved, 0), doorbells[:2]},
		{"kind 0", makeCommand(stranger, claimed.pair, 0, 0), nil},
		{"kind 7", makeCommand(stranger, claimed.pair, 7, 0), nil},
		{"one descriptor", makeCommand(stranger, claimed.pair, commandReserved, 0), doorbells[:1]},
		{"four descriptors", makeCommand(stranger, claimed.pair, commandReserved, 0), doorbells},
		{"a pipe", makeCommand(stranger, claimed.pair, commandReserved, 0), pipe},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := server.stats.violations.Load()
			claimed.datagram(tt.cmd, tt.fds...)
			eventually(t, "it is found out", func() bool { return server.stats.violations.Load() > before })
		})
	}
	for _, b := range [][]byte{nil, {1}, make([]byte, 7), make([]byte, 9), make([]byte, 4096)} {
		before := server.stats.violations.Load()
		if err := unix.Sendto(claimed.sock, b, 0, &unix.SockaddrUnix{Name: server.cfg.socketPath(server.own.uri)}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is found out", func() bool { return server.stats.violations.Load() > before })
	}
	// What names others must not release them.
	claimed.datagram(makeCommand(stranger, owner.pair, commandReleased, 0))
	owner.request(2, []byte("still there"))
	if _, msg := owner.answer(); string(msg) != "still there" {
		t.Errorf("got %q", msg)
	}
	claimed.r.releasePair(claimed.pair)
	owner.release()
	settled(t, server)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil || len(fds) > 60 {
		t.Errorf("%d descriptors are open, %v", len(fds), err)
	}
}

// TestScribbled has a client write at random into everything of its own: its rings, its block, the command ring.
func TestScribbled(t *testing.T) {
	server, _ := serve(t, Config{})
	good := open(t, Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c := newRaw(t, server)
		c.announce()
		c.request(1, []byte("good"))
		tx, block := c.r.tx(c.pair), c.r.b[regionSize+c.pair*blockSize:][:blockSize]
		for range 20 {
			b := tx
			if rng.IntN(4) == 0 {
				b = block
			}
			shm.Uint32(b, rng.IntN(len(b)/4)*4).Store(rng.Uint32())
		}
		if err := addTokens(c.doorbell, 1); err != nil {
			t.Fatal(err)
		}
		c.release()
	}
	calls(t, good, server.own.String())
	shut(t, good)
	eventually(t, "all pairs are free", func() bool { n, _ := server.free(); return n == pairs-1 })
}

// TestTruncatedOfC has the file of a C server's region cut off: whoever touches it gets an error, and nobody a fault.
func TestTruncatedOfC(t *testing.T) {
	prefix := privatePrefix("t")
	s := start(t, "unmapper", prefixEnv+"="+prefix)
	addr := s.expect("ready ")
	client := open(t, Config{Prefix: prefix})
	c := newCaller(client, lookup(t, client, addr))
	c.e.SendRequest(&c.send.op, c.to, 1, []byte("before"))
	if err := c.send.wait(t); err != nil {
		t.Fatal(err)
	}
	path := client.cfg.objectPath(strings.TrimPrefix(addr, scheme))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	for _, from := range []*Endpoint{client, open(t, Config{Prefix: prefix})} {
		if _, err := newCaller(from, lookup(t, from, addr)).call(t, []byte("after")); na.KindOf(err) != na.Unreachable {
			t.Errorf("got %v", err)
		} else {
			t.Log(err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
}

// FuzzRegion owns a client's mapping: it writes what it is given, a place and a word at a time, while the server serves
// it and another client.
func FuzzRegion(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 1, 0, 0, 0})
	f.Add([]byte{0x10, 0, 0xFF, 0xFF, 0xFF, 0xFF, 9, 9, 0x20, 0, 1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, b []byte) {
		server, _ := serve(t, Config{})
		c := newRaw(t, server)
		c.announce()
		mine := [][]byte{c.r.tx(c.pair), c.r.rx(c.pair), c.r.b[regionSize+c.pair*blockSize:][:blockSize], c.r.commands.b}
		for i := 0; len(b) >= 8; i, b = i+1, b[8:] {
			m := mine[int(b[0])%len(mine)]
			off := (int(b[1]) | int(b[2])<<8) * 4 % len(m)
			shm.Uint32(m, off&^3).Store(uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24)
			_ = addTokens(c.doorbell, uint64(b[3])+1)
		}
		good := open(t, Config{})
		calls(t, good, server.own.String())
		shut(t, good)
	})
}

// TestPeerFillsItsDoorbell has a client fill the count of its own doorbell and then let the eventfd block, which it can do
// at any time because the flag is the open file's. A server that writes to the doorbell waits for ever, and a process that
// does so in a raw system call stops at its next garbage collection. The server is another process, so that this one
// does not stop.
func TestPeerFillsItsDoorbell(t *testing.T) {
	prefix := privatePrefix("b")
	s := start(t, "server", prefixEnv+"="+prefix, "GOGC=1")
	addr := s.expect("ready ")
	good := open(t, Config{Prefix: prefix})
	calls(t, good, addr)
	_, ident, err := parseTarget(addr, hostID)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c := mapRawAt(t, &good.cfg, ident).claim()
		c.announce()
		c.request(1, []byte("good"))
		c.answer()
		if err := addTokens(c.recvEvent, math.MaxUint64-1); err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(c.recvEvent, false); err != nil {
			t.Fatal(err)
		}
		for tag := range uint32(8) {
			c.request(2+tag, nil)
		}
		calls(t, good, addr)
	}
	s.Send("") // it closes
	eventually(t, "the server closes", func() bool {
		return na.KindOf(newCaller(good, lookup(t, good, addr)).try(t)) == na.Unreachable
	})
}

// try makes a call and returns its error.
func (c *caller) try(t testing.TB) error {
	t.Helper()
	_, err := c.call(t, nil)
	return err
}
