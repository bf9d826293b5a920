package rmem

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/internal/hostquota"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
	"cinnabar/verbs/verbstest/memdev"
)

// FuzzRequests has two hostile clients send sequences of requests with valid, nearly valid and hostile values to a server: over
// verbs if the first byte is even, where they also use keys that they were given and others, and as the engine's
// handler gets them else. Nothing panics, the quota holds, everything is given back, and an innocent client's
// region is as it was.
//
// parity: Q04
// fuzz:state
func FuzzRequests(f *testing.F) {
	// A request is its operation, session, region, size, offset, lease, source, bits, and damage.
	frame := func(o op, region, size, offset, lease, bits byte) []byte {
		return []byte{byte(o), 1, region, size, offset, lease, 1, bits, 0}
	}
	hello, alloc, stat := frame(opHello, 0, 0, 0, 0, 0), frame(opAlloc, 0, 3, 0, 0, 0), frame(opStat, 1, 0, 0, 0, 0)
	for mode := range byte(2) {
		f.Add(bytes.Join([][]byte{{mode}, hello, alloc, stat, frame(opFree, 1, 0, 0, 0, 0), stat}, nil))
		f.Add(bytes.Join([][]byte{{mode}, hello, frame(opAlloc, 0, 3, 0, 15, 3), stat, frame(opClaim, 1, 0, 0, 0, 0), {16, 9}, stat}, nil))
		f.Add(bytes.Join([][]byte{{mode}, hello, alloc, alloc, frame(opCopy, 2, 2, 2, 0, 0), frame(opCopy, 2, 2, 2, 0, 8),
			frame(opCompareAndSwap, 1, 0, 2, 0, 0), frame(opFetchAdd, 1, 0, 1, 0, 0), frame(opRenew, 1, 0, 0, 15, 0), frame(opUsage, 0, 0, 0, 0, 0),
			frame(opRead, 1, 2, 2, 0, 0), frame(opWrite, 1, 2, 2, 0, 4), frame(opFree, 1, 0, 0, 0, 16), {14, 1, 2, 8, 0}, {31, 0, 0, 8, 1}, frame(opBye, 0, 0, 0, 0, 0)}, nil))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 0 && len(script) < 1024 {
			synctest.Test(t, func(t *testing.T) {
				if script[0]%2 == 0 {
					fuzzVerbs(t, script[1:])
				} else {
					fuzzEngine(t, script[1:])
				}
			})
		}
	})
}

// fuzzQuota is little, so that it is soon used up.
const fuzzQuota = 4 << 20

// hostileNumbers are sizes, offsets and leases.
var hostileNumbers = [...]int64{0, 1, 8, 100, 4096, 65537, mapped, fuzzQuota, fuzzQuota + 1, -1, -8, math.MaxInt64, math.MinInt64, math.MaxInt64 - 7, 1 << 40, int64(time.Second)}

// script makes requests.
type script struct {
	rest  []byte
	known []response // answers to allocations and openings
}

// next takes a byte of the script.
func (s *script) next() int {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return int(b)
}

// number takes a number.
func (s *script) number() int64 {
	n := s.next()
	return hostileNumbers[n%len(hostileNumbers)] + int64(n/len(hostileNumbers))
}

// region takes a region that is known, or one that is not.
func (s *script) region() response {
	if n := s.next(); n > 0 && len(s.known) > 0 {
		return s.known[n%len(s.known)]
	}
	return response{ID: 42}
}

// request makes a request from seven bytes.
func (s *script) request(kind int, session uint64) *request {
	of := s.region()
	q := &request{Op: uint32(kind), Session: session, ID: of.ID, Secret: of.Secret, Size: s.number(), Offset: s.number(), Lease: s.number()}
	other := s.region()
	q.SourceID, q.SourceOffset = other.ID, q.Offset
	bits := s.next()
	q.Once, q.Wipe = bits&1 != 0, bits&2 != 0
	if bits&4 != 0 {
		q.Data = make([]byte, bits)
		q.Length = uint32(bits)
	}
	if bits&8 != 0 {
		q.Source, q.SourceLen = []byte("elsewhere"), 9
	}
	if bits&16 != 0 {
		q.Secret[0]++
	}
	return q
}

// learn keeps an answer that names a region.
func (s *script) learn(r *response) {
	if r.Status == uint32(statusOK) && r.ID != 0 && len(s.known) < 64 {
		s.known = append(s.known, *r)
	}
}

// checkLent checks the quota.
func checkLent(t *testing.T, l *lender) {
	if st := l.stats(); st.Used < 0 || st.Used > st.Quota || l.book.Used(hostquota.Memory) != st.Used {
		t.Errorf("%d of %d bytes are lent, %d are counted", st.Used, st.Quota, l.book.Used(hostquota.Memory))
	}
}

// checkNothing checks that all was given back.
func checkNothing(t *testing.T, l *lender) {
	for _, r := range []hostquota.Resource{hostquota.Connections, hostquota.Memory, hostquota.Regions, hostquota.Pulls} {
		if n := l.book.Used(r); n != 0 {
			t.Errorf("%d %v are counted in the end", n, r)
		}
	}
}

// fuzzEngine plays a script at the handler of a server over an engine.
func fuzzEngine(t *testing.T, text []byte) {
	cfg, err := Config{Quota: fuzzQuota}.filled()
	must(t, err)
	s := &Server{watches: map[uint64]watch{}, stall: copyStall}
	s.lender = newLender(cfg, func(size int64, _ bool) (memory, error) { return &plainMemory{b: heapMemory(size)}, nil })
	defer func() {
		for _, id := range s.closeAll() {
			s.endSession(id, "test")
		}
		checkNothing(t, &s.lender)
	}()
	sc := &script{rest: text}
	ctxs, sessions := [2]context.Context{}, []uint64{0}
	for i := range ctxs {
		ctxs[i] = context.WithValue(t.Context(), hostquota.ContextKey{}, hostquota.ProcessHost(0, int32(i+1)))
	}
	for len(sc.rest) > 0 {
		kind := sc.next()
		if kind%17 == 16 {
			time.Sleep(time.Duration(sc.next()) * time.Second) //nolint:forbidigo // simulated time
			continue
		}
		q := sc.request(kind%17, sessions[sc.next()%len(sessions)])
		b, err := plans().request.Append(nil, q)
		must(t, err)
		if n := sc.next(); n&1 != 0 { // damaged on the way
			b[n*7%len(b)] ^= byte(n)
		}
		var got request
		if _, err := plans().request.Decode(b, &got); err != nil {
			continue
		}
		ctx := ctxs[kind/17%2]
		r, delay, done, err := s.execute(ctx, &got, s.callerOf("peer", hostquota.FromContext(ctx)))
		if delay > 0 {
			time.Sleep(delay) //nolint:forbidigo // simulated time
			done()
		}
		if err == nil {
			sc.learn(&r)
			if r.Session != 0 {
				sessions = append(sessions, r.Session)
			}
		}
		checkLent(t, &s.lender)
	}
}

// hostileClient is a client that sends the messages of a script.
type hostileClient struct {
	dev   *verbs.Device
	addr  netip.AddrPort
	c     *flow.Conn
	dials int
}

// ready connects, if the connection has ended; it reports whether there is one.
func (h *hostileClient) ready(ctx context.Context, t *testing.T) bool {
	if h.c != nil && h.c.Err() == nil {
		return true
	}
	h.close(t)
	if h.dials++; h.dials > 4 {
		return false
	}
	c, err := flow.Dial(ctx, h.dev, h.addr, flow.Config{Records: 16, Bytes: 4096, Inline: 2048, KeepAlive: defaultSilence})
	if err != nil {
		t.Error(err)
		return false
	}
	h.c = c
	_, err = h.answer(ctx)
	return err == nil
}

func (h *hostileClient) close(t *testing.T) {
	if c := h.c; c != nil {
		h.c = nil
		atEnd(t, c.Close)
	}
}

// answer takes the server's next answer.
func (h *hostileClient) answer(ctx context.Context) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rec, err := h.c.Recv(ctx)
	if err != nil {
		return nil, err
	}
	var r response
	return &r, errors.Join(r.decode(rec.Bytes()), rec.Release())
}

// atEnd is deferred, so that a script that fails ends its goroutines too: one that is left makes synctest end the process, and the
// failure is not reported.
func atEnd(t *testing.T, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Error(err)
	}
}

// fuzzVerbs plays a script at a server over verbs.
func fuzzVerbs(t *testing.T, text []byte) {
	ctx := t.Context()
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	defer atEnd(t, dev.Close)
	s, l := listenVerbs(t, dev, netip.MustParseAddrPort("127.0.0.1:0"), Config{Quota: fuzzQuota})
	defer func() {
		atEnd(t, s.Close)
		checkNothing(t, l)
	}()
	innocent, err := DialVerbs(ctx, dev, s.Addr())
	must(t, err)
	defer atEnd(t, innocent.Close)
	region, err := innocent.Alloc(ctx, 1000)
	must(t, err)
	want := bytes.Repeat([]byte("innocent"), 125)
	_, err = region.WriteAtContext(ctx, want, 0)
	must(t, err)

	sc := &script{rest: text}
	clients := [2]hostileClient{{dev: dev, addr: s.Addr()}, {dev: dev, addr: s.Addr()}}
	leave := func() {
		for i := range clients {
			clients[i].close(t)
		}
	}
	defer leave()
	for len(sc.rest) > 0 {
		kind := sc.next()
		h := &clients[kind/17%2]
		switch {
		case kind%17 == 16:
			time.Sleep(time.Duration(sc.next()) * time.Second) //nolint:forbidigo // simulated time
		case !h.ready(ctx, t):
			sc.rest = nil
		case kind%17 >= 14:
			h.touch(ctx, t, sc, region)
		default:
			h.ask(ctx, t, sc, kind%17)
		}
		checkLent(t, l)
	}
	leave()
	got := make([]byte, len(want))
	if _, err := region.ReadAtContext(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the innocent client's region has changed, %v", err)
	}
	_, err = region.FetchAdd(ctx, 8, 1)
	must(t, err)
}

// ask sends a request and learns from the answer.
func (h *hostileClient) ask(ctx context.Context, t *testing.T, sc *script, kind int) {
	b, err := plans().request.Append(nil, sc.request(kind, uint64(sc.next())))
	must(t, err)
	if n := sc.next(); n&1 != 0 {
		b[n*7%len(b)] ^= byte(n)
	}
	if h.c.Send(ctx, b) != nil {
		return
	}
	if r, err := h.answer(ctx); err == nil {
		sc.learn(r)
	}
}

// touch reads or writes by a key that either client was given, or by that of the innocent client.
func (h *hostileClient) touch(ctx context.Context, t *testing.T, sc *script, innocent *Region) {
	of := sc.region()
	to := verbs.RemoteAddr{Addr: of.Addr + uint64(sc.number()), RKey: of.Key}
	if of.ID == 42 {
		a, err := innocent.ask(ctx, "stat", &request{Op: uint32(opStat)})
		must(t, err)
		to = verbs.RemoteAddr{Addr: a.Addr, RKey: a.Key}
	}
	mr, err := h.c.PD().RegMR(make([]byte, 256), verbs.LocalWrite)
	must(t, err)
	defer atEnd(t, mr.Close)
	wr := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, sc.next())}, Remote: to}
	if sc.next()%2 == 0 {
		wr.Op = verbs.OpRead
	}
	_ = h.c.Do(ctx, wr) // the device may refuse it
}
