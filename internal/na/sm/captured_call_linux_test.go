package sm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
)

// captured is a recorded conversation of programs in C: see testdata/sum_waiting.txt.
type captured struct {
	client    identity
	datagrams []command
	phases    map[string][]capturedWord
	masks     map[string]*byteRange // by field: bytes that a replay replaces by its own

	calls             int    // how many there are, with the tags from 1 on
	request, response []byte // of each
	moves             *capturedMove
	region            []byte // what the region should be, in one replay after the other
}

// capturedWord is what a word of the server's region has become.
type capturedWord struct {
	off int
	v   uint64
}

func readCaptured(t *testing.T, name string) *captured {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	c := &captured{phases: map[string][]capturedWord{}, masks: map[string]*byteRange{}}
	c.region = make([]byte, regionSize)
	c.calls, c.request, c.response = capturedTags, unhex(t, capturedRequest), sumResponse(t)
	phase := ""
	for line := range strings.Lines(string(raw)) {
		switch words := strings.Fields(line); {
		case words[0] == "#" && words[1] == "mask":
			c.readMask(t, words[2:])
		case words[0] == "#" || words[0] == "server":
		case words[0] == "client":
			c.client, _ = parseIdentity(words[1])
		case words[0] == "datagram":
			c.datagrams = append(c.datagrams, command(unhexWord(t, words[1])))
		case len(words) == 1:
			phase = words[0]
		default:
			off, err := strconv.ParseInt(words[0], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			c.phases[phase] = append(c.phases[phase], capturedWord{int(off), unhexWord(t, words[1])})
		}
	}
	return c
}

func unhexWord(t *testing.T, s string) uint64 { return binary.LittleEndian.Uint64(unhex(t, s)) }

// as is the conversation with another client.
func (c *captured) as(ident identity) *captured {
	to := *c
	to.client, to.datagrams, to.phases = ident, nil, map[string][]capturedWord{}
	name := func(f field, v uint64) uint64 {
		m := c.masks[f.String()]
		for i := range 8 {
			if m.has(i) {
				v = v&^(0xFF<<(8*i)) | uint64(c.own(m, ident, i))<<(8*i)
			}
		}
		return v
	}
	for i, d := range c.datagrams {
		to.datagrams = append(to.datagrams, command(name(field{true, i}, uint64(d))))
	}
	for phase, words := range c.phases {
		for _, w := range words {
			to.phases[phase] = append(to.phases[phase], capturedWord{w.off, name(field{false, w.off}, w.v)})
		}
	}
	return &to
}

// own returns the byte that a replay by another client has at byte i of a word with a mask.
func (c *captured) own(m *byteRange, ident identity, i int) byte {
	switch m.place {
	case "":
		return byte(makeCommand(ident, 0, 0, 0) >> (8 * i))
	case "segment":
		return byte(c.moves.addrs[m.segment] >> (8 * (m.from + i - m.first)))
	}
	return 0 // of the list, which servers do not read
}

// messages are those whose descriptors appear in a phase, in order: what the buffers have in the same phase.
func (c *captured) messages(phase string) (list []capturedMessage) {
	words := map[int]uint64{}
	for _, w := range c.phases[phase] {
		words[w.off] = w.v
	}
	for _, w := range c.phases[phase] {
		if at := w.off - offPairs; at < 0 || at >= pairs*pairSize || at%pairRx < offSlots {
			continue
		}
		d := descriptor(w.v)
		var data []byte
		for off := 0; off < d.len(); off += 8 {
			data = binary.LittleEndian.AppendUint64(data, words[offBuffers+d.buffer()*bufferSize+off])
		}
		list = append(list, capturedMessage{d.tag(), data[:d.len()]})
	}
	return list
}

type capturedMessage struct {
	tag  uint32
	data []byte
}

// capturedServer plays the server of a recorded conversation.
type capturedServer struct {
	t    *testing.T
	b    []byte
	sock int // -1: it polls
	addr string
	fds  []int
}

func startCaptured(t *testing.T, prefix string, polls bool) *capturedServer {
	t.Helper()
	ident := identity{int32(os.Getpid()), 250}
	cfg, err := Config{Prefix: prefix}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	path := cfg.objectPath(ident.uri())
	m, err := shm.Create(path, regionSize)
	if err != nil {
		t.Fatal(err)
	}
	s := &capturedServer{t: t, b: m.Bytes(), sock: -1, addr: scheme + ident.uri()}
	t.Cleanup(func() {
		closeAll(append(s.fds, s.sock)...)
		for _, err := range []error{m.Close(), os.Remove(path), os.RemoveAll(cfg.socketDir(ident.uri()))} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	copy(s.b, goldenRegion(t))
	binary.LittleEndian.PutUint32(s.b, uint32(ident.pid))
	s.b[offID] = ident.id
	if polls {
		return s
	}
	if err := os.Mkdir(cfg.socketDir(ident.uri()), 0o700); err != nil {
		t.Fatal(err)
	}
	if s.sock, err = openSocket(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(s.sock, &unix.SockaddrUnix{Name: cfg.socketPath(ident.uri())}); err != nil {
		t.Fatal(err)
	}
	return s
}

// receive takes a datagram, which must be as recorded.
func (s *capturedServer) receive(want command) {
	s.t.Helper()
	var d datagram
	eventually(s.t, "a datagram", func() (ok bool) {
		var err error
		if d, ok, err = receiveDatagram(s.sock); err != nil {
			s.t.Fatal(err)
		}
		return ok
	})
	if d.cmd != want {
		s.t.Errorf("datagram %#x, want %#x", uint64(d.cmd), uint64(want))
	}
	s.fds = append(s.fds, d.fds...)
}

// expect waits until the region is as recorded. A client that sends datagrams does not put commands into the region: C's do
// that too, but nobody reads them.
func (s *capturedServer) expect(words []capturedWord) {
	s.t.Helper()
	for _, w := range words {
		if s.sock >= 0 && w.off >= offCommands && w.off < offPairMap {
			continue
		}
		var got uint64
		eventually(s.t, fmt.Sprintf("the word at %#x is %#x", w.off, w.v), func() bool {
			got = shm.Uint64(s.b, w.off).Load()
			return got == w.v
		})
	}
}

// apply has the region become as recorded, last the words that make others count.
func (s *capturedServer) apply(words []capturedWord) {
	for _, counts := range []bool{false, true} {
		for _, w := range words {
			if at := w.off - offPairs; (at >= 0 && at%pairRx == offProdHead) == counts {
				shm.Uint64(s.b, w.off).Store(w.v)
			}
		}
	}
}

// TestCapturedServer plays the server in C of recorded conversations, one that waits in the kernel and one that polls, to a
// client of this package, which leaves the same bytes in the region and the same datagrams as the client in C.
// parity(recorded): H126
func TestCapturedServer(t *testing.T) {
	for _, name := range []string{"sum_waiting.txt", "sum_polling.txt"} {
		t.Run(name, func(t *testing.T) {
			prefix := privatePrefix("g")
			client := open(t, Config{Prefix: prefix})
			c := readCaptured(t, name).as(client.ident)
			s := startCaptured(t, prefix, len(c.datagrams) == 0)
			asked, answers := c.messages("asked"), c.messages("answered")
			if len(asked) != 3 || len(answers) != 3 {
				t.Fatalf("%d requests and %d answers are recorded, want 3", len(asked), len(answers))
			}
			to := lookup(t, client, s.addr)
			var recv [3]*signal
			var bufs [3][bufferSize]byte
			for i, m := range asked {
				recv[i] = newSignal()
				client.RecvExpected(&recv[i].op, to, answers[i].tag, bufs[i][:])
				send := newSignal()
				client.SendRequest(&send.op, to, m.tag, m.data)
				if err := send.wait(t); err != nil {
					t.Fatal(err)
				}
			}
			if s.sock >= 0 {
				s.receive(c.datagrams[0])
				s.checkEventfds()
			}
			s.expect(c.phases["asked"])
			s.apply(c.phases["answered"])
			for i, m := range answers {
				if s.sock >= 0 {
					if err := addTokens(s.fds[1], 1); err != nil {
						t.Fatal(err)
					}
				}
				if err := recv[i].wait(t); err != nil || !bytes.Equal(bufs[i][:recv[i].op.N], m.data) {
					t.Errorf("answer %d: %x, %v; want %x", i, bufs[i][:recv[i].op.N], err, m.data)
				}
			}
			s.expect(c.phases["taken"])
			shut(t, client)
			if s.sock >= 0 {
				s.receive(c.datagrams[1])
				return
			}
			for _, w := range c.phases["left"] { // the server's words do not change by themselves
				if w.off < offPairMap && w.off != offCommands+offConsHead {
					s.expect([]capturedWord{w})
				}
			}
		})
	}
}

// checkEventfds looks at the descriptors that the client has sent: two eventfds, of which the server's has a token for each
// message and gives them one by one.
func (s *capturedServer) checkEventfds() {
	s.t.Helper()
	if len(s.fds) != 2 || !isEventfd(s.fds[0]) || !isEventfd(s.fds[1]) {
		s.t.Fatalf("descriptors %v; want two eventfds", s.fds)
	}
	for i := range 3 {
		var b [8]byte
		eventually(s.t, fmt.Sprint("token ", i), func() bool { // a goroutine adds them if the kernel has no asynchronous operations left
			n, err := unix.Read(s.fds[0], b[:])
			return n == 8 && err == nil
		})
		if n := binary.LittleEndian.Uint64(b[:]); n != 1 {
			s.t.Errorf("token %d gives %d", i, n)
		}
	}
	var b [8]byte
	if _, err := unix.Read(s.fds[0], b[:]); !errors.Is(err, unix.EAGAIN) {
		s.t.Errorf("a fourth token: %x, %v", b, err)
	}
}
