package sm

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// TestForgedRelease has a process put a command into the command ring that ends the connection of another one. The ring
// does not name the writer, so such a command counts only for a client that sends its commands that way.
func TestForgedRelease(t *testing.T) {
	server, _ := serve(t, Config{})
	good := open(t, Config{})
	c := newCaller(good, lookup(t, good, server.own.String()))
	if _, err := c.call(t, []byte("before")); err != nil {
		t.Fatal(err)
	}
	to, _ := c.to.(*Addr)
	pair := to.conn.Load().pair
	forger := mapRaw(t, server)
	before := server.stats.violations.Load()
	if err := forger.r.commands.push(makeCommand(good.ident, pair, commandReleased, 0)); err != nil {
		t.Fatal(err)
	}
	good.poll.wake()
	eventually(t, "it is found out", func() bool {
		if got, err := c.call(t, []byte("after")); err != nil || string(got) != "after" {
			t.Fatalf("%q, %v", got, err)
		}
		return server.stats.violations.Load() > before
	})
	if got, err := c.call(t, []byte("still")); err != nil || string(got) != "still" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestDescriptorsDoNotFit has a client's doorbells get lost on their way, as they do when the server has no descriptor
// left: the client is refused, and does not wait for answers that never come.
func TestDescriptorsDoNotFit(t *testing.T) {
	trail := audit.New(nil)
	server, _ := serve(t, Config{Audit: trail})
	c := newRaw(t, server)
	many := make([]int, controlSize/4)
	for i := range many {
		many[i] = c.sock
	}
	files := openFiles(t)
	c.datagram(makeCommand(c.ident, c.pair, commandReserved, extensionVersion), many...)
	if kind := c.notice(); kind != typeRefused {
		t.Errorf("the client gets a message of type %#x", kind)
	}
	c.release()
	settled(t, server)
	if n := counted(trail, audit.Refused); n != 1 {
		t.Errorf("%d are refused", n)
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d descriptors are left", n-files)
	}
}

// TestCloseIsBounded has something that Close waits for never end, as a transfer does whose peer has the kernel wait for
// its memory: Close returns, and the endpoint closes later.
func TestCloseIsBounded(t *testing.T) {
	ep, err := Open(context.Background(), Config{Prefix: testPrefix})
	if err != nil {
		t.Fatal(err)
	}
	e, _ := ep.(*Endpoint)
	e.transfers.wg.Add(1)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	begun := time.Now()
	if err := e.Close(over); na.KindOf(err) != na.Closed || !errors.Is(err, errHeldUp) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(begun); d > closeLimit {
		t.Errorf("Close takes %v after its context has ended", d)
	}
	if err := e.Close(context.Background()); !errors.Is(err, errHeldUp) {
		t.Errorf("without a deadline: %v", err)
	}
	e.transfers.wg.Done()
	shut(t, e)
}

// fullPair returns a connection whose other end has read nothing, and which has been written to until it was full.
func fullPair(t *testing.T) *net.UnixConn {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }() // it is not needed any more
	peer, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: ln.Addr().String(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := accept(t, ln)
	t.Cleanup(func() { _, _ = peer.Close(), c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var full error
	if err := raw.Control(func(fd uintptr) {
		for full == nil {
			full = unix.Sendto(int(fd), []byte{0}, unix.MSG_DONTWAIT, nil)
		}
	}); err != nil || !errors.Is(full, unix.EAGAIN) {
		t.Fatal(err, full)
	}
	return c
}

// TestFreeIsBounded has peers that were given an arena not read that it is gone: freeing memory does not take longer the
// more of them there are.
func TestFreeIsBounded(t *testing.T) {
	const peers = 8
	var g grants
	given := map[*net.UnixConn][]uint64{}
	for range peers {
		given[fullPair(t)] = []uint64{5}
	}
	g.mu.Lock()
	g.given = given
	g.mu.Unlock()
	begun := time.Now()
	g.gone(5)
	if d := time.Since(begun); d > peers/2*time.Second {
		t.Errorf("it takes %v", d)
	}
}

// TestGrantsDoNotWait has peers ask for arenas and not read the answers: freeing memory waits for none of them, because the
// answers are sent with the lock held that freeing takes.
func TestGrantsDoNotWait(t *testing.T) {
	const peers = 8
	var g grants
	var from arenas
	conns := make([]*net.UnixConn, peers)
	for i := range conns {
		conns[i] = fullPair(t)
	}
	begun := time.Now()
	for _, c := range conns {
		if err := g.give(c, &from, 7); err == nil {
			t.Error("an answer has room in a socket that is full")
		}
	}
	if d := time.Since(begun); d > peers/2*time.Second {
		t.Errorf("it takes %v", d)
	}
}

// TestMemoryConnectionsAreShared has one process open all connections for memory that it gets: another one still gets one.
func TestMemoryConnectionsAreShared(t *testing.T) {
	const limit = 16
	owner, user := memoryEnd(t), memoryEnd(t)
	hosts, trail := make(chan int32, 1), audit.New(nil)
	hosts <- 1
	owner.cfg.Audit = trail
	owner.cfg.hosts = &hostRule{func(_ identity, uid uint32) hostquota.Host {
		h := <-hosts
		hosts <- h
		return hostquota.ProcessHost(uid, h)
	}}
	r := expose(t, owner, user, make([]byte, 8), na.ReadOnly)
	owner.mem.relay.mu.Lock()
	owner.mem.relay.links = hostquota.NewBook(hostquota.Limits{hostquota.Connections: limit})
	owner.mem.relay.mu.Unlock()
	for range limit {
		l, err := dialRelay(owner.ident)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.c.Close() }()
	}
	// All have to be taken or refused before the next connection counts as another process's.
	eventually(t, "each is taken or refused", func() bool {
		owner.mem.relay.mu.Lock()
		defer owner.mem.relay.mu.Unlock()
		return len(owner.mem.relay.conns)+int(counted(trail, audit.Refused)) == limit
	})
	if n := counted(trail, audit.Refused); n < limit/4 {
		t.Errorf("%d of %d connections of one process are refused", n, limit)
	}
	<-hosts
	hosts <- 2
	to := addrOfEnd(user, owner)
	to.relayed.Store(true)
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); n != 8 || err != nil {
		t.Errorf("another process: %d, %v", n, err)
	}
}

// TestRelaysLeaveDescriptors bounds the connections for memory where the process may have few descriptors.
func TestRelaysLeaveDescriptors(t *testing.T) {
	for files, want := range map[int64]int{1: 1, 1024: 256, 1 << 20: maxRelays} {
		if n := mostRelays(hostquota.Capacity{Files: files}); n != want {
			t.Errorf("%d connections with %d descriptors, want %d", n, files, want)
		}
	}
}

// TestRelayIsCounted counts the memory that is served to a process, and the accesses that are refused to it.
func TestRelayIsCounted(t *testing.T) {
	owner, user, to := relayedPair(t)
	trail := audit.New(nil)
	owner.cfg.Audit = trail
	owner.cfg.Quota = hostquota.NewBook(hostquota.Limits{hostquota.Memory: 64 << 10})
	owner.cfg.hosts = &hostRule{func(_ identity, uid uint32) hostquota.Host { return hostquota.ProcessHost(uid, 9) }}
	r := expose(t, owner, user, make([]byte, 128<<10), na.ReadOnly)
	if n, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 4<<10)}); n != 4<<10 || err != nil {
		t.Errorf("within the share: %d, %v", n, err)
	}
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 128<<10)}); na.KindOf(err) != na.Unreachable {
		t.Errorf("beyond it: %v", err)
	}
	if n := counted(trail, audit.Refused); n != 1 {
		t.Errorf("%d refused", n)
	}
	l, err := dialRelay(owner.ident)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.c.Close() }()
	request := appendSegment(appendRelayHead(nil, relayHead{access: na.ReadOnly, segments: 1, bytes: 8}), segment{4096, 8})
	if _, err := l.c.Write(request); err != nil {
		t.Fatal(err)
	}
	var buf []byte
	if _, ok := errors.AsType[refusal](l.answer(&buf, nil, 8)); !ok {
		t.Error("memory that is not registered is not refused")
	}
	if n := counted(trail, audit.Denied); n != 1 {
		t.Errorf("%d denied", n)
	}
	eventually(t, "nothing is held", func() bool { return owner.cfg.Quota.Used(hostquota.Memory) == 0 })
}

// TestWindowBytes bounds the memory that peers can make this process map.
func TestWindowBytes(t *testing.T) {
	var ws windows
	if ws.reserve(maxWindowBytes+1) || !ws.reserve(maxWindowBytes-1) || ws.reserve(2) || !ws.reserve(1) {
		t.Error("the bound does not hold")
	}
	ws.unreserve(maxWindowBytes)
	if !ws.reserve(maxWindowBytes) {
		t.Error("bytes that were given back are lost")
	}
}

// TestExtendOther has a region that is to get its size back belong to another file by now, which stays as it is.
func TestExtendOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	m, err := shm.Create(path, 4096)
	if err != nil {
		t.Fatal(err)
	}
	f := m.File()
	if err := errors.Join(m.Close(), os.Truncate(path, 0), shm.Extend(path, f, 4096)); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 4096 {
		t.Errorf("%v, %v", st, err)
	}
	if err := errors.Join(os.Rename(path, path+".moved"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := shm.Extend(path, f, 4096); err == nil {
		t.Error("another file is extended")
	}
}
