package sm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
	"cinnabar/internal/peerbook"
	"cinnabar/internal/shm"
)

// What the recorded programs say to each other, three times, with the tags 1 to 3: Mercury's header of a request, and the
// arguments 40 and 2; the header of a response, and the sum.
const (
	capturedRequest  = "d705000000000b88ab9a0000000000002800000002000000"
	capturedResponse = "0000000000000000000000000000000000000000"
	capturedSum      = 42
	capturedSumAt    = 16
	capturedTags     = 3
)

// field is a part of a recorded conversation: bytes of a word of the region, or of a datagram.
type field struct {
	datagram bool
	at       int // offset of the word, or number of the datagram
}

func (f field) String() string {
	if f.datagram {
		return fmt.Sprint("datagram ", f.at)
	}
	return fmt.Sprintf("%05x", f.at)
}

// replay plays both ends of a conversation, one after the other and without any goroutine, in memory of its own.
type replay struct {
	*captured

	expected []byte // the region as the recording has it
	r        *region
	e        *Endpoint
	c        *conn
	requests [][]byte // that the server's end has got
}

// newReplay begins a conversation at an idle region of a server in C, for one of the ends.
func newReplay(t *testing.T, c *captured, m *shm.Region, golden []byte, server bool) *replay {
	t.Helper()
	copyWords(m.Bytes(), golden)
	copyWords(c.region, golden)
	p := &replay{captured: c, r: newRegion(m), expected: c.region}
	quiet := slog.New(slog.DiscardHandler)
	cfg, err := Config{Logger: quiet, Audit: audit.New(quiet), Handler: p, Listen: true}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	p.e = &Endpoint{cfg: cfg, ident: c.client, region: p.r, byID: make(map[int32]*conn)}
	p.e.conns.Store(new([]*conn))
	p.e.own = p.e.newAddr(p.e.ident, p.e.ident.uri())
	peer := p.e.newAddr(identity{int32(os.Getpid()), 77}, "peer")
	p.c = &conn{ep: p.e, addr: peer, reg: p.r, pair: 1, server: server, recvEvent: -1, pidfd: -1, done: make(chan struct{}), scratch: make([]byte, bufferSize)}
	p.c.role.held.Store(true) // nobody else tears it down
	return p
}

// copyWords copies src, whose length is a multiple of 8, to dst. The race detector does not see it, because it would look at each byte of a
// region that only one goroutine uses, some ten thousand times in TestCapturedMutations.
//
//go:norace
func copyWords(dst, src []byte) {
	for i := 0; i < len(src); i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], binary.LittleEndian.Uint64(src[i:]))
	}
}

// differs returns the offset of the first word in which a and b differ, or their length, which is a multiple of 8. The race detector does not
// see it, for the reason given at copyWords.
//
//go:norace
func differs(a, b []byte) int {
	for i := 0; i < len(a); i += 8 {
		if binary.LittleEndian.Uint64(a[i:]) != binary.LittleEndian.Uint64(b[i:]) {
			return i
		}
	}
	return len(a)
}

// begin connects the end.
func (p *replay) begin() error {
	if err := p.c.attach(); err != nil {
		return err
	}
	if !p.e.addConn(p.c) {
		return errClosing
	}
	p.c.addr.conn.Store(p.c)
	return nil
}

// Request implements [na.Handler].
func (p *replay) Request(m *na.Message) na.Task {
	p.requests = append(p.requests, append(binary.LittleEndian.AppendUint32(nil, m.Tag), m.Data...))
	return nil
}

// apply has the region become as the other end has left it.
func (p *replay) apply(phase string, from ...int) {
	for _, w := range p.phases[phase] {
		if len(from) == 0 || slices.Contains(from, w.off) {
			shm.Uint64(p.r.b, w.off).Store(w.v)
			binary.LittleEndian.PutUint64(p.expected[w.off:], w.v)
		}
	}
}

// compare returns an error unless the region is as it was recorded after a phase.
func (p *replay) compare(phase string) error {
	for _, w := range p.phases[phase] {
		binary.LittleEndian.PutUint64(p.expected[w.off:], w.v)
	}
	off := offBuffers + differs(p.r.b[offBuffers:offTail], p.expected[offBuffers:offTail])
	if off == offTail {
		return nil
	}
	return fmt.Errorf("%s: the word at %#x is %x, want %x", phase, off, p.r.b[off:off+8], p.expected[off:off+8])
}

// command returns an error unless a command is the one that a recorded client sends: to the socket, if there is a datagram n.
func (p *replay) command(cmd command, kind uint8, n int) error {
	want := makeCommand(p.client, p.c.pair, kind, 0)
	if cmd != want {
		return fmt.Errorf("the command in the ring is %#x, want %#x", uint64(cmd), uint64(want))
	}
	if n < len(p.datagrams) && p.datagrams[n] != want {
		return fmt.Errorf("datagram %d is %#x, want %#x", n, uint64(p.datagrams[n]), uint64(want))
	}
	return nil
}

func (p *replay) polls() bool { return len(p.datagrams) == 0 }

// client plays the client's end: its words must be as recorded, and it must understand the server's.
func (p *replay) asClient(t *testing.T) error {
	if pair := p.r.claimPair(); pair != p.c.pair {
		return fmt.Errorf("pair %d is the first that is free", pair)
	}
	if err := p.begin(); err != nil {
		return err
	}
	if err := p.r.commands.push(makeCommand(p.client, p.c.pair, commandReserved, 0)); err != nil { // in C clients that wait do too
		return err
	}
	ops := make([]*signal, p.calls)
	bufs := make([][bufferSize]byte, p.calls)
	for i := range ops {
		ops[i] = newSignal()
		ops[i].op.Begin()
		p.c.addr.expected.Add(uint32(i+1), peerbook.Waiter{Op: &ops[i].op, Buf: bufs[i][:]}, p.c.addr.activate)
		if ok, err := p.c.send(typeUnexpected, uint32(i+1), p.captured.request); !ok || err != nil {
			return fmt.Errorf("request %d: %v, %w", i, ok, err)
		}
	}
	if err := p.compare("asked"); err != nil {
		return err
	}
	p.apply("answered")
	if n := p.c.receive(receiveBatch); n != len(ops) || p.c.dead.Load() || p.c.out.waiting() != 0 {
		return fmt.Errorf("%d messages are taken, and %d not by the server; the connection has failed: %v", n, p.c.out.waiting(), p.c.dead.Load())
	}
	for i, op := range ops {
		select {
		case <-op.ch:
		default:
			return fmt.Errorf("answer %d has not come", i)
		}
		if got := bufs[i][:op.op.N]; op.op.Err != nil || !bytes.Equal(got, p.response) {
			return fmt.Errorf("answer %d is %x, %w", i, got, op.op.Err)
		}
	}
	if err := p.compare("taken"); err != nil || !p.polls() {
		return err
	}
	if err := p.r.commands.push(makeCommand(p.client, p.c.pair, commandReleased, 0)); err != nil {
		return err
	}
	p.apply("left", offPairMap, offCommands+offConsHead)
	return p.compare("left")
}

// sumResponse is what the server of the recorded sums answers.
func sumResponse(t *testing.T) []byte {
	t.Helper()
	b := unhex(t, capturedResponse)
	binary.LittleEndian.PutUint32(b[capturedSumAt:], capturedSum)
	return b
}

// asServer plays the server's end: its words must be as recorded, and it must understand the client's.
func (p *replay) asServer(t *testing.T) error {
	p.apply("asked")
	if !p.r.claimed(p.c.pair) {
		return errors.New("the client's pair is free")
	}
	cmd := command(p.r.commands.slot(0).Load())
	if p.polls() { // else the server reads only its socket
		var ok bool
		if cmd, ok = p.r.commands.pop(); !ok || p.r.commands.waiting() {
			return errors.New("there is not one command in the ring")
		}
	}
	if err := p.command(cmd, commandReserved, 0); err != nil {
		return err
	}
	if err := p.begin(); err != nil {
		return err
	}
	for i := range p.calls {
		if n := p.c.receive(1); n != 1 || len(p.requests) != i+1 {
			return fmt.Errorf("request %d has not come", i)
		}
		if want := append(binary.LittleEndian.AppendUint32(nil, uint32(i+1)), p.captured.request...); !bytes.Equal(p.requests[i], want) {
			return fmt.Errorf("request %d is %x, want %x", i, p.requests[i], want)
		}
		if p.moves != nil {
			if err := p.moves.serve(t, p.requests[i][4:]); err != nil {
				return err
			}
		}
		if ok, err := p.c.send(typeExpected, uint32(i+1), p.response); !ok || err != nil {
			return fmt.Errorf("answer %d: %v, %w", i, ok, err)
		}
	}
	if err := p.compare("answered"); err != nil {
		return err
	}
	p.apply("taken")
	if n := p.c.out.waiting(); n != 0 || p.r.bufferMap.Load() != ^uint64(0) {
		return fmt.Errorf("%d answers are not taken; copy buffers %#x are free", n, p.r.bufferMap.Load())
	}
	cmd = makeCommand(p.client, p.c.pair, commandReleased, 0)
	if p.polls() {
		p.apply("left", offCommands, offCommands+offSlots+slotSize)
		var ok bool
		if cmd, ok = p.r.commands.pop(); !ok {
			return errors.New("there is no last command in the ring")
		}
	}
	if err := p.command(cmd, commandReleased, 1); err != nil {
		return err
	}
	p.e.freePair(p.c)
	at := offPairs + p.c.pair*pairSize
	copy(p.expected[at:at+pairSize], p.r.b[at:]) // this package empties the rings of a pair that no client has, and C does not
	return p.compare("left")
}

// play plays both ends with this process in the place of the recorded client.
func (c *captured) play(t *testing.T, m *shm.Region, golden []byte) error {
	t.Helper()
	mine := c.as(identity{int32(os.Getpid()), 250})
	return errors.Join(newReplay(t, mine, m, golden, false).asClient(t), newReplay(t, mine, m, golden, true).asServer(t))
}

// fields are all parts of a conversation with their values.
func (c *captured) fields() map[string][]*uint64 {
	parts := map[string][]*uint64{}
	for i := range c.datagrams {
		key := field{true, i}.String()
		parts[key] = append(parts[key], (*uint64)(&c.datagrams[i]))
	}
	for phase := range c.phases {
		for i := range c.phases[phase] {
			w := &c.phases[phase][i]
			key := field{false, w.off}.String()
			parts[key] = append(parts[key], &w.v)
		}
	}
	return parts
}

// TestCapturedMutations plays recorded conversations of programs in C, as the client and as the server, and again with each
// byte changed. The replay notices all changes but those of masked bytes, of which the recording says where they are.
// parity(recorded): H126
func TestCapturedMutations(t *testing.T) {
	m, err := shm.Private(regionSize)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }() // nothing is to be saved
	golden := goldenRegion(t)
	for _, name := range append([]string{"sum_waiting.txt", "sum_polling.txt"}, capturedMoves(t)...) {
		t.Run(name, func(t *testing.T) {
			c := readCaptured(t, name)
			if strings.HasPrefix(name, "pu") { // pull or push
				c.readMove(t, name)
			}
			if err := c.play(t, m, golden); err != nil {
				t.Fatal(err)
			}
			masked, changed := 0, 0
			for key, values := range c.fields() {
				for _, v := range values {
					for i := range 8 {
						for _, flip := range c.flips(i) {
							*v ^= flip << (8 * i)
							err := c.play(t, m, golden)
							*v ^= flip << (8 * i)
							changed++
							if c.masks[key].has(i) {
								masked++
								if err != nil {
									t.Errorf("byte %d of %s is masked, and its change is noticed: %v", i, key, err)
								}
							} else if err == nil {
								t.Errorf("a change of byte %d of %s by %#x is not noticed", i, key, flip)
							}
						}
					}
				}
			}
			if want := len(c.flips(0)) * c.maskedBytes(); masked != want || changed < 200 {
				t.Errorf("%d of %d changes are of masked bytes, want %d", masked, changed, want)
			}
		})
	}
}

// byteRange is a range of the bytes of a word, both ends included.
type byteRange struct {
	first, last int
	place       string // "": they are the client's; otherwise bytes of a segment's address, in the list or in the memory handle
	segment     int
	from        int // the first byte of the address
}

// has reports whether byte i is in the range; the nil range has none.
func (b *byteRange) has(i int) bool { return b != nil && i >= b.first && i <= b.last }

// readMask reads "91080 0-4", "datagram 1 0-4", or "00160 4-7 segment 3 0": the rest of the word is from byte 0 of that address on.
func (c *captured) readMask(t *testing.T, words []string) {
	t.Helper()
	b := new(byteRange)
	if at := len(words) - 3; at > 0 && (words[at] == "list" || words[at] == "segment") {
		b.place = words[at]
		if n, err := fmt.Sscan(strings.Join(words[at+1:], " "), &b.segment, &b.from); n != 2 || err != nil {
			t.Fatalf("mask %q: %v", words, err)
		}
		words = words[:at]
	}
	if n, err := fmt.Sscanf(words[len(words)-1], "%d-%d", &b.first, &b.last); n != 2 || err != nil {
		t.Fatalf("mask %q: %v", words, err)
	}
	c.masks[strings.Join(words[:len(words)-1], " ")] = b
}
