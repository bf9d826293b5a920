package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar/internal/iwarp/ddp"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Memory and requests of a runRig.
const (
	runSink   = 1 << 10 // bytes of the sink of each read
	runRecvs  = 3       // receives of runRecv bytes
	runRecv   = 128
	runAtomic = 2 // index among the requests of the atomic
	runTarget = 256
)

// runSizes are the sizes of the reads; that at runAtomic is an atomic. The last read makes sure that the stream goes on behind the others.
var runSizes = []int{700, 300, 8, 41, 0, 120}

// runRig is a device that has asked a peer for reads. Their responses come with messages of other kinds among them.
type runRig struct {
	*side
	p      *peer
	secure net.Conn  // p's connection inside TLS; nil: there is no TLS
	mem    *verbs.MR // of the reads and receives; peers may not write to it
	target *verbs.MR // for Writes, reads and atomics of the peer
	posted int
	base   uint64 // bytes of the connection that the device had received before out
	reqs   []rdmap.ReadRequest
	atomic rdmap.AtomicRequest
	out    [][]byte // FPDUs of the peer
	data   []byte   // that the responses bring
}

func newRunRig(t testing.TB, crc bool) *runRig {
	t.Helper()
	g := newRunSide(t, iwarp.Config{NoCRC: true}, verbs.LocalWrite)
	g.connect(t, crc)
	return g
}

// newRunSide makes the device and the memory of a runRig. access are the rights of the sinks.
func newRunSide(t testing.TB, cfg iwarp.Config, access verbs.Access) *runRig {
	t.Helper()
	g := &runRig{side: newSide(t, cfg, nil), data: make([]byte, 1<<10)}
	fill(g.data, 9)
	g.mem, g.target = g.regionWith(t, len(runSizes)*runSink+runRecvs*runRecv, access), g.region(t, runTarget)
	return g
}

// connect gives g a new connection. A former one is gone when it returns.
func (g *runRig) connect(t testing.TB, crc bool) {
	t.Helper()
	if g.p != nil {
		g.p.tc.Close()
		if err := g.qp.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the connection is gone", func() bool { return g.dev.Stats()["quota_connections"] == 0 })
	}
	p, l := dialRaw(t, g.side)
	g.accept(t, p, l, crc)
}

// accept has g accept the connection of p, which has dialed l.
func (g *runRig) accept(t testing.TB, p *peer, l *verbs.Listener, crc bool) {
	t.Helper()
	var err error
	if g.qp, err = g.pd.CreateQP(verbs.QPConfig{SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 16, MaxRecvWR: 16, SignalAll: true}); err != nil {
		t.Fatal(err)
	}
	qp := g.qp
	t.Cleanup(func() { _ = qp.Close() }) // it may be closed already
	req := request()
	req.CRC = crc
	p.accepted(g.side, l, req, verbs.ConnParam{})
	g.p = p
	g.p.open()
	g.p.barrier()
}

func (g *runRig) recvOff(i int) int { return len(runSizes)*runSink + i*runRecv }

// ask posts the requests, and receives.
func (g *runRig) ask(t testing.TB, recvs int) {
	t.Helper()
	if err := g.p.tc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	clear(g.mem.Bytes())
	clear(g.target.Bytes())
	g.reqs, g.out, g.posted = g.reqs[:0], nil, 0
	for i := range recvs {
		g.receive(t, i)
	}
	for i, n := range runSizes {
		op := verbs.OpRead
		if i == runAtomic {
			op = verbs.OpFetchAdd
		}
		wr := verbs.SendWR{ID: uint64(i), Op: op}
		if n > 0 {
			wr.SGL = []verbs.SGE{g.mem.SGE(i*runSink, n)}
		}
		g.side.send(t, wr)
		g.posted++
	}
	for i := range runSizes {
		if i == runAtomic {
			_, b := g.p.expect(rdmap.OpAtomicRequest)
			g.atomic, _ = rdmap.ParseAtomicRequest(b)
			g.reqs = append(g.reqs, rdmap.ReadRequest{})
			continue
		}
		_, b := g.p.expect(rdmap.OpReadRequest)
		req, _ := rdmap.ParseReadRequest(b)
		g.reqs = append(g.reqs, req)
	}
	g.base, _, _ = iwarp.Read(g.dev)
}

func (g *runRig) receive(t testing.TB, i int) {
	g.recv(t, verbs.RecvWR{ID: uint64(100 + i), SGL: []verbs.SGE{g.mem.SGE(g.recvOff(i), runRecv)}})
	g.posted++
}

func (g *runRig) add(h ddp.Header, payload []byte) { g.out = append(g.out, g.p.fpdu(h, payload)) }

// segment adds the segment of n bytes at off of the response to request i.
func (g *runRig) segment(i, off, n int, last bool) {
	h := tagged(rdmap.OpReadResponse, g.reqs[i].SinkSTag, g.reqs[i].SinkTO+uint64(off))
	h.Last = last
	g.add(h, g.data[off:off+n])
}

// respond adds the response to request i in segments, whose sizes are taken from sizes in turn. between, unless it is nil, adds what is before
// segment k.
func (g *runRig) respond(i int, sizes []int, between func(k int)) {
	if i == runAtomic {
		g.add(g.p.untagged(rdmap.OpAtomicResponse), rdmap.AppendAtomicResponse(nil, rdmap.AtomicResponse{RequestID: g.atomic.RequestID, Original: 77}))
		return
	}
	size := int(g.reqs[i].Size)
	if size == 0 {
		g.segment(i, 0, 0, true)
	}
	for k, off := 0, 0; off < size; k++ {
		if between != nil {
			between(k)
		}
		n := min(sizes[k%len(sizes)], size-off)
		g.segment(i, off, n, off+n == size)
		off += n
	}
}

// all adds the responses to all requests, in segments of 60 bytes, with what between adds before segment 3 of each of the first two.
func (g *runRig) all(between func()) {
	for i := range runSizes {
		g.respond(i, []int{60}, func(k int) {
			if k == 3 && i < 2 && between != nil {
				between()
			}
		})
	}
}

// finish adds an empty read, so that the device answers when it has processed all that was before.
func (g *runRig) finish() {
	g.add(g.p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{SinkSTag: sinkSTag}))
}

// pieces writes the stream in pieces of at most n bytes, and waits until each is read, as long as the device reads.
func (g *runRig) pieces(t testing.TB, n int, cuts ...int) {
	t.Helper()
	b, sent := bytes.Join(g.out, nil), 0
	for sent < len(b) {
		end := min(sent+n, len(b))
		for _, c := range cuts {
			if sent < c && c < end {
				end = c
			}
		}
		g.p.sync()
		if _, err := g.p.tc.Write(b[sent:end]); err != nil {
			return // the device has had enough
		}
		if sent = end; sent == len(b) {
			return
		}
		eventually(t, "the device reads", func() bool {
			n, over, stalled := iwarp.Read(g.dev)
			return over || stalled || n >= g.base+uint64(sent)
		})
	}
}

// fpdus writes the FPDUs one by one, so that no guess is of use.
func (g *runRig) fpdus(t testing.TB) {
	t.Helper()
	var cuts []int
	n := 0
	for _, b := range g.out {
		n += len(b)
		cuts = append(cuts, n)
	}
	g.pieces(t, n, cuts...)
}

// whole has the device find the whole stream at once.
func (g *runRig) whole(t testing.TB) {
	t.Helper()
	g.p.sync()
	unlock := iwarp.LockInput(g.dev, netip.AddrPort{})
	defer unlock()
	if _, err := g.p.tc.Write(bytes.Join(g.out, nil)); err != nil {
		t.Fatal(err)
	}
}

// readTarget adds a Read Request of the peer.
func (g *runRig) readTarget() {
	g.add(g.p.untagged(rdmap.OpReadRequest), rdmap.AppendReadRequest(nil, rdmap.ReadRequest{
		SinkSTag: 5, Size: 40, SourceSTag: g.target.RKey(), SourceTO: g.target.Remote().Addr}))
}

// runOutcome is what the program and the peer see of a stream.
type runOutcome struct {
	Completions []verbs.WC
	Memory      [][]byte // of requests and receives that have completed, and of the target
	Answers     []string // of the device
	Err         string
}

// outcome waits for the answer to finish or for the end of the connection.
func (g *runRig) outcome(t testing.TB) (o runOutcome) {
	t.Helper()
	for over := false; !over; {
		h, b, more := g.p.readNext()
		if !more { // after a Terminate of the peer
			<-g.conn.Done()
			o.Err = g.conn.Err().Error()
			break
		}
		_, op := rdmap.ParseControl(h.ULP)
		o.Answers = append(o.Answers, fmt.Sprintf("%v %x", op, b))
		switch {
		case op == rdmap.OpTerminate:
			<-g.conn.Done()
			o.Err = g.conn.Err().Error()
			over = true
		case op == rdmap.OpReadResponse && len(b) == 0:
			over = true
		}
	}
	g.complete(t, &o)
	return o
}

// complete adds the completions and the memory to o.
func (g *runRig) complete(t testing.TB, o *runOutcome) {
	t.Helper()
	var wc [64]verbs.WC
	for len(o.Completions) < g.posted {
		n, err := g.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 && o.Err == "" {
			break
		}
		o.Completions = append(o.Completions, wc[:n]...)
	}
	for i := range o.Completions {
		c := &o.Completions[i]
		c.QPNum = 0
		if c.Status != verbs.StatusSuccess {
			continue
		}
		if c.ID >= 100 {
			o.Memory = append(o.Memory, bytes.Clone(g.mem.Bytes()[g.recvOff(int(c.ID-100)):][:runRecv]))
			continue
		}
		at := g.mem.Bytes()[int(c.ID)*runSink:][:runSink]
		o.Memory = append(o.Memory, bytes.Clone(at))
		if size := runSizes[c.ID]; c.ID != runAtomic && (!bytes.Equal(at[:size], g.data[:size]) || !zero(at[size:])) {
			t.Errorf("read %d of %d bytes has other bytes", c.ID, size)
		}
	}
	o.Memory = append(o.Memory, bytes.Clone(g.target.Bytes()))
}

// runCase is a stream of a peer.
type runCase struct {
	name  string
	recvs int
	late  int // receives that are posted when a message is held
	wrong bool
	cut   int // playFuzzed sends as many bytes of the stream; 0: all
	build func(g *runRig)
	bad   bool // the device refuses it
}

func (c runCase) play(t testing.TB, g *runRig, deliver func(*runRig, testing.TB)) runOutcome {
	t.Helper()
	g.ask(t, c.recvs)
	c.build(g)
	g.finish()
	deliver(g, t)
	if c.late > 0 {
		g.holds(t, 1)
	}
	for i := range c.late {
		g.receive(t, c.recvs+i)
	}
	return g.outcome(t)
}

// runCases are streams with responses in segments. wrong says that a guess is wrong: not all segments but the last of a read have one size, or
// another message is between them.
func runCases() []runCase {
	between := func(f func(g *runRig)) func(g *runRig) {
		return func(g *runRig) { g.all(func() { f(g) }) }
	}
	sizes := func(sizes ...int) func(g *runRig) {
		return func(g *runRig) {
			for i := range runSizes {
				g.respond(i, sizes, nil)
			}
		}
	}
	instead := func(f func(g *runRig)) func(g *runRig) { // of segment 3 of read 0
		return func(g *runRig) {
			for k := range 3 {
				g.segment(0, 60*k, 60, false)
			}
			f(g)
			for k := 4; k < 8; k++ {
				g.segment(0, 60*k, 60, false)
			}
		}
	}
	return []runCase{
		{name: "equal segments", build: sizes(60)},
		{name: "segments of one byte", build: sizes(1)},
		{name: "one segment", build: sizes(1000)},
		{name: "more segments than guesses", build: sizes(7)},
		{name: "two sizes in turn", wrong: true, build: sizes(60, 40)},
		{name: "segments that grow", wrong: true, build: sizes(30, 31, 32, 33, 34, 35, 36, 37, 38)},
		{name: "segments that shrink", wrong: true, build: sizes(100, 99, 98, 97, 96, 95)},
		{name: "a pad that changes", wrong: true, build: sizes(61, 61, 62, 62, 63, 63)},
		{name: "an empty segment at the end", build: func(g *runRig) {
			for i, n := range runSizes {
				if i == runAtomic || n == 0 {
					g.respond(i, nil, nil)
					continue
				}
				for off := 0; off < n; off += 50 {
					g.segment(i, off, min(50, n-off), false)
				}
				g.segment(i, n, 0, true)
			}
		}},
		{name: "a write", wrong: true, build: between(func(g *runRig) { g.add(writeTo(g.target.Remote()), g.data[500:560]) })},
		{name: "an empty write", wrong: true, build: between(func(g *runRig) { g.add(tagged(rdmap.OpWrite, 0, 0), nil) })},
		{name: "a write in two segments", wrong: true, build: between(func(g *runRig) {
			h := writeTo(g.target.Remote())
			h.Last = false
			g.add(h, g.data[100:160])
			h.Last = true
			g.add(h.Advance(60), g.data[160:175])
		})},
		{name: "a send", recvs: 2, wrong: true, build: between(func(g *runRig) { g.add(g.p.untagged(rdmap.OpSend), g.data[200:260]) })},
		{name: "a send in two segments", recvs: 2, wrong: true, build: between(func(g *runRig) {
			h := g.p.untagged(rdmap.OpSend)
			h.Last = false
			g.add(h, g.data[100:160])
			h.Last = true
			g.add(h.Advance(60), g.data[160:175])
		})},
		{name: "a send that is held", late: 2, wrong: true, build: between(func(g *runRig) { g.add(g.p.untagged(rdmap.OpSend), g.data[200:260]) })},
		{name: "an immediate", recvs: 2, wrong: true, build: between(func(g *runRig) {
			g.add(g.p.untagged(rdmap.OpImmediate), []byte{1, 2, 3, 4, 0, 0, 0, 0})
		})},
		{name: "a read request", wrong: true, build: between((*runRig).readTarget)},
		{name: "an atomic request", wrong: true, build: between(func(g *runRig) {
			r := g.target.Remote()
			g.add(g.p.untagged(rdmap.OpAtomicRequest), rdmap.AppendAtomicRequest(nil, rdmap.FetchAdd(4, r.RKey, r.Addr, 3)))
		})},

		{name: "another offset", bad: true, build: instead(func(g *runRig) { g.segment(0, 181, 60, false) })},
		{name: "a segment twice", bad: true, build: instead(func(g *runRig) { g.segment(0, 120, 60, false) })},
		{name: "another key", bad: true, build: instead(func(g *runRig) {
			g.add(tagged(rdmap.OpReadResponse, g.reqs[0].SinkSTag+1, g.reqs[0].SinkTO+180), g.data[:60])
		})},
		{name: "the key and offset of a later read", bad: true, build: instead(func(g *runRig) { g.segment(1, 0, 60, false) })},
		{name: "a segment beyond the read", bad: true, build: instead(func(g *runRig) { g.segment(0, 180, 521, false) })},
		{name: "an early end", bad: true, build: instead(func(g *runRig) { g.segment(0, 180, 60, true) })},
		{name: "an empty early end", bad: true, build: instead(func(g *runRig) { g.segment(0, 180, 0, true) })},
		{name: "an empty segment", bad: true, build: instead(func(g *runRig) { g.segment(0, 180, 0, false) })},
		{name: "an atomic response", bad: true, build: instead(func(g *runRig) { g.respond(runAtomic, nil, nil) })},
		{name: "a write to the place of the segment", bad: true, build: instead(func(g *runRig) {
			g.add(tagged(rdmap.OpWrite, g.reqs[0].SinkSTag, g.reqs[0].SinkTO+180), g.data[180:240])
		})},
		{name: "a write elsewhere", bad: true, build: instead(func(g *runRig) { g.add(tagged(rdmap.OpWrite, 1, 1), g.data[:60]) })},
		{name: "a send without its number", bad: true, build: instead(func(g *runRig) {
			h := g.p.untagged(rdmap.OpSend)
			h.MSN += 7
			g.add(h, g.data[:60])
		})},
		{name: "another version", bad: true, build: instead(func(g *runRig) {
			h := tagged(rdmap.OpReadResponse, g.reqs[0].SinkSTag, g.reqs[0].SinkTO+180)
			h.Version = 2
			g.add(h, g.data[180:240])
		})},
		{name: "a terminate", bad: true, build: instead(func(g *runRig) {
			g.add(g.p.untagged(rdmap.OpTerminate), rdmap.AppendTerminate(nil, rdmap.TermLocalCatastrophic.Terminate()))
		})},
		{name: "a short ULPDU", bad: true, build: instead(func(g *runRig) { g.out = append(g.out, append([]byte{0, 3, 0xc1}, make([]byte, 64)...)) })},
	}
}

// TestRun plays each stream twice: the device finds all of it at once, and reads several FPDUs by one system call; and it finds them one by one. The
// program and the peer see no difference. After a wrong guess, bytes are moved; after right ones, none.
func TestRun(t *testing.T) {
	for _, crc := range []bool{true, false} {
		for _, c := range runCases() {
			t.Run(fmt.Sprintf("%s/crc=%t", c.name, crc), func(t *testing.T) {
				g, ref := newRunRig(t, crc), newRunRig(t, crc)
				ref.data = g.data
				before := g.dev.Stats()
				got := c.play(t, g, (*runRig).whole)
				after := g.dev.Stats()
				want := c.play(t, ref, (*runRig).fpdus)
				if d := differs(want.neutral(ref), got.neutral(g)); d != "" {
					t.Errorf("FPDU by FPDU (-) and at once (+):\n%s", d)
				}
				if c.bad != (got.Err != "") {
					t.Errorf("error of the connection: %q", got.Err)
				}
				if staged := after["rx_staged_bytes"] - before["rx_staged_bytes"]; !c.bad && (staged > 0) != c.wrong {
					t.Errorf("%d bytes were moved", staged)
				}
				if n := ref.dev.Stats()["rx_staged_bytes"]; !c.bad && n != before["rx_staged_bytes"] {
					t.Errorf("%d bytes were moved although FPDUs came one by one", n)
				}
			})
		}
	}
}

// neutral returns o without keys and addresses, which differ from device to device.
func (o runOutcome) neutral(g *runRig) runOutcome {
	o.Answers = slices.Clone(o.Answers)
	for i, a := range o.Answers {
		for _, r := range g.reqs {
			a = strings.ReplaceAll(a, fmt.Sprintf("%08x", r.SinkSTag), "key")
			a = strings.ReplaceAll(a, fmt.Sprintf("%08x", r.SinkSTag+1), "key+1")
		}
		o.Answers[i] = g.withoutAddresses(a)
	}
	if o.Err != "" {
		o.Err = "over"
	}
	return o
}

// withoutAddresses returns hexadecimal text with the addresses of g's memory replaced by offsets.
func (g *runRig) withoutAddresses(text string) string {
	const digits = 16
	var out strings.Builder
next:
	for text != "" {
		if len(text) >= digits {
			if to, err := strconv.ParseUint(text[:digits], 16, 64); err == nil {
				for n, mr := range []*verbs.MR{g.mem, g.target} {
					if off := to - mr.Remote().Addr; off < uint64(mr.Len()) {
						fmt.Fprintf(&out, "at%d.%d", n, off)
						text = text[digits:]
						continue next
					}
				}
			}
		}
		out.WriteByte(text[0])
		text = text[1:]
	}
	return out.String()
}

// differs returns how two outcomes differ, or "". cmp.Diff takes long for bytes that are equal.
func differs(want, got runOutcome) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// TestRunWrongCRC: a wrong CRC in any of the FPDUs of a run ends the connection there.
func TestRunWrongCRC(t *testing.T) {
	for k := range 10 {
		c := runCase{build: func(g *runRig) {
			g.all(nil)
			b := g.out[k]
			b[len(b)-20] ^= 1
		}}
		g, ref := newRunRig(t, true), newRunRig(t, true)
		got, want := c.play(t, g, (*runRig).whole), c.play(t, ref, (*runRig).fpdus)
		if d := differs(want.neutral(ref), got.neutral(g)); d != "" || got.Err == "" {
			t.Errorf("wrong CRC of FPDU %d, FPDU by FPDU (-) and at once (+):\n%s", k, d)
		}
		if !zero(g.mem.Bytes()[60*(k+1) : runSink]) {
			t.Errorf("wrong CRC of FPDU %d: bytes behind it are left in the sink", k)
		}
	}
}

// TestRunPieces delivers streams in pieces that end anywhere.
func TestRunPieces(t *testing.T) {
	for _, crc := range []bool{true, false} {
		for _, c := range runCases() {
			if c.bad || c.late > 0 {
				continue
			}
			g := newRunRig(t, crc) // one runRig for all streams, because the WC of an immediate reports the length of the last Write, which may be one of an earlier stream
			want := c.play(t, g, (*runRig).fpdus)
			sizes := []int{61, 100, 333, 1000}
			if c.name == "a send in two segments" {
				sizes = append(sizes, 1, 15, 16, 17)
			}
			for _, n := range sizes {
				got := c.play(t, g, func(g *runRig, t testing.TB) { g.pieces(t, n) })
				if d := differs(want, got); d != "" {
					t.Errorf("%s, crc %t, pieces of %d bytes:\n%s", c.name, crc, n, d)
				}
			}
		}
	}
}

// TestRunCut cuts a stream in two at each byte of its first FPDUs: three FPDUs come before a Send, the others after it.
func TestRunCut(t *testing.T) {
	for _, crc := range []bool{true, false} {
		g := newRunRig(t, crc)
		c := runCases()[slices.IndexFunc(runCases(), func(c runCase) bool { return c.name == "a send" })]
		want := c.play(t, g, (*runRig).whole)
		for cut := 1; cut < len(bytes.Join(g.out[:6], nil)); cut++ {
			got := c.play(t, g, func(g *runRig, t testing.TB) { g.pieces(t, 1<<20, cut) })
			if d := differs(want, got); d != "" {
				t.Fatalf("crc %t, cut at %d:\n%s", crc, cut, d)
			}
		}
	}
}

// FuzzReadResponse has a peer answer reads by a script: in segments of any sizes, with other messages among them, and with errors. The program and the peer
// see the same, whether the device finds the stream at once or FPDU by FPDU.
//
// fuzz:state
func FuzzReadResponse(f *testing.F) {
	f.Add([]byte{0, 60, 60, 60, 60, 60}, true)
	f.Add([]byte{0, 60, 60, 60, 0x81, 60, 60}, false)
	f.Add([]byte{1, 60, 60, 60, 0x82, 60, 60, 0x83, 9, 0x84, 7}, false)
	f.Add([]byte{3, 100, 100, 100, 100, 0x85, 100, 0x86, 0x87, 1, 1}, true)
	f.Add([]byte{0, 100, 100, 100, 100, 100, 100, 100, 0x88, 0x80, 90, 100, 100}, true)
	f.Add([]byte{0, 60, 60, 0x81, 60, 0x84, 60, 60, 0x81, 60, 0x84, 60}, true)
	f.Fuzz(func(t *testing.T, script []byte, crc bool) {
		c := runCase{build: func(g *runRig) { g.script(script) }}
		if len(script) > 0 {
			c.recvs = int(script[0]) % (runRecvs + 1)
			script = script[1:]
		}
		g := newRunRig(t, crc) // one device for both streams, because their keys must be equal: after a wrong length the device parses payload, and keys in it, as headers
		got := c.playFuzzed(t, g, (*runRig).whole)
		g.connect(t, crc)
		want := c.playFuzzed(t, g, (*runRig).fpdus)
		if d := differs(want, got); d != "" {
			t.Errorf("FPDU by FPDU (-) and at once (+):\n%s", d)
		}
	})
}

// playFuzzed is play for a stream that may be wrong in any way, with receives for all its messages. It ends the stream.
func (c runCase) playFuzzed(t testing.TB, g *runRig, deliver func(*runRig, testing.TB)) (o runOutcome) {
	t.Helper()
	g.ask(t, c.recvs)
	c.build(g)
	g.finish()
	for i, n := 0, 0; c.cut > 0 && i < len(g.out); i++ {
		b := g.out[i]
		if n += len(b); n >= c.cut {
			g.out = append(g.out[:i], b[:len(b)-(n-c.cut)])
		}
	}
	for i := c.recvs; i < runRecvs; i++ {
		g.receive(t, i)
	}
	deliver(g, t)
	_ = g.p.tc.CloseWrite() // the device may have ended the connection
	answers, err := io.ReadAll(g.p.tc)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal("peer reads:", err)
	}
	o.Answers = []string{fmt.Sprintf("%x", answers)}
	<-g.conn.Done()
	o.Err = "over"
	g.complete(t, &o)
	return o
}

// script adds the responses to the reads by a script: a byte below 0x80 is the size of the next segment, and one above adds something else.
func (g *runRig) script(s []byte) {
	next, off, sends, write := 0, 0, 0, g.target.Remote()
	for _, v := range s[:min(len(s), 60)] {
		switch v {
		case 0x81:
			g.add(writeTo(write), g.data[:50])
		case 0x82:
			if sends++; sends <= runRecvs {
				g.add(g.p.untagged(rdmap.OpSend), g.data[:60])
			}
		case 0x83:
			g.add(tagged(rdmap.OpWrite, 0, 0), nil)
		case 0x84:
			g.readTarget()
			write = g.target.RemoteAt(runTarget / 2) // the other half, because the device may take the bytes of the read after later Writes
		case 0x85:
			off++ // a gap in the response
		case 0x86:
			if n := len(g.out); n > 0 { // a wrong byte in the payload or the trailer of the last FPDU
				b := g.out[n-1]
				b[len(b)-1] ^= 1
			}
		case 0x87:
			if n := len(g.out); n > 0 { // a wrong length
				b := g.out[n-1]
				binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)+4)
			}
		default:
			if next == len(runSizes) {
				continue
			}
			if next == runAtomic {
				g.respond(next, nil, nil)
				next++
				continue
			}
			n := min(int(v&0x7f), max(runSizes[next]-off, 0))
			last := off+n >= runSizes[next]
			if g.segment(next, min(off, len(g.data)-n), n, last); last {
				next, off = next+1, -n
			}
			off += n
		}
	}
}
