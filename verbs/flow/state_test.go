package flow

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cinnabar/regmem"
	"cinnabar/verbs"
)

// TestHeader reads what it writes, and refuses the rest.
func TestHeader(t *testing.T) {
	h := header{kind: kindRecord, flags: inRing | askNow | answerSoon, length: 70000, offset: 64, granted: 5, known: 6, seq: 0xFFFFFFFF}
	b := make([]byte, headerLen)
	h.put(b)
	golden := []byte{1, 0x16, 0, 0, 0, 1, 0x11, 0x70, 0, 0, 0, 64, 0, 0, 0, 5, 0, 0, 0, 6, 0xFF, 0xFF, 0xFF, 0xFF}
	if got, err := parseHeader(b); err != nil || got != h || !bytes.Equal(b, golden) {
		t.Errorf("%+v, %v\n% x", got, err, b)
	}
	for name, c := range map[string]struct {
		at   int
		to   byte
		text string
	}{
		"kind 0":              {0, 0, "kind 0"},
		"kind 9":              {0, 9, "kind 9"},
		"flag":                {1, 0x20, "flags"},
		"padding":             {3, 1, "flags"},
		"control in the ring": {0, byte(kindControl), "payload"},
	} {
		bad := bytes.Clone(b)
		bad[c.at] = c.to
		if _, err := parseHeader(bad); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := range headerLen {
		if _, err := parseHeader(b[:n]); err == nil {
			t.Errorf("%d bytes are a header", n)
		}
	}
}

// TestHello reads what it writes, and refuses what no ring can be.
func TestHello(t *testing.T) {
	h := hello{records: 7, inline: 100, bytes: 4096, ring: verbs.RemoteAddr{Addr: 0x1122334455667788, RKey: 9}}
	b := append(h.append(nil), make([]byte, 20)...) // padded by the device
	if got, err := parseHello(b); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	for name, change := range map[string]func(*hello){
		"no record": func(h *hello) { h.records = 0 },
		"no ring":   func(h *hello) { h.bytes = 63 },
		"huge ring": func(h *hello) { h.bytes = mostBytes + 1 },
		"inline":    func(h *hello) { h.inline = 4097 },
	} {
		bad := h
		change(&bad)
		if _, err := parseHello(bad.append(nil)); err == nil {
			t.Error(name)
		}
	}
	for at, to := range map[int]byte{0: 'x', 4: 2, 5: 1} {
		bad := bytes.Clone(b)
		bad[at] = to
		if _, err := parseHello(bad); err == nil {
			t.Errorf("byte %d is %#x", at, to)
		}
	}
	for n := range helloLen {
		if _, err := parseHello(b[:n]); err == nil {
			t.Errorf("%d bytes are a hello", n)
		}
	}
}

// TestSendWindowRefuses refuses grants and answers that cannot be.
// parity: S17
func TestSendWindowRefuses(t *testing.T) {
	w := newSendWindow(4, 1024, 0)
	if w.longest() != 1024 || w.fits(1025) || !w.fits(1024) {
		t.Error("sizes")
	}
	w.send(100)
	if err := w.grant(2); err == nil {
		t.Error("two of one")
	}
	if err := errors.Join(w.grant(1), w.grant(0)); err != nil {
		t.Errorf("an old grant: %v", err)
	}
	if w.answered(true, false) == nil || w.answered(false, true) == nil {
		t.Error("answers without questions")
	}
	if w.askNow() {
		t.Error("asks though nothing is under way")
	}
	w.send(1)
	if !w.askNow() || w.askNow() {
		t.Error("asks once")
	}
}

// TestRecvWindowRefuses refuses records without credit, wrong releases and repeated requests.
// parity: S17
func TestRecvWindowRefuses(t *testing.T) {
	l := newRecvWindow(2, 100)
	arrive := func(seq uint32, n int) error { _, err := l.receive(seq, n); return err }
	if arrive(1, 5) == nil || arrive(0, 101) == nil {
		t.Error("a gap, and too much")
	}
	for _, wire := range []uint32{1 << 31, math.MaxUint32} { // nearer to 0 from below than from above
		if err := arrive(wire, 5); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("number %d is out of order: 0 is next", wire)) {
			t.Errorf("the first record has number %d: %v", wire, err)
		}
	}
	if err := errors.Join(arrive(0, 50), arrive(1, 50)); err != nil {
		t.Error(err)
	}
	if arrive(2, 0) == nil {
		t.Error("without a grant")
	}
	if !errors.Is(l.release(2), regmem.ErrForeign) || l.release(1) != nil || !errors.Is(l.release(1), regmem.ErrDoubleFree) {
		t.Error("releases")
	}
	if arrive(2, 0) == nil || l.granted() != 0 {
		t.Error("the first is still here")
	}
	if l.release(0) != nil || l.granted() != 2 || !errors.Is(l.release(0), regmem.ErrDoubleFree) {
		t.Error("both are released")
	}
	if l.request(true, true, 0) != nil || l.request(true, false, 0) == nil || l.request(false, true, 0) == nil {
		t.Error("questions")
	}
	if soon, now := l.due(); !soon || !now {
		t.Error("there is news")
	}
	if soon, now := l.due(); soon || now {
		t.Error("told twice")
	}
}

var steps = flag.Int("flow.steps", 20_000, "steps of the random histories of windows in all; the long form is 1000000")

// TestNoDeadlock plays random histories of the windows of both ends with messages under way both ways: in any order,
// the receiver never refuses, rings never overlap, questions are answered, and all records arrive.
// parity: S13 S17
func TestNoDeadlock(t *testing.T) {
	for left := *steps; left > 0 && !t.Failed(); {
		rapid.Check(t, func(t *rapid.T) { left -= history(t) })
	}
}

// history plays one and returns how many steps it had.
func history(t *rapid.T) (n int) {
	records, size := rapid.IntRange(1, 6).Draw(t, "records"), 64*rapid.IntRange(1, 8).Draw(t, "lines")
	p := pipe{t: t, w: newSendWindow(records, size, rapid.IntRange(0, 70).Draw(t, "inline")), l: newRecvWindow(records, size)}
	for sent := 0; sent < 40; n++ {
		switch rapid.IntRange(0, 2).Draw(t, "step") {
		case 0:
			if p.send(rapid.IntRange(0, p.w.longest()).Draw(t, "n")) {
				sent++
			}
		case 1:
			p.deliver()
		case 2:
			p.release(rapid.IntRange(0, 5).Draw(t, "which"))
		}
	}
	for range 1000 {
		p.deliver()
		p.release(0)
	}
	if records, bytes := p.w.credit.Outstanding(); p.w.askedNow || records != 0 && p.w.askedSoon || len(p.here) != 0 {
		t.Fatalf("%d records and %d bytes are under way, soon %v, now %v", records, bytes, p.w.askedSoon, p.w.askedNow)
	}
	if !p.send(p.w.longest()) && !p.settled() {
		t.Fatal("the longest record never fits")
	}
	return n
}

// pipe is a connection in one direction.
type pipe struct {
	t     *rapid.T
	w     *sendWindow
	l     *recvWindow
	there []message // to the receiver
	back  []header  // to the sender
	here  []uint64
}

type message struct {
	header
	n int
}

// send has a record of n bytes go if it may, and asks otherwise.
func (p *pipe) send(n int) bool {
	if !p.w.fits(n) {
		if p.w.askNow() {
			p.there = append(p.there, message{header: header{kind: kindControl, flags: askNow, known: uint32(p.w.credit.Granted())}})
			p.bounded()
		}
		return false
	}
	tk := p.w.send(n)
	m := message{header: header{kind: kindRecord, seq: uint32(tk.seq), known: uint32(p.w.credit.Granted())}, n: n}
	if tk.askSoon {
		m.flags = askSoon
	}
	p.there = append(p.there, m)
	return true
}

// deliver brings one message each way.
func (p *pipe) deliver() {
	if len(p.there) > 0 {
		m := p.there[0]
		p.there = p.there[1:]
		if err := p.l.request(m.flags&askSoon != 0, m.flags&askNow != 0, m.known); err != nil {
			p.t.Fatal(err)
		}
		if m.kind == kindRecord {
			seq, err := p.l.receive(m.seq, m.n)
			if err != nil {
				p.t.Fatal(err)
			}
			p.here = append(p.here, seq)
		}
		p.answer()
	}
	if len(p.back) > 0 {
		h := p.back[0]
		p.back = p.back[1:]
		if err := errors.Join(p.w.grant(h.granted), p.w.answered(h.flags&answerSoon != 0, h.flags&answerNow != 0)); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pipe) answer() {
	soon, now := p.l.due()
	h := header{granted: p.l.granted()}
	if soon {
		h.flags |= answerSoon
	}
	if now {
		h.flags |= answerNow
	}
	if h.flags != 0 {
		p.back = append(p.back, h)
		p.bounded()
	}
}

// bounded checks that there is always a receive for a control message.
func (p *pipe) bounded() {
	asks := 0
	for _, m := range p.there {
		if m.kind == kindControl {
			asks++
		}
	}
	if asks > 1 || len(p.back) > 2 {
		p.t.Fatalf("%d questions and %d answers are under way", asks, len(p.back))
	}
}

func (p *pipe) release(i int) {
	if i >= len(p.here) {
		return
	}
	if err := p.l.release(p.here[i]); err != nil {
		p.t.Fatal(err)
	}
	p.here = append(p.here[:i], p.here[i+1:]...)
	p.answer()
}

// settled asks once more and looks whether the longest record fits then.
func (p *pipe) settled() bool {
	for range 4 {
		p.deliver()
	}
	return p.w.fits(p.w.longest())
}

// FuzzHeader never panics, and what it accepts it writes the same.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{1, 0x16, 0, 0, 0, 1, 0x11, 0x70, 0, 0, 0, 64, 0, 0, 0, 5, 0, 0, 0, 6, 0xFF, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		out := make([]byte, headerLen)
		if h.put(out); !bytes.Equal(out, b[:headerLen]) {
			t.Errorf("% x became % x", b, out)
		}
	})
}
