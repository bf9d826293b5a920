package cinnabar

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/codes"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na/sm"
)

// recordedClient plays the client of a recorded conversation of programs in C over na+sm, whose format is in
// internal/na/sm/testdata/sum_waiting.txt: by a file, as if it were no memory.
type recordedClient struct {
	t         *testing.T
	region    *os.File
	sock      int
	path      string // of the server's socket
	bells     [2]int // the server's, and this client's
	datagrams [][8]byte
	phases    map[string][]recordedWord
	masks     []recordedMask
}

// recordedMask are bytes of a request that hold a part of a segment's address.
type recordedMask struct {
	off         int64
	first, last int
	segment     int // -1: in the list that servers do not read
	from        int // the first byte of the address
}

type recordedWord struct {
	off int64
	b   [8]byte
}

// Parts of a region.
const (
	recordedPairs    = 0x41000
	recordedCommands = 0x91000
	recordedPairMap  = 0x92080
	recordedRing     = 0x280
	recordedSlots    = 0x80
)

// newRecordedClient reads a conversation, in which this process takes the place of the client.
func newRecordedClient(t *testing.T, name, addr string) *recordedClient {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("internal", "na", "sm", "testdata", name))
	must(t, err)
	uri := strings.TrimPrefix(addr, "na+sm://")
	c := &recordedClient{t: t, path: "/tmp/na_sm-" + uri + "/sock", phases: map[string][]recordedWord{}}
	phase := ""
	for line := range strings.Lines(string(raw)) {
		switch words := strings.Fields(line); {
		case words[0] == "#" && len(words) == 7 && words[1] == "mask":
			c.masks = append(c.masks, readMask(t, words[2:]))
		case words[0] == "#" || words[0] == "server" || words[0] == "client":
		case words[0] == "datagram":
			c.datagrams = append(c.datagrams, asThisProcess(recorded(t, words[1])))
		case len(words) == 1:
			phase = words[0]
		default:
			off, err := strconv.ParseInt(words[0], 16, 32)
			must(t, err)
			w := recordedWord{off, recorded(t, words[1])}
			if off >= recordedCommands+recordedSlots && off < recordedPairMap {
				w.b = asThisProcess(w.b)
			}
			c.phases[phase] = append(c.phases[phase], w)
		}
	}
	c.region, err = os.OpenFile("/dev/shm/na_sm-"+uri, os.O_RDWR, 0)
	must(t, err)
	c.sock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	for i := range c.bells {
		c.bells[i], err = unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		must(t, err)
	}
	t.Cleanup(func() {
		_ = c.region.Close() // nothing is lost
		for _, fd := range []int{c.sock, c.bells[0], c.bells[1]} {
			_ = unix.Close(fd)
		}
	})
	return c
}

func recorded(t *testing.T, s string) (b [8]byte) {
	t.Helper()
	if n, err := hex.Decode(b[:], []byte(s)); n != len(b) || err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return b
}

// asThisProcess puts this process, with an endpoint that nobody has, in the place of a command's.
func asThisProcess(cmd [8]byte) [8]byte {
	binary.LittleEndian.PutUint32(cmd[:], uint32(os.Getpid()))
	cmd[4] = 251
	return cmd
}

// apply changes the region as the client in C did. Words that make others count come last: positions in rings, commands.
func (c *recordedClient) apply(words []recordedWord) {
	c.t.Helper()
	rank := func(off int64) int {
		switch {
		case off == recordedCommands:
			return 2
		case off >= recordedPairs && off < recordedCommands && (off-recordedPairs)%recordedRing < recordedSlots:
			return 1
		}
		return 0
	}
	for r := range 3 {
		for _, w := range words {
			if rank(w.off) == r {
				_, err := c.region.WriteAt(w.b[:], w.off)
				must(c.t, err)
			}
		}
	}
}

// expect waits until the region is as it was after the server in C had done its part.
func (c *recordedClient) expect(phase string, words []recordedWord) {
	c.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	for _, w := range words {
		for got := c.word(w.off); got != w.b; got = c.word(w.off) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				c.t.Fatalf("%s: the word at %#x is %x, want %x", phase, w.off, got, w.b)
			}
		}
	}
}

func (c *recordedClient) word(off int64) (b [8]byte) {
	c.t.Helper()
	_, err := c.region.ReadAt(b[:], off)
	must(c.t, err)
	return b
}

// datagram sends a recorded datagram.
func (c *recordedClient) datagram(b [8]byte, fds ...int) {
	c.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	must(c.t, unix.Sendmsg(c.sock, b[:], rights, &unix.SockaddrUnix{Name: c.path}, 0))
}

// TestRecordedSharedMemoryClients plays the client in C of recorded conversations, one that waits in the kernel and one that
// polls, to an engine, which leaves the same bytes in the region as the server in C.
// parity(recorded): H126
func TestRecordedSharedMemoryClients(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	type args struct{ A, B int32 }
	type sum struct{ Ret int32 }
	for _, name := range []string{"sum_waiting.txt", "sum_polling.txt"} {
		t.Run(name, func(t *testing.T) {
			e, err := Listen(t.Context(), "na+sm", &Config{MaxHandlers: 1}) // which run in order then
			opened(t, e, err)
			must(t, NewRPC[args, sum]("sum", WithFlavor(Mercury)).Handle(e, func(_ context.Context, in args) (sum, error) {
				return sum{in.A + in.B}, nil
			}))
			c := newRecordedClient(t, name, e.Addr())
			waits := len(c.datagrams) > 0
			c.apply(c.phases["asked"])
			if waits {
				c.datagram(c.datagrams[0], c.bells[0], c.bells[1])
				for range 3 { // a request each
					_, err := unix.Write(c.bells[0], []byte{1, 0, 0, 0, 0, 0, 0, 0})
					must(t, err)
				}
			}
			c.expect("answered", c.phases["answered"])
			if waits {
				c.tokens(3)
			}
			c.apply(c.phases["taken"])
			if waits {
				c.datagram(c.datagrams[1])
				c.expect("left", c.phases["left"])
				return
			}
			var ours, theirs []recordedWord
			for _, w := range c.phases["left"] {
				if w.off == recordedCommands || w.off >= recordedCommands+recordedSlots && w.off < recordedPairMap {
					ours = append(ours, w)
				} else {
					theirs = append(theirs, w)
				}
			}
			c.apply(ours)
			c.expect("left", theirs)
		})
	}
}

// as replaces the client's address by that of an endpoint, so that the engine takes the endpoint for the owner of the lent memory.
func (c *recordedClient) as(e *Engine) {
	c.t.Helper()
	n, err := strconv.Atoi(e.Addr()[strings.LastIndexByte(e.Addr(), '-')+1:])
	must(c.t, err)
	for i := range c.datagrams {
		c.datagrams[i][4] = byte(n)
	}
	for _, phase := range c.phases {
		for i := range phase {
			if w := &phase[i]; w.off >= recordedCommands+recordedSlots && w.off < recordedPairMap {
				w.b[4] = byte(n)
			}
		}
	}
}

// tokens takes n tokens, which is how many there must be.
func (c *recordedClient) tokens(n int) {
	c.t.Helper()
	fds := []unix.PollFd{{Fd: int32(c.bells[1]), Events: unix.POLLIN}}
	var b [8]byte
	for i := range n {
		if ready, err := unix.Poll(fds, 30_000); ready != 1 || err != nil {
			c.t.Fatalf("token %d: %v", i, err)
		}
		_, err := unix.Read(c.bells[1], b[:])
		must(c.t, err)
	}
	if _, err := unix.Read(c.bells[1], b[:]); err != unix.EAGAIN {
		c.t.Errorf("there is another token: %v", err)
	}
}

func readMask(t *testing.T, words []string) (m recordedMask) {
	t.Helper()
	place := ""
	n, err := fmt.Sscanf(strings.Join(words, " "), "%x %d-%d %s %d %d", &m.off, &m.first, &m.last, &place, &m.segment, &m.from)
	if n != 6 || err != nil {
		t.Fatalf("mask %q: %v", words, err)
	}
	if place == "list" {
		m.segment = -1
	}
	return m
}

// lend replaces the recorded addresses of segments by those of this process, and addresses that servers do not read by others.
func (c *recordedClient) lend(segs [][]byte) {
	for _, m := range c.masks {
		for i := range c.phases["asked"] {
			w := &c.phases["asked"][i]
			if w.off != m.off {
				continue
			}
			for at := m.first; at <= m.last; at++ {
				if m.segment < 0 {
					w.b[at] ^= 0xFF
				} else {
					w.b[at] = byte(hostmem.Addr(segs[m.segment]) >> (8 * (m.from + at - m.first)))
				}
			}
		}
	}
}

// recordedMove has the request of the client in C for a transfer, and the response of the server in C.
type (
	recordedMove struct {
		Origin                               string
		Offset, Size, LocalSize, LocalOffset uint64
		LocalSegments, Seed                  uint32
		Cancel                               bool
		Bulk                                 BulkHandle
	}
	recordedMoved struct {
		Ret         int32
		Count, Hash uint64
	}
)

// recordedPattern fills b with the programs' test pattern.
func recordedPattern(b []byte, seed uint32) {
	for i := range b {
		b[i] = byte(int(seed) + i*31 + i>>8*17 + i>>16*5)
	}
}

// TestRecordedSharedMemoryTransfers plays the client in C of each recorded transfer to an engine, which reads or writes memory of
// this process instead of the client's, and leaves the same bytes in the region as the server in C.
// parity(recorded): H70 H71 H126
func TestRecordedSharedMemoryTransfers(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	names, err := filepath.Glob(filepath.Join("internal", "na", "sm", "testdata", "pu??_*.txt"))
	must(t, err)
	if len(names) < 16 {
		t.Fatalf("%d recordings", len(names))
	}
	for _, name := range names {
		name = filepath.Base(name)
		t.Run(name, func(t *testing.T) { replayTransfer(t, name) })
	}
}

func replayTransfer(t *testing.T, name string) {
	t.Helper()
	var total, segments int
	kind, rest, _ := strings.Cut(strings.TrimSuffix(name, ".txt"), "_")
	n, err := fmt.Sscanf(rest, "%d_%d", &total, &segments)
	if n != 2 || err != nil {
		t.Fatalf("%s is named like no transfer: %v", name, err)
	}
	e, err := Listen(t.Context(), "na+sm", nil)
	opened(t, e, err)
	lender, err := Open(t.Context(), "na+sm", nil) // whose memory it is, because an engine reaches its own process by registered memory only
	opened(t, lender, err)
	memory := make([]byte, total)
	if kind == "pull" {
		recordedPattern(memory, 1)
	}
	var segs [][]byte
	for i := range segments {
		segs = append(segs, memory[i*(total/segments):][:total/segments])
	}
	mode := map[string]Mode{"pull": ReadOnly, "push": WriteOnly}[kind]
	b, err := lender.Expose(mode, segs...)
	must(t, err)
	defer func() { must(t, b.Close()) }()
	must(t, NewRPC[recordedMove, recordedMoved](kind, WithFlavor(Mercury)).Handle(e, func(ctx context.Context, in recordedMove) (recordedMoved, error) {
		local := make([]byte, in.LocalSize)
		remote := in.Bulk.On(InfoFrom(ctx).Peer).Slice(int64(in.Offset), int64(in.Size))
		var err error
		if kind == "pull" {
			_, err = remote.ReadAt(ctx, local, 0)
		} else {
			recordedPattern(local, in.Seed)
			_, err = remote.WriteAt(ctx, local, 0)
		}
		h := fnv.New64a()
		_, _ = h.Write(local) // never fails
		return recordedMoved{int32(codes.Of(err)), in.Size, h.Sum64()}, nil
	}))
	c := newRecordedClient(t, name, e.Addr())
	c.as(lender)
	c.lend(segs)
	waits := len(c.datagrams) > 0
	c.apply(c.phases["asked"])
	if waits {
		c.datagram(c.datagrams[0], c.bells[0], c.bells[1])
		_, err := unix.Write(c.bells[0], []byte{1, 0, 0, 0, 0, 0, 0, 0})
		must(t, err)
	}
	c.expect("answered", c.phases["answered"])
	if waits {
		c.tokens(1)
	}
	want := make([]byte, total)
	recordedPattern(want, 1)
	if !bytes.Equal(memory, want) {
		t.Error("the memory holds other bytes after the transfer")
	}
	c.apply(c.phases["taken"])
}
