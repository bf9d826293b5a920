package rmem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"testing"

	"pgregory.net/rapid"
)

var steps = flag.Int("rmem.steps", 3000, "steps of the random histories in all; the long form is 1000000")

// modelQuota is what the model's server lends, in bytes.
const modelQuota = 1 << 20

// TestModel compares random histories of two clients and a server, over every way to reach it, with memory of the test's
// own: what is read was written, quotas are exact, what is gone is named, and nothing is lent in the end.
// parity: S22
func TestModel(t *testing.T) {
	eachLending(t, Config{Quota: modelQuota, HostQuota: modelQuota}, func(t *testing.T, l lending) {
		for left := *steps / 3; left > 0 && !t.Failed(); {
			rapid.Check(t, func(t *rapid.T) {
				m := &model{T: t, lending: l, ctx: t.Context()}
				left -= m.play()
			})
		}
	})
}

// model is a history.
type model struct {
	*rapid.T
	lending
	ctx  context.Context
	live []borrowed
	gone []borrowed
	used int64
}

// borrowed is a region in a history, with its memory as it has to be.
type borrowed struct {
	owner, other *Region
	mem          []byte
	why          error // if it is gone
}

// play plays one, and returns how many steps it had.
func (m *model) play() int {
	n := rapid.IntRange(1, 25).Draw(m.T, "steps")
	defer m.end()
	for range n {
		switch k := rapid.IntRange(0, 11).Draw(m.T, "what"); {
		case k == 0 || len(m.live) == 0:
			m.alloc()
		case k == 1:
			m.remove(ErrFreed)
		case k == 2 && len(m.gone) > 0:
			m.late()
		case k < 6:
			m.write()
		case k < 9:
			m.read()
		case k == 9:
			m.add()
		case k == 10:
			m.swap()
		default:
			m.copy()
		}
	}
	return n
}

// end frees all, whatever has become of the history.
func (m *model) end() {
	for _, l := range m.live {
		m.must(l.owner.Free(m.ctx))
	}
	if st := m.stats(); st.Used != 0 || len(st.Regions) != 0 {
		m.Errorf("%+v", st)
	}
}

func (m *model) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *model) want(err, want error) {
	m.Helper()
	if !errors.Is(err, want) {
		m.Fatalf("%v, want %v", err, want)
	}
}

func (m *model) alloc() {
	size := rapid.OneOf(rapid.Int64Range(1, 300), rapid.Int64Range(1, 200_000)).Draw(m.T, "size")
	on := AllocOptions{Wipe: rapid.Bool().Draw(m.T, "wipe")}
	r, err := m.owner.AllocWith(m.ctx, size, on)
	if m.used+size > modelQuota {
		m.want(err, ErrQuota)
		return
	}
	m.must(err)
	other, err := m.open(r.Handle())
	m.must(err)
	m.live, m.used = append(m.live, borrowed{owner: r, other: other, mem: make([]byte, size)}), m.used+size
}

// pick draws a region that is there, and its owner's or the other's view of it.
func (m *model) pick() (*borrowed, *Region) {
	l := &m.live[rapid.IntRange(0, len(m.live)-1).Draw(m.T, "which")]
	if rapid.Bool().Draw(m.T, "other") {
		return l, l.other
	}
	return l, l.owner
}

// part draws a part of a region.
func (m *model) part(l *borrowed) (off, n int) {
	off = rapid.IntRange(0, len(l.mem)-1).Draw(m.T, "offset")
	return off, rapid.IntRange(0, len(l.mem)-off).Draw(m.T, "bytes")
}

func (m *model) remove(why error) {
	l, _ := m.pick()
	m.must(l.owner.Free(m.ctx))
	m.used -= l.owner.Size()
	gone := *l
	gone.why = why
	m.gone = append(m.gone, gone)
	*l = m.live[len(m.live)-1]
	m.live = m.live[:len(m.live)-1]
}

// late asks for what is gone. Reads and writes are left out: over verbs they cost the connection.
func (m *model) late() {
	l := m.gone[rapid.IntRange(0, len(m.gone)-1).Draw(m.T, "which")]
	_, err := l.other.FetchAdd(m.ctx, 0, 1)
	m.want(err, l.why)
	m.want(l.owner.Free(m.ctx), l.why)
}

func (m *model) write() {
	l, r := m.pick()
	off, n := m.part(l)
	data := bytes.Repeat([]byte{rapid.Byte().Draw(m.T, "byte"), 1, 2}, n/3+1)[:n]
	copy(l.mem[off:], data)
	_, err := r.WriteAtContext(m.ctx, data, int64(off))
	m.must(err)
}

func (m *model) read() {
	l, r := m.pick()
	off, n := m.part(l)
	got := make([]byte, n)
	_, err := r.ReadAtContext(m.ctx, got, int64(off))
	m.must(err)
	if !bytes.Equal(got, l.mem[off:off+n]) {
		m.Fatalf("%d bytes at %d of %d are not what was written", n, off, len(l.mem))
	}
}

// word draws a word of a region, nil if it is too small for one.
func (m *model) word() (r *Region, at int64, word []byte) {
	l, r := m.pick()
	if len(l.mem) < 8 {
		return nil, 0, nil
	}
	i := 8 * rapid.IntRange(0, len(l.mem)/8-1).Draw(m.T, "word")
	return r, int64(i), l.mem[i : i+8]
}

func (m *model) add() {
	r, at, word := m.word()
	if r == nil {
		return
	}
	before, delta := binary.NativeEndian.Uint64(word), rapid.Uint64().Draw(m.T, "delta")
	got, err := r.FetchAdd(m.ctx, at, delta)
	m.must(err)
	if got != before {
		m.Fatalf("%#x at %d, want %#x", got, at, before)
	}
	binary.NativeEndian.PutUint64(word, before+delta)
}

func (m *model) swap() {
	r, at, word := m.word()
	if r == nil {
		return
	}
	old := binary.NativeEndian.Uint64(word)
	if rapid.Bool().Draw(m.T, "differs") {
		old++
	}
	swapped, err := r.CompareAndSwap(m.ctx, at, old, 77)
	m.must(err)
	if same := old == binary.NativeEndian.Uint64(word); swapped != same {
		m.Fatalf("swapped %v, the words are equal: %v", swapped, same)
	}
	if swapped {
		binary.NativeEndian.PutUint64(word, 77)
	}
}

func (m *model) copy() {
	from, source := m.pick()
	to, target := m.pick()
	if source == from.other || target == to.other { // views of one client: its server copies
		source, target = from.other, to.other
	}
	off, n := m.part(from)
	at := rapid.IntRange(0, len(to.mem)-1).Draw(m.T, "to")
	n = min(n, len(to.mem)-at)
	m.must(target.CopyFrom(m.ctx, int64(at), source, int64(off), int64(n)))
	copy(to.mem[at:at+n], from.mem[off:off+n])
}
