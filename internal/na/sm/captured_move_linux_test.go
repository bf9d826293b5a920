package sm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"
	"testing"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// capturedMove is a recorded transfer of a server in C. The replay uses memory of this process for both sides.
type capturedMove struct {
	kind   string // pull or push
	eager  bool   // the request contains the pulled bytes
	data   []byte
	mem    []byte   // the client's, in which the segments lie
	segs   [][]byte // of mem
	addrs  []uint64 // of segs
	owner  *Endpoint
	server *Endpoint
}

// capturedMoves returns the names of all recorded transfers.
func capturedMoves(t *testing.T) (names []string) {
	t.Helper()
	for _, kind := range []string{"pull", "push"} {
		found, err := filepath.Glob(filepath.Join("testdata", kind+"_*.txt"))
		if err != nil || len(found) < 8 {
			t.Fatalf("%d recordings of a %s, %v", len(found), kind, err)
		}
		for _, f := range found {
			names = append(names, filepath.Base(f))
		}
	}
	return names
}

// capturedSeed is the number of the test pattern that the recorded programs transfer.
const capturedSeed = 1

// capturedPattern returns n bytes of the programs' test pattern.
func capturedPattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(capturedSeed + i*31 + i>>8*17 + i>>16*5)
	}
	return b
}

// readMove makes memory for the transfer of a recording, and the messages that the programs in C send each other about it.
func (c *captured) readMove(t *testing.T, name string) {
	t.Helper()
	m := &capturedMove{eager: strings.Contains(name, "_eager")}
	var total, segments int
	if n, err := fmt.Sscanf(strings.ReplaceAll(strings.TrimSuffix(name, ".txt"), "_", " "), "%s %d %d", &m.kind, &total, &segments); n != 3 || err != nil {
		t.Fatalf("%s is named like no transfer: %v", name, err)
	}
	m.data = capturedPattern(total)
	each := total / segments
	const gap = 3 // so that segments do not follow one another
	m.mem = make([]byte, total+gap*segments)
	for i := range segments {
		n := each
		if i == segments-1 {
			n = total - each*i
		}
		seg := m.mem[i*(each+gap):][:n]
		if m.kind == "pull" {
			copy(seg, m.data[i*each:])
		}
		m.segs = append(m.segs, seg)
		m.addrs = append(m.addrs, hostmem.Addr(seg))
	}
	m.owner, m.server = memoryEnd(t), memoryEnd(t)
	r, err := m.owner.RegisterSegments(m.segs, m.access())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c.moves, c.calls = m, 1
	c.request, c.response = m.request(t), m.response()
}

// access returns the accesses that the client allows.
func (m *capturedMove) access() na.Access {
	if m.kind == "pull" {
		return na.ReadOnly
	}
	return na.WriteOnly
}

// Parts of a request: Mercury's header, the arguments in front of the descriptor's length, and the descriptor's own parts.
const (
	moveDescriptor = 76
	moveLists      = moveDescriptor + 16
	moveFlags      = moveDescriptor + 12
	descEager      = 0x04
	descList       = 0x40
)

// request returns the request of the client in C, with the addresses of m's memory, and without addresses in the descriptor's list.
func (m *capturedMove) request(t *testing.T) []byte {
	t.Helper()
	head := map[string]string{"pull": "d705000000007c9c7a02000000000000", "push": "d705000000007c9c7ae5000000000000"}[m.kind]
	le := binary.LittleEndian
	size := uint64(len(m.data))
	b := unhex(t, head)
	b = le.AppendUint64(b, 1)    // an empty string with its end,
	b = append(b, 0, 0, 0)       // and its two flags
	b = le.AppendUint64(b, 0)    // offset
	b = le.AppendUint64(b, size) // to transfer
	b = le.AppendUint64(b, size) // of the server's memory
	b = le.AppendUint64(b, 0)    // offset there
	b = le.AppendUint32(b, 1)    // segments there
	b = le.AppendUint32(b, capturedSeed)
	b = append(b, 0) // not to be canceled
	var d []byte
	d = le.AppendUint64(d, size)
	d = le.AppendUint32(d, uint32(len(m.segs)))
	flags := uint32(1) // readable
	if m.kind == "push" {
		flags = 2
	}
	if m.eager {
		flags |= descEager
	}
	if len(m.segs) > 1 {
		flags |= descList
	}
	d = le.AppendUint32(d, flags)
	for _, s := range m.segs {
		d = le.AppendUint64(d, 0)
		d = le.AppendUint64(d, uint64(len(s)))
	}
	var segs []segment
	for i, s := range m.segs {
		segs = append(segs, segment{m.addrs[i], uint64(len(s))})
	}
	h := appendHandle(nil, segs, m.access(), 0)
	d = le.AppendUint64(d, uint64(len(h)))
	d = append(d, h...)
	if m.eager {
		d = append(d, m.data...)
	}
	b = le.AppendUint64(b, uint64(len(d)))
	return append(b, d...)
}

// response returns the response of the server in C: success, the number of bytes transferred, and the hash of its memory.
func (m *capturedMove) response() []byte {
	h := fnv.New64a()
	_, _ = h.Write(m.data) // never fails
	b := make([]byte, 16+4)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(m.data)))
	return binary.LittleEndian.AppendUint64(b, h.Sum64())
}

// serve transfers memory by the handle in the request, as the recorded server did.
func (m *capturedMove) serve(t *testing.T, request []byte) error {
	t.Helper()
	if len(request) < moveLists {
		return errors.New("the request has no descriptor")
	}
	at := moveLists + 16*len(m.segs) + 8
	if m.eager != (request[moveFlags]&descEager != 0) {
		return errors.New("the request has data where it should have none, or the other way round")
	}
	if m.eager {
		if got := request[len(request)-len(m.data):]; !bytes.Equal(got, m.data) {
			return errors.New("the request has other data")
		}
		return nil
	}
	remote, err := m.server.ParseHandle(request[at:])
	if err != nil {
		return err
	}
	local := make([]byte, len(m.data))
	op, move := newTestOp(), m.server.Get
	if m.kind == "push" {
		copy(local, m.data)
		for _, s := range m.segs {
			clear(s)
		}
		move = m.server.Put
	}
	move(&op.Op, addrOfEnd(m.server, m.owner), []na.Fragment{{Remote: remote, Local: local}})
	if n, err := op.wait(t); n != int64(len(local)) || err != nil {
		return fmt.Errorf("%d bytes of %d: %w", n, len(local), err)
	}
	if got := bytes.Join(m.segs, nil); !bytes.Equal(local, m.data) || !bytes.Equal(got, m.data) {
		return errors.New("other bytes have been transferred")
	}
	return nil
}

// flips are the changes of byte i of a word that the mutation test makes: two of the short recordings, one of each byte of a transfer.
func (c *captured) flips(i int) []uint64 {
	if c.moves == nil {
		return []uint64{0x01, 0x80}
	}
	return []uint64{1 << i}
}

// maskedBytes returns how many bytes have masks.
func (c *captured) maskedBytes() (n int) {
	for _, m := range c.masks {
		n += m.last - m.first + 1
	}
	return n
}
