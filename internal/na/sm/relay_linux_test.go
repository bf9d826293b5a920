package sm

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// relayedPair is two endpoints of which the second has to ask the first for its memory.
func relayedPair(t *testing.T) (owner, user *Endpoint, to *Addr) {
	t.Helper()
	owner, user = memoryEnd(t), memoryEnd(t)
	to = addrOfEnd(user, owner)
	to.relayed.Store(true)
	return owner, user, to
}

// TestRelayNeighbours: segments that lie side by side are found although each is registered by itself, in one memory or
// in several.
func TestRelayNeighbours(t *testing.T) {
	owner, user, to := relayedPair(t)
	const segs, each = maxSegments, 96
	mem := pattern(segs*each+100, 5)
	var list [][]byte
	for i := range segs {
		list = append(list, mem[i*each:][:each])
	}
	m, err := owner.RegisterSegments(list, na.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	r, err := user.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	last := expose(t, owner, user, mem[segs*each:], na.ReadWrite)
	ours := make([]byte, len(mem))
	frags := []na.Fragment{{Remote: r, Local: ours[:segs*each]}, {Remote: last, Local: ours[segs*each:]}}
	if n, err := get(t, user, to, frags...); n != int64(len(mem)) || err != nil || !bytes.Equal(ours, mem) {
		t.Fatalf("get: %d, %v", n, err)
	}
	copy(ours, pattern(len(ours), 6))
	if n, err := put(t, user, to, frags...); n != int64(len(mem)) || err != nil || !bytes.Equal(ours, mem) {
		t.Fatalf("put: %d, %v", n, err)
	}
}

// TestRelayLateCancel: a connection over which a transfer was given up is nobody else's afterwards, even if the transfer
// was complete by then.
func TestRelayLateCancel(t *testing.T) {
	owner, user, to := relayedPair(t)
	r := expose(t, owner, user, make([]byte, 8), na.ReadOnly)
	links := &user.transfers.links
	l, err := links.get(to.ident)
	if err != nil {
		t.Fatal(err)
	}
	tr := &transfer{op: new(na.Op), to: to, at: cursor{frags: []na.Fragment{{Remote: r, Local: make([]byte, 8)}}}, total: 8}
	tr.setLink(l)
	err = tr.relayOver(l)
	tr.end(na.Canceled)
	if err := tr.finishLink(links, l, err); err != nil {
		t.Errorf("a complete transfer: %v", err)
	}
	if l := links.take(to.ident); l != nil {
		t.Error("the connection is used again")
	}
	if err := l.c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection is not closed: %v", err)
	}
	l, err = links.get(to.ident)
	if err != nil {
		t.Fatal(err)
	}
	tr.stop.Store(0)
	tr.setLink(l)
	_ = tr.finishLink(links, l, nil)
	tr.end(na.Canceled) // which is too late, and must do nothing to the next one
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); n != 8 || err != nil {
		t.Errorf("over the same connection: %d, %v", n, err)
	}
}

// TestRelayCancelAmongOthers cancels every other transfer of one peer at any moment: none of the others notices.
func TestRelayCancelAmongOthers(t *testing.T) {
	owner, user, to := relayedPair(t)
	r := expose(t, owner, user, make([]byte, 512), na.ReadOnly)
	for range 100 {
		var ops [8]*testOp
		for i := range ops {
			ops[i] = newTestOp()
			user.Get(&ops[i].Op, to, []na.Fragment{{Remote: r, Local: make([]byte, 512)}})
		}
		for i := 1; i < len(ops); i += 2 {
			user.transfers.cancel(&ops[i].Op)
		}
		for i, op := range ops {
			if n, err := op.wait(t); err == nil && n != 512 || err != nil && (i%2 == 0 || na.KindOf(err) != na.Canceled) {
				t.Fatalf("operation %d: %d, %v", i, n, err)
			}
		}
	}
}

// silent listens as the relay of an owner that takes connections and says nothing.
func silent(t *testing.T, owner *Endpoint) *net.UnixListener {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: relayName(owner.ident), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// remoteAt is a handle of registered memory that nobody has.
func remoteAt(t *testing.T, user *Endpoint, mem []byte) na.RemoteMemory {
	t.Helper()
	r, err := user.ParseHandle(appendHandle(nil, []segment{{hostmem.Addr(mem), uint64(len(mem))}}, na.ReadWrite, 0))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRelayFrozenOwner: a peer that does not answer holds up transfers from and to itself, and no others.
func TestRelayFrozenOwner(t *testing.T) {
	frozen, owner, user := memoryEnd(t), memoryEnd(t), memoryEnd(t)
	silent(t, frozen)
	mem := make([]byte, 1<<20)
	pretend(t, frozen, mem)
	stuck := addrOfEnd(user, frozen)
	stuck.relayed.Store(true)
	var ops [3 * maxLinks]*testOp
	for i := range ops {
		ops[i] = newTestOp()
		user.Get(&ops[i].Op, stuck, []na.Fragment{{Remote: remoteAt(t, user, mem), Local: make([]byte, 64)}})
	}
	r := expose(t, owner, user, mem, na.ReadWrite)
	for _, relayed := range []bool{false, true} {
		to := addrOfEnd(user, owner)
		to.relayed.Store(relayed)
		if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, len(mem))}); n != int64(len(mem)) || err != nil {
			t.Errorf("another peer, relayed %v: %d, %v", relayed, n, err)
		}
	}
	for i, op := range ops {
		user.transfers.cancel(&op.Op)
		if _, err := op.wait(t); na.KindOf(err) != na.Canceled {
			t.Errorf("operation %d: %v", i, err)
		}
	}
	until(t, "end of the workers", func() bool {
		user.transfers.mu.Lock()
		defer user.transfers.mu.Unlock()
		return len(user.transfers.relays) == 0
	})
}

// pretend has memory taken for registered by an endpoint that has none.
func pretend(t *testing.T, owner *Endpoint, mem []byte) {
	t.Helper()
	if _, err := owner.mem.register([][]byte{mem}, na.ReadWrite); err != nil {
		t.Fatal(err)
	}
	ownMemories.add(owner.ident, &owner.mem)
}

// TestRelayLiesAboutLengths: an owner whose answers are not what was asked for ends its connection, and writes nothing
// where it should not.
func TestRelayLiesAboutLengths(t *testing.T) {
	for name, say := range map[string][]byte{
		"too few":      append(appendRelayAnswer(nil, relayDone, 4), "aaaa"...),
		"too many":     append(appendRelayAnswer(nil, relayDone, 9), "aaaaaaaaa"...),
		"4 GiB":        appendRelayAnswer(nil, relayDone, 1<<32-1),
		"long refusal": appendRelayAnswer(nil, relayRefused, relayText+1),
		"half":         append(appendRelayAnswer(nil, relayDone, 8), "aaaa"...),
		"half a head":  appendRelayAnswer(nil, relayDone, 8)[:5],
		"a new status": appendRelayAnswer(nil, 2, 8),
	} {
		t.Run(name, func(t *testing.T) {
			owner, user, to := relayedPair(t)
			ln := silent(t, owner)
			mem := make([]byte, 8)
			pretend(t, owner, mem)
			go func() {
				c, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				_ = c.SetDeadline(time.Now().Add(testLimit))                   // fails only once it is closed
				_, _ = io.ReadFull(c, make([]byte, relayRequest+relaySegment)) // the client tells
				_, _ = c.Write(say)
				_ = c.Close()
			}()
			ours := make([]byte, 16)
			n, err := get(t, user, to, na.Fragment{Remote: remoteAt(t, user, mem), Local: ours[:8:8]})
			if na.KindOf(err) != na.Unreachable || n != 0 || !bytes.Equal(ours, make([]byte, 16)) {
				t.Errorf("%d, %v, % x", n, err, ours)
			}
		})
	}
}

// TestRelayLinksOfTheGone: idle connections to peers that have ended are closed when another peer is connected to, and a
// peer with the number of one that has ended is connected to anew.
func TestRelayLinksOfTheGone(t *testing.T) {
	user := memoryEnd(t)
	links := &user.transfers.links
	idle := func() (n int) {
		links.mu.Lock()
		defer links.mu.Unlock()
		for _, list := range links.idle {
			n += len(list)
		}
		return n
	}
	var last *Endpoint
	for range 5 {
		owner := memoryEnd(t)
		to := addrOfEnd(user, owner)
		to.relayed.Store(true)
		r := expose(t, owner, user, make([]byte, 8), na.ReadOnly)
		if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); err != nil {
			t.Fatal(err)
		}
		if n := idle(); n != 1 {
			t.Fatalf("%d idle connections; want 1", n)
		}
		owner.mem.close()
		last = owner
	}
	again := &Endpoint{cfg: last.cfg, ident: last.ident}
	again.cfg.Logger = slog.New(slog.DiscardHandler)
	defer again.mem.close()
	r := expose(t, again, user, make([]byte, 8), na.ReadOnly)
	to := addrOfEnd(user, again)
	to.relayed.Store(true)
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); n != 8 || err != nil {
		t.Errorf("of the next one of the same number: %d, %v", n, err)
	}
}

// squatter has the name of another process's relay, until standard input ends.
func (p *player) squatter(name string) error {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return err
	}
	p.say("ready")
	return ln.Close()
}

// TestRelayNameTaken has another user of the host take the name of an endpoint's relay before it listens: memory is served by
// the kernel as before, and peers that need the relay connect to nobody else's.
func TestRelayNameTaken(t *testing.T) {
	needRoot(t)
	needAttach(t)
	owner, user := memoryEnd(t), memoryEnd(t)
	var log bytes.Buffer
	owner.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	startAs(t, otherUser, "squatter", targetEnv+"="+relayName(owner.ident)).expect("ready")
	r := expose(t, owner, user, []byte("memory"), na.ReadOnly)
	if !strings.Contains(log.String(), "the socket for transfers does not listen") {
		t.Errorf("the log says %q", &log)
	}
	to := addrOfEnd(user, owner)
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 6)}); n != 6 || err != nil {
		t.Errorf("by the kernel: %d, %v", n, err)
	}
	to.relayed.Store(true)
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 6)}); na.KindOf(err) != na.Unreachable || !strings.Contains(err.Error(), "of user 65534") {
		t.Errorf("by the relay: %v", err)
	}
}

// failingListener has no connection to give, as one has when the process is out of descriptors.
type failingListener struct {
	calls atomic.Int32
	third chan struct{}
}

func (f *failingListener) AcceptUnix() (*net.UnixConn, error) {
	if f.calls.Add(1) == 3 {
		close(f.third)
	}
	return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
}

// TestRelayAcceptFails: a listener that fails is tried again after a while, is logged at a bounded rate, and does not keep
// the relay from ending.
func TestRelayAcceptFails(t *testing.T) {
	var log bytes.Buffer
	r := &relay{log: slog.New(slog.NewTextHandler(&log, nil)), stop: make(chan struct{})}
	f := &failingListener{third: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.accept(f)
	}()
	await(t, "the third attempt", f.third)
	close(r.stop)
	await(t, "the end of accepting", ended)
	if n := f.calls.Load(); n > 100 {
		t.Errorf("%d attempts before the relay was closed", n)
	}
	if n := strings.Count(log.String(), "\n"); n > audit.LinesPerHost {
		t.Errorf("%d lines in the log; %d at most:\n%s", n, audit.LinesPerHost, &log)
	}
}

// TestRelayManyPeers: there are connections for as many peers as a server has, some of which have several.
func TestRelayManyPeers(t *testing.T) {
	owner, user, to := relayedPair(t)
	r := expose(t, owner, user, make([]byte, 8), na.ReadOnly)
	for range 300 {
		l, err := dialRelay(owner.ident)
		if err != nil {
			t.Fatal(err)
		}
		defer l.c.Close()
	}
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); n != 8 || err != nil {
		t.Errorf("the next one: %d, %v", n, err)
	}
}

// TestGrantAskedTwice: who asks for the same arena again and again loses the connection.
func TestGrantAskedTwice(t *testing.T) {
	owner := memoryEnd(t)
	mem, _ := allocated(t, owner, 4096)
	if _, err := owner.Register(mem, na.ReadOnly); err != nil {
		t.Fatal(err)
	}
	l, err := dialRelay(owner.ident)
	if err != nil {
		t.Fatal(err)
	}
	defer l.c.Close()
	ask := appendRelayHead(nil, relayHead{access: relayMap, segments: 1, bytes: 1})
	ask = appendSegment(ask, segment{owner.mem.arenas.of([][]byte{mem}), 1})
	if _, err := l.c.Write(append(ask, ask...)); err != nil {
		t.Fatal(err)
	}
	if err := l.c.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(l.c) // the file is dropped
	if err != nil && !errors.Is(err, unix.ECONNRESET) || len(b) != grantLen {
		t.Errorf("%d bytes, %v; want one grant and the end", len(b), err)
	}
}

// TestWindowRefusals: however many arenas are gone before they are asked for, those that are there are mapped.
func TestWindowRefusals(t *testing.T) {
	owner, user := memoryEnd(t), memoryEnd(t)
	to := addrOfEnd(user, owner)
	mem, _ := allocated(t, owner, 4096)
	r := expose(t, owner, user, mem, na.ReadWrite)
	ws := &user.transfers.windows
	for id := range uint64(maxWindows + 10) {
		until(t, "request for an arena", func() bool {
			if ws.use(to.ident, id+1) != nil {
				t.Fatal("a window on nothing")
			}
			ws.mu.Lock()
			defer ws.mu.Unlock()
			_, asked := ws.owners[to.ident].maps[id+1]
			return asked
		})
	}
	user.see(t, to, r)
}
