package ofitcp

import (
	"strings"
	"sync"
	"testing"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

// TestTooManyUnread: a peer that leaves too many answers unread loses its connection; others keep theirs, also of that
// host.
func TestTooManyUnread(t *testing.T) {
	const conns = 4
	e := openEcho(t, Config{})
	var raws [conns]*raw
	var dialed [conns]*rawConn
	for i := range raws {
		raws[i] = newRaw(t)
		dialed[i], _ = raws[i].dial(e, 1)
		raws[i].ping(dialed[i], 1)
	}
	to := raws[0].lookup(e)
	own := to.(*peer).conn.Load()
	own.answers.Add(maxAnswers)
	raws[1].ping(dialed[1], 2)
	op := newCall()
	e.SendExpected(&op.op, to, 2, make([]byte, e.Limits().ResponseRoom))
	err := op.park(t)
	wantKind(t, err, na.Unreachable)
	if !strings.Contains(err.Error(), "the peer has left") || !strings.Contains(err.Error(), "limit") {
		t.Errorf("error without its reason: %v", err)
	}
	if b := dialed[0].closed(); len(b) > 0 {
		t.Errorf("got % x", b)
	}
	own.answers.Add(-maxAnswers)
	for i := 1; i < conns; i++ {
		raws[i].ping(dialed[i], 3)
	}
}

// TestUnreadOfDead: what waits for a connection that ends, or is cancelled, counts no more.
func TestUnreadOfDead(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	first := r.send(e, 1, "")
	c := r.accept(1)
	if err := first.park(t); err != nil {
		t.Fatal(err)
	}
	own := to.(*peer).conn.Load()
	var ops []*call
	for len(ops) < 3000 && own.answers.Load() < 100 {
		op := newCall()
		ops = append(ops, op)
		e.SendExpected(&op.op, to, uint32(len(ops)), make([]byte, e.Limits().ResponseRoom+e.Limits().MaxResponse))
	}
	waiting := own.answers.Load()
	if waiting == 0 {
		t.Fatal("none waits")
	}
	last := ops[len(ops)-1]
	e.Cancel(&last.op)
	wantKind(t, last.park(t), na.Canceled)
	if n := own.answers.Load(); n != waiting-1 {
		t.Errorf("%d wait after one of %d was cancelled", n, waiting)
	}
	_ = c.Close()
	for _, op := range ops[:len(ops)-1] {
		_ = op.park(t)
	}
	if n := own.answers.Load(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// TestAbandonedReads: reads that were given up count until they are answered, so that their number is bounded.
func TestAbandonedReads(t *testing.T) {
	e, r := openEndpoint(t, Config{}), newRaw(t)
	to := r.lookup(e)
	c := r.connect(e)
	own := to.(*peer).conn.Load()
	local := make([]byte, 1)
	get := func() *call {
		op := newCall()
		e.Get(&op.op, to, []na.Fragment{{Remote: &remote{size: 1, access: na.ReadOnly}, Local: local}})
		return op
	}
	remembered := func() int {
		op := get()
		e.Cancel(&op.op) // before it was sent, perhaps
		wantKind(t, op.park(t), na.Canceled)
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.reads.len()
	}
	until(t, "as many reads as there may be", func() bool { return remembered() >= maxExpects })
	for range 100 {
		if n := remembered(); n != maxExpects {
			t.Fatalf("%d reads are remembered, want at most %d", n, maxExpects)
		}
	}
	last := get() // goes when there is room
	for i := range maxExpects + 1 {
		if m, _ := c.message(); m.op != opReadReq {
			t.Fatalf("message %d: %+v", i, m)
		}
		c.write(append(appendReadRsp(nil, 1), byte(i)))
	}
	if err := last.park(t); err != nil || local[0] != byte(maxExpects&0xff) {
		t.Errorf("%v, got %d", err, local[0])
	}
}

// flood writes requests, which e echoes, until the connection is paused and takes no more. It returns how many were written and
// the rest of the last one.
func (r *raw) flood(t *testing.T, c *rawConn, own *conn, size int) (requests int, rest []byte) {
	t.Helper()
	if err := c.SetWriteBuffer(16 << 10); err != nil { // fewer requests that have left and are not read
		t.Fatal(err)
	}
	req := r.rawRequest(1, make([]byte, size))
	sent := 0
	until(t, "the end of the reading", func() bool {
		paused := own.paused.Load()
		_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := c.Write(req[sent%len(req):])
		sent += n
		return err != nil && n == 0 && paused && own.paused.Load()
	})
	_ = c.SetDeadline(time.Now().Add(4 * patience)) // it is much, for the race detector on a busy machine
	requests = sent / len(req)
	if at := sent % len(req); at > 0 {
		requests++
		rest = req[at:]
	}
	return requests, rest
}

// TestUnreadAnswersEndReading: a connection whose peer does not read its answers reads no more requests, keeps a bounded number of
// bytes, and goes on when the peer reads.
func TestUnreadAnswersEndReading(t *testing.T) {
	e := openEcho(t, Config{})
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	r.ping(c, 1)
	own := r.lookup(e).(*peer).conn.Load()
	n, rest := r.flood(t, c, own, 3000)
	if unsent := own.unsent.Load(); unsent < maxUnread/2 || unsent > maxUnread+64<<10 {
		t.Errorf("%d bytes are unread; reading stops at %d", unsent, maxUnread)
	}
	if handled := e.Stats().RequestsReceived; handled >= uint64(n) {
		t.Errorf("all of %d requests were handled", n)
	}
	other := newRaw(t)
	oc, _ := other.dial(e, 1)
	other.ping(oc, 1)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Write(rest) }) // an error shows in the answers
	for i := range n {
		if m, _ := c.message(); m.op != opTag || m.tag != 1 {
			t.Fatalf("answer %d: %+v", i, m)
		}
	}
	wg.Wait()
	if a, b := own.answers.Load(), own.unsent.Load(); a != 0 || b != 0 {
		t.Errorf("%d answers of %d bytes count after all are read", a, b)
	}
	r.ping(c, 2)
}

// TestUnreadAnswersOfHost: a connection with unread answers reads no more requests while its host has used up its share of unread
// answers.
func TestUnreadAnswersOfHost(t *testing.T) {
	var l hostquota.Limits
	l[hostquota.Unsent] = 1 << 20
	book := hostquota.NewBook(l)
	e := openEcho(t, Config{Quota: book})
	r := newRaw(t)
	account := book.Account(hostquota.HostOf(r.addr().Addr()))
	share := hostquota.Most(1<<20, 0)
	if err := account.Take(hostquota.Unsent, share); err != nil {
		t.Fatal(err)
	}
	c, _ := r.dial(e, 1)
	r.ping(c, 1) // because its answer is read
	own := r.lookup(e).(*peer).conn.Load()
	n, rest := r.flood(t, c, own, 3000)
	if unsent := own.unsent.Load(); unsent > maxUnread/2 {
		t.Errorf("%d bytes are unread", unsent)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Write(rest) }) // an error shows in the answers
	for i := range n {
		if m, _ := c.message(); m.op != opTag || m.tag != 1 {
			t.Fatalf("answer %d: %+v", i, m)
		}
	}
	wg.Wait()
	account.Give(hostquota.Unsent, share)
}

// TestUnreadAnswersAndOwnCall: an endpoint that waits for a response reads it although the peer leaves answers unread, because the
// peer may wait for a response of this endpoint likewise.
func TestUnreadAnswersAndOwnCall(t *testing.T) {
	e := openEcho(t, Config{})
	r := newRaw(t)
	c, _ := r.dial(e, 1)
	r.ping(c, 1)
	to := r.lookup(e)
	_, rest := r.flood(t, c, to.(*peer).conn.Load(), 3000)
	ans := newCall()
	e.RecvExpected(&ans.op, to, 7, make([]byte, 100))
	req := r.send(e, 7, "") // cannot leave, as the peer reads nothing
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Write(append(rest, rawExpected(7, []byte("answer"))...)) }) // an error shows in the operation
	if err := ans.park(t); err != nil {
		t.Error(err)
	}
	wg.Wait()
	_ = c.Close()
	_ = req.park(t) // however it ends
}

// TestFloodOfEachOther makes two endpoints answer many requests of each other at once. The answers have more bytes than maxUnread
// and the kernel's buffers hold, so that both endpoints stop reading while they wait for answers. All calls of both succeed.
func TestFloodOfEachOther(t *testing.T) {
	const (
		calls  = 512
		answer = 64 << 10 // bytes; all are 32 times maxUnread
	)
	var handled sync.WaitGroup
	handled.Add(2 * calls)
	type request struct {
		from na.Addr
		tag  uint32
	}
	open := func() (*Endpoint, *[]request) {
		var list []request // appended by the reader of the only connection
		e := openEndpoint(t, Config{Listen: true, MaxResponse: answer, Handler: handlerFunc(func(m *na.Message) na.Task {
			list = append(list, request{m.From, m.Tag})
			handled.Done()
			return nil
		})})
		return e, &list
	}
	a, ofA := open()
	b, ofB := open()
	newAnswers := func(from, to *Endpoint) (answers []*call) {
		addr := addrOf(t, from, to)
		for tag := range uint32(calls) {
			send, recv := newCall(), newCall()
			from.RecvExpected(&recv.op, addr, tag, make([]byte, answer))
			from.SendRequest(&send.op, addr, tag, make([]byte, from.Limits().RequestRoom))
			if err := send.park(t); err != nil {
				t.Fatal(err)
			}
			answers = append(answers, recv)
		}
		return answers
	}
	answers := append(newAnswers(a, b), newAnswers(b, a)...)
	handled.Wait()
	if n := a.Stats().Open + b.Stats().Open; n != 2 {
		t.Fatalf("%d ends of connections are open, want 2", n)
	}
	var wg sync.WaitGroup
	for e, list := range map[*Endpoint]*[]request{a: ofA, b: ofB} {
		wg.Go(func() {
			for _, r := range *list {
				op := newCall()
				e.SendExpected(&op.op, r.from, r.tag, make([]byte, answer))
			}
		})
	}
	for i, op := range answers {
		if err := op.park(t); err != nil || op.op.N != answer-expectedHeader {
			t.Fatalf("answer %d: %d bytes, %v", i, op.op.N, err)
		}
	}
	wg.Wait()
}

// TestRation checks that a connection with a ration reads rationBytes, or rationBytes / rationRequest requests, although the peer
// leaves too many answers unread.
func TestRation(t *testing.T) {
	c := conn{account: hostquota.NewBook(hostquota.Limits{}).Account(hostquota.Host{})}
	c.unsent.Store(maxUnread)
	if !c.pauseReading() {
		t.Fatal("the connection reads without a ration")
	}
	for _, step := range []int{stageBytes, rationRequest} {
		c.ration.Store(rationBytes)
		n := 0
		for ; !c.pauseReading(); n++ {
			c.spend(step)
		}
		if want := (rationBytes + step - 1) / step; n != want {
			t.Errorf("%d steps of %d bytes, want %d", n, step, want)
		}
	}
}
