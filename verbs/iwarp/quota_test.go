package iwarp_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/iwarp/rdmap"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// serve accepts connections of s's device until the test ends, each on a queue pair of its own.
func (s *side) serve(t testing.TB) *verbs.Listener {
	t.Helper()
	l, err := verbs.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []func() error
	wg.Go(func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			qp, err := s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			made = append(made, qp.Close)
			mu.Unlock()
			_, _ = r.Accept(ctx, qp, verbs.ConnParam{}) // the peer may be gone
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		for _, f := range made {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

// dialTo dials l from a device of its own.
func dialTo(t testing.TB, l *verbs.Listener) (*side, error) {
	t.Helper()
	s := newSide(t, iwarp.Config{}, nil)
	var err error
	s.conn, err = verbs.Dial(testContext(t), s.qp, l.Addr(), verbs.ConnParam{})
	return s, err
}

// dialFrom connects to l by TCP from another address of the loopback network.
func dialFrom(t testing.TB, l *verbs.Listener, ip string) *net.TCPConn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Skip("no other loopback address:", err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// TestSilentConnectionsGiveWay opens more connections than there may be unfinished handshakes, and sends nothing on them.
// A peer that connects afterwards is served at once, because the oldest of the silent ones give way, and those of a host
// that holds one only are kept.
func TestSilentConnectionsGiveWay(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxConnections: 256, HandshakeTimeout: patience}, nil) // 32 unfinished handshakes
	l := s.serve(t)
	lone := dialFrom(t, l, "127.0.0.9")
	slow := request()
	slow.PrivateData = []byte("x")
	hello := encodeFrame(t, slow)
	if _, err := lone.Write(hello[:len(hello)-1]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lone handshake is counted", func() bool { return s.dev.Stats()["quota_handshakes"] == 1 })
	for range 600 {
		c, err := net.Dial("tcp", l.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) {
			continue // the connection gave way before Dial returned, which a busy machine delays
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	eventually(t, "the oldest give way", func() bool { return s.dev.Stats()["audit_evicted"] >= 500 })
	start := time.Now()
	if _, err := dialTo(t, l); err != nil {
		t.Fatalf("a peer that has something to say, after %v: %v", time.Since(start), err)
	}
	if n, limit := s.dev.Stats()["quota_handshakes"], s.dev.Stats()["quota_handshakes_limit"]; n > limit || limit != 32 {
		t.Errorf("%d handshakes are unfinished, the limit is %d; want 32", n, limit)
	}
	if _, err := lone.Write(hello[len(hello)-1:]); err != nil {
		t.Error("the other host's handshake:", err)
	}
	if _, err := io.ReadFull(lone, make([]byte, 20)); err != nil {
		t.Error("the other host's handshake gave way:", err)
	}
}

// TestBacklogIsShared has one host fill the backlog with complete requests that no program accepts: a request of another
// host still finds a place.
func TestBacklogIsShared(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	l, err := verbs.ListenConfig{Backlog: 64}.Listen(s.dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, l.Close)
	frame := encodeFrame(t, request())
	for range 64 {
		c := dialListener(t, l)
		c.write(frame)
	}
	const queued, refused = 36, 28 // three quarters of the common 48, and the rest
	eventually(t, "the host has its share of the backlog", func() bool {
		st := s.dev.Stats()
		return st["audit_refused"] == refused && st["quota_connections"] == queued
	})
	other := dialFrom(t, l, "127.0.0.9")
	if _, err := other.Write(frame); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other host's request is queued", func() bool {
		return s.dev.Stats()["quota_connections"] == queued+1
	})
	if n := s.dev.Stats()["audit_refused"]; n != refused {
		t.Error("the other host's request was refused")
	}
}

// TestConnectionsAreBounded opens connections until one is refused: with an MPA reply, and while the others go on.
func TestConnectionsAreBounded(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxConnections: 32}, nil)
	iwarp.SetLeastIdle(s.dev, time.Hour)
	l := s.serve(t)
	var held []*side
	var err error
	for range 33 {
		var c *side
		if c, err = dialTo(t, l); err != nil {
			break
		}
		mr := c.region(t, 8) // a read that waits for nothing: the connections are not idle for long
		c.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 0)}})
		c.want(t, 1, verbs.WCRead, verbs.StatusSuccess)
		held = append(held, c)
	}
	if _, ok := errors.AsType[*verbs.RejectedError](err); !ok {
		t.Fatalf("after %d connections: %v, want a rejection", len(held), err)
	}
	if len(held) < 16 || len(held) > 24 {
		t.Errorf("one host got %d of 32 connections, want its share of 3 in 4 at most", len(held))
	}
	for _, c := range held {
		select {
		case <-c.conn.Done():
			t.Error("a connection ended:", c.conn.Err())
		default:
		}
	}
	if n := s.dev.Stats()["quota_connections"]; n != uint64(len(held)) {
		t.Errorf("%d connections are counted, want %d", n, len(held))
	}
	for _, c := range held {
		if err := c.qp.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the connections are given back", func() bool { return s.dev.Stats()["quota_connections"] == 0 })
	if _, err := dialTo(t, l); err != nil {
		t.Error("after the others ended:", err)
	}
}

// TestIdleConnectionGivesWay has a host hold its share of connections idle: the one that has been idle for longest gives
// way to a newcomer; those that wait for an answer do not.
func TestIdleConnectionGivesWay(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxConnections: 64}, nil)
	iwarp.SetLeastIdle(s.dev, time.Hour)
	l := s.serve(t)
	var held []*side
	for {
		c, err := dialTo(t, l)
		if err != nil {
			break
		}
		held = append(held, c)
	}
	iwarp.Age(s.dev, 2*time.Hour)
	if _, err := dialTo(t, l); err != nil {
		t.Fatalf("with %d idle connections: %v", len(held), err)
	}
	ended := -1
	eventually(t, "an idle connection gives way", func() bool {
		ended = slices.IndexFunc(held, func(c *side) bool {
			select {
			case <-c.conn.Done():
				return true
			default:
				return false
			}
		})
		return ended >= 0
	})
	if err := held[ended].conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		t.Errorf("the one that gave way: %v, want an orderly end", err)
	}
	if n := s.dev.Stats()["audit_evicted"]; n != 1 {
		t.Errorf("%d connections were evicted, want 1", n)
	}
}

// connectFrom makes a connection to l from an address of the loopback network, and reports whether it was accepted.
func connectFrom(t testing.TB, l *verbs.Listener, ip string) bool {
	t.Helper()
	c := dialFrom(t, l, ip)
	if _, err := c.Write(encodeFrame(t, request())); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 20)
	if _, err := io.ReadFull(c, reply); err != nil {
		t.Fatal(err)
	}
	return reply[16]&0x20 == 0
}

// TestFairShareIsTakenBack has one host hold idle connections up to its share, and a second one what is then left. The second
// host, which has less than its fair share, gets more: idle connections of the first give way, also where the limit of
// all is not near, and where the first host has itself asked for more just before.
func TestFairShareIsTakenBack(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxConnections: 64}, nil)
	iwarp.SetLeastIdle(s.dev, time.Hour)
	l := s.serve(t)
	const first, second = "127.0.0.8", "127.0.0.9"
	for connectFrom(t, l, first) {
	}
	for connectFrom(t, l, second) {
	}
	for range 3 {
		iwarp.Age(s.dev, 2*time.Hour)
		connectFrom(t, l, first)
		if !connectFrom(t, l, second) {
			t.Fatal("the second host is refused, though the first has more and leaves it idle")
		}
	}
}

// TestHandshakesOfOneHostDoNotDelayOthers has one host use up its share of unfinished handshakes and ask for more, which
// has to wait. A request of another host is answered meanwhile.
func TestHandshakesOfOneHostDoNotDelayOthers(t *testing.T) {
	s := newSide(t, iwarp.Config{MaxConnections: 64, HandshakeTimeout: patience}, nil) // 16 unfinished handshakes
	iwarp.SetLeastStay(s.dev, time.Hour)
	l := s.serve(t)
	for range 12 {
		dialFrom(t, l, "127.0.0.8")
	}
	if !connectFrom(t, l, "127.0.0.9") {
		t.Error("the other host is refused")
	}
}

// TestGuessingHostIsSlowedDown has a host guess keys, anew on each connection. After a few wrong guesses its connections
// are refused, and other hosts are served.
func TestGuessingHostIsSlowedDown(t *testing.T) {
	s := newSide(t, iwarp.Config{DeniedLimit: 4}, nil)
	l := s.serve(t)
	guess := func() error {
		c, err := dialTo(t, l)
		if err != nil {
			return err
		}
		c.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{c.region(t, 8).SGE(0, 8)}, Remote: verbs.RemoteAddr{RKey: 0xdead}})
		c.want(t, 1, verbs.WCRead, verbs.StatusRemAccessErr)
		return nil
	}
	var err error
	n := 0
	for ; n < 40 && err == nil; n++ {
		err = guess()
	}
	if _, ok := errors.AsType[*verbs.RejectedError](err); !ok {
		t.Fatalf("after %d guesses: %v, want a rejection", n, err)
	}
	if n > 16 {
		t.Errorf("%d guesses went through, want a few", n)
	}
	if got := s.dev.Stats()["audit_denied"]; got < 4 || got > uint64(n) {
		t.Errorf("%d refused accesses are counted after %d guesses", got, n)
	}
	other := dialFrom(t, l, "127.0.0.9")
	if _, err := other.Write(encodeFrame(t, request())); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 20)
	if _, err := io.ReadFull(other, reply); err != nil || reply[16]&0x20 != 0 {
		t.Errorf("another host: reply %x, error %v; want an acceptance", reply, err)
	}
}

// TestHeldMemoryIsShared has a peer send messages for which there is no receive: the device holds no more of them than
// the host's share of Config.MaxMemory, and delivers all when receives are posted.
func TestHeldMemoryIsShared(t *testing.T) {
	const limit = 64 << 10
	for _, size := range []int{100, 20 << 10, 60 << 10} { // the last is more than the share for one segment
		s := newSide(t, iwarp.Config{MaxMemory: limit}, nil)
		p := acceptRaw(t, s, request(), verbs.ConnParam{})
		const n = 40
		sent := make(chan struct{})
		var out []byte
		for range n {
			out = append(out, p.fpdu(p.untagged(rdmap.OpSend), make([]byte, size))...)
		}
		go func() {
			defer close(sent)
			_, _ = p.tc.Write(out)
		}()
		full := func() bool {
			messages, _, stalled := iwarp.Held(s.dev)
			return stalled || messages == n
		}
		eventually(t, "as many bytes are held as may be", full)
		if got := s.dev.Stats()["quota_memory"]; got > limit*3/4 {
			t.Errorf("%d bytes are held, want at most 3 in 4 of %d", got, limit)
		}
		mr := s.region(t, size)
		for i := range n {
			s.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(0, size)}})
			s.want(t, uint64(i), verbs.WCRecv, verbs.StatusSuccess)
		}
		<-sent
		eventually(t, "the memory is given back", func() bool { return s.dev.Stats()["quota_memory"] == 0 })
	}
}

// TestUnfinishedMessageGivesSharedReceiveBack has a peer begin a message and never end it: the receive of the shared queue
// that the message occupies comes back after a time without a byte.
func TestUnfinishedMessageGivesSharedReceiveBack(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	queue := s.share(t)
	iwarp.SetSharedStall(s.dev, 50*time.Millisecond)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	mr := s.region(t, 64)
	if _, err := queue.PostRecv([]verbs.RecvWR{{ID: 7, SGL: []verbs.SGE{mr.SGE(0, 64)}}}); err != nil {
		t.Fatal(err)
	}
	h := p.untagged(rdmap.OpSend)
	h.Last = false
	p.send(h, sixteen)
	s.want(t, 7, verbs.WCRecv, verbs.StatusWRFlushErr)
	if term := p.terminate(); term.Cause() != rdmap.TermLocalCatastrophic {
		t.Errorf("Terminate %v", term)
	}
}

// TestRemoteAddressIsNotVirtual looks at the addresses that peers are given: they are random, keep the alignment within a
// page, and are as good as the virtual address for every byte of the region.
func TestRemoteAddressIsNotVirtual(t *testing.T) {
	a, b := newPair(t, iwarp.Config{}, iwarp.Config{})
	seen := map[uint64]bool{}
	for range 64 {
		mr := b.region(t, 4096)
		addr, own := mr.Remote().Addr, mr.SGE(0, 1).Addr
		if addr == own || addr&4095 != own&4095 || seen[addr] || addr+4096 < addr {
			t.Fatalf("the address for peers is %#x, the virtual one %#x", addr, own)
		}
		seen[addr] = true
		a.send(t, verbs.SendWR{ID: 1, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, CompareAdd: 3, SGL: []verbs.SGE{a.region(t, 8).SGE(0, 8)}, Remote: mr.RemoteAt(4088)})
		a.want(t, 1, verbs.WCFetchAdd, verbs.StatusSuccess)
		if mr.Bytes()[4088] != 3 && mr.Bytes()[4095] != 3 {
			t.Fatal("the last word of the region was not changed")
		}
	}
	// The device's own requests must not name virtual addresses either.
	s, p := opened(t, iwarp.Config{})
	mr := s.region(t, 64)
	s.send(t, verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: verbs.RemoteAddr{RKey: 1}})
	_, payload := p.expect(rdmap.OpReadRequest)
	if r, _ := rdmap.ParseReadRequest(payload); r.SinkTO == mr.SGE(0, 1).Addr {
		t.Error("a Read Request names the virtual address of its sink")
	}
}

// TestLogIsBounded has a host break the protocol many times: the log has a few lines about it, the counters have all.
func TestLogIsBounded(t *testing.T) {
	var lines counter
	audit.Reset()
	s := newSide(t, iwarp.Config{Logger: slog.New(slog.NewTextHandler(&lines, nil))}, nil)
	l := s.serve(t)
	const n = 100
	for range n {
		c := dialListener(t, l)
		c.write([]byte("GET / HTTP/1.1\r\n\r\n"))
		c.tc.Close()
	}
	eventually(t, "all are counted", func() bool { return s.dev.Stats()["audit_refused"] == n })
	if got := lines.load(); got > 20 {
		t.Errorf("%d lines for %d refused connections", got, n)
	}
}

// counter counts the lines that a log writes.
type counter struct {
	mu sync.Mutex
	// +checklocks:mu
	n int
}

func (c *counter) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return len(b), nil
}

func (c *counter) load() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// TestFailedHandshakesAreDelayed has a host begin many handshakes that fail: some of them wait. A host whose handshakes
// succeed is not delayed.
func TestFailedHandshakesAreDelayed(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	l := s.serve(t)
	delayed := func() uint64 { return s.dev.Stats()["handshakes_delayed"] }
	for range 100 {
		c, err := dialTo(t, l)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.conn.Disconnect(testContext(t)) // the server's side stays
	}
	if n := delayed(); n != 0 {
		t.Errorf("%d handshakes of a host that fails none were delayed", n)
	}
	eventually(t, "handshakes that fail are delayed", func() bool {
		for range 50 {
			_ = dialFrom(t, l, "127.0.0.9").Close()
		}
		return delayed() > 0
	})
	if _, err := dialTo(t, l); err != nil {
		t.Error("another host:", err)
	}
}

// TestRevokedKeyIsNoGuess has a client read by keys that the server has just revoked, as happens to honest clients whose
// requests cross the end of a region. It may connect anew as often as it likes, whereas a host that guesses may not.
func TestRevokedKeyIsNoGuess(t *testing.T) {
	s := newSide(t, iwarp.Config{DeniedLimit: 1}, nil)
	l := s.serve(t)
	const accesses = 16
	for i := range accesses {
		c, err := dialTo(t, l)
		if err != nil {
			t.Fatalf("after %d reads by revoked keys: %v", i, err)
		}
		mr, err := s.pd.RegMR(make([]byte, 64), verbs.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		at := mr.Remote()
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		c.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{c.region(t, 8).SGE(0, 8)}, Remote: at})
		c.want(t, 1, verbs.WCRead, verbs.StatusRemAccessErr)
	}
	if n := s.dev.Stats()["audit_denied"]; n != accesses {
		t.Errorf("%d refused accesses are counted, want %d", n, accesses)
	}
}

// TestConnectionThatGotWorkIsKept has a connection chosen to give way, because it was idle, and work come before it is ended: posted
// on this side, or as bytes of the peer. It is kept. Without work it is ended.
func TestConnectionThatGotWorkIsKept(t *testing.T) {
	s := newSide(t, iwarp.Config{}, nil)
	p := acceptRaw(t, s, request(), verbs.ConnParam{})
	p.open()
	p.barrier()
	s.send(t, verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{s.region(t, 8).SGE(0, 8)}, Remote: verbs.RemoteAddr{RKey: 1}})
	if iwarp.Evict(s.dev) {
		t.Error("a connection with a read under way was ended")
	}
	o := newSide(t, iwarp.Config{}, nil)
	q := acceptRaw(t, o, request(), verbs.ConnParam{})
	q.open()
	q.barrier()
	eventually(t, "an idle connection is ended", func() bool { return iwarp.Evict(o.dev) }) // not while another goroutine reads from it
	<-o.conn.Done()
	select {
	case <-s.conn.Done():
		t.Error("the connection with work has ended:", s.conn.Err())
	default:
	}
	if n := s.dev.Stats()["audit_evicted"] + o.dev.Stats()["audit_evicted"]; n != 1 {
		t.Errorf("%d evictions are counted, want 1", n)
	}
}
