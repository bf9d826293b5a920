package sm

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
	"cinnabar/internal/na"
	"cinnabar/internal/progress"
	"cinnabar/internal/shm"
)

// TestCutOff has the file of a server's region cut off, several times and to several sizes: clients of this package get
// errors for what is under way and go on with their next calls, one of C's kind goes on, new ones come, and nothing is lost.
// parity: H07
func TestCutOff(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Balanced, progress.Economy} {
		cfg := Config{Prefix: privatePrefix("c"), Progress: progress.New(mode)}
		server, _ := serve(t, cfg)
		if err := server.SetBeside("ofi+tcp://192.0.2.1:1"); err != nil {
			t.Fatal(err)
		}
		old := open(t, cfg)
		c := newCaller(old, lookup(t, old, server.own.String()))
		raw := newRaw(t, server)
		raw.announce()
		for round, size := range []int64{0, 4096, offPairs + 100, regionSize, extendedSize - 100} {
			for range 100 {
				if _, err := c.call(t, []byte("before")); err != nil {
					t.Fatal(err)
				}
			}
			raw.request(1, []byte("C's"))
			raw.answer()
			if _, err := newCaller(server, server.own).call(t, []byte("to itself")); err != nil {
				t.Fatal(err)
			}
			recv := newSignal()
			old.RecvExpected(&recv.op, c.to, 1<<20, make([]byte, 8))
			quiet(t, server, old)
			cut(t, server, size)
			if err := recv.wait(t); na.KindOf(err) != na.Unreachable {
				t.Errorf("what waited: %v", err)
			}
			eventually(t, "calls succeed", func() bool {
				_, err := c.call(t, []byte("after"))
				if err != nil && na.KindOf(err) != na.Unreachable {
					t.Error(err)
				}
				return err == nil
			})
			if _, err := newCaller(server, server.own).call(t, []byte("to itself")); err != nil {
				t.Errorf("round %d: to itself: %v", round, err)
			}
			raw.again()
			raw.request(2, []byte("C's"))
			if d, msg := raw.answer(); d.tag() != 2 || string(msg) != "C's" {
				t.Errorf("round %d: tag %d, %q", round, d.tag(), msg)
			}
			fresh := open(t, cfg)
			calls(t, fresh, server.own.String())
			if err := fresh.Reachable(lookup(t, fresh, server.own.String()), "ofi+tcp://192.0.2.1:1", nil); err != nil {
				t.Errorf("round %d: the address beside shared memory is lost: %v", round, err)
			}
			shut(t, fresh)
		}
		raw.release()
		shut(t, old)
		settled(t, server)
		shut(t, server)
		if left := objects(t, &server.cfg); left != nil {
			t.Errorf("%q are left", left)
		}
	}
}

// quiet waits until nobody looks at regions. The race detector's atomic operations are C's, in which Go's runtime does not
// survive a fault: they look whether memory is there first, but it may be gone a moment later.
func quiet(t *testing.T, list ...*Endpoint) {
	t.Helper()
	for _, e := range list {
		eventually(t, "the poller parks", e.poll.parked.Load)
	}
}

// cut truncates a server's region, and waits until it has been made anew.
func cut(t *testing.T, e *Endpoint, size int64) {
	t.Helper()
	path := e.cfg.objectPath(e.own.uri)
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the region is whole", func() bool { return e.intact(path) && !e.maintenance.cut.Load() })
}

// again has a client of C's kind find its place in the region anew. C's keep their positions there.
func (c *rawClient) again() { c.out, c.in = producer(c.r.tx(c.pair)), consumer(c.r.rx(c.pair)) }

// TestCutOffUnread cuts off a region while a client has not taken any of the answers in it, a full ring of them.
func TestCutOffUnread(t *testing.T) {
	server, _ := serve(t, Config{Prefix: privatePrefix("d"), Progress: progress.New(progress.Economy)})
	client := open(t, Config{Prefix: server.cfg.Prefix, Progress: progress.New(progress.Economy)})
	to, _ := lookup(t, client, server.own.String()).(*Addr)
	c := newCaller(client, to)
	if _, err := c.call(t, nil); err != nil {
		t.Fatal(err)
	}
	conn := to.conn.Load()
	eventually(t, "the role", conn.enter)
	recv := make([]*signal, ringSlots+5)
	for i := range recv {
		recv[i] = newSignal()
		send := newSignal()
		client.RecvExpected(&recv[i].op, to, uint32(100+i), make([]byte, 8))
		client.SendRequest(&send.op, to, uint32(100+i), []byte("x"))
		if err := send.wait(t); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the server has answered", func() bool { return conn.in.other.Load()&ringMask == (conn.in.at-1)&ringMask })
	quiet(t, server, client)
	cut(t, server, 0)
	conn.leave()
	for i := range recv {
		if err := recv[i].wait(t); err != nil && na.KindOf(err) != na.Unreachable {
			t.Errorf("answer %d: %v", i, err)
		}
	}
	calls(t, client, server.own.String())
}

// TestCutOffNameless cuts off a region whose names are gone: it cannot be made anew, and calls fail.
// parity: H07
func TestCutOffNameless(t *testing.T) {
	server, _ := serve(t, Config{Prefix: privatePrefix("e")})
	client := open(t, Config{Prefix: server.cfg.Prefix})
	c := newCaller(client, lookup(t, client, server.own.String()))
	if _, err := c.call(t, nil); err != nil {
		t.Fatal(err)
	}
	path := server.cfg.objectPath(server.own.uri)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range []string{server.cfg.spareObject(server.own.uri), path} {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteAt([]byte{0}, offID+1); err != nil { // this alone does no harm
		t.Fatal(err)
	}
	if _, err := c.call(t, nil); err != nil {
		t.Error(err)
	}
	quiet(t, server, client)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is noticed", server.maintenance.gone.Load)
	if _, err := c.call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("got %v", err)
	}
}

// TestCutOffAgain has the region cut off several times in quick succession, also while it is being made anew: that is no
// reason to give it up.
// parity: H07
func TestCutOffAgain(t *testing.T) {
	if invariants.Race {
		t.Skip("the race detector's atomic operations do not survive that a region is cut off while they are under way")
	}
	server, _ := serve(t, Config{Prefix: privatePrefix("f")})
	client := open(t, Config{Prefix: server.cfg.Prefix})
	c := newCaller(client, lookup(t, client, server.own.String()))
	path := server.cfg.objectPath(server.own.uri)
	for range 20 {
		for range rebuildTries - 1 {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "calls succeed", func() bool {
			_, err := c.call(t, []byte("after"))
			return err == nil
		})
	}
	if server.maintenance.gone.Load() {
		t.Error("the region was given up")
	}
}

// TestMendingConnectsNotItself has an endpoint send to itself for the first time while its region is made anew.
func TestMendingConnectsNotItself(t *testing.T) {
	e, _ := serve(t, Config{Prefix: privatePrefix("g")})
	e.setRecovering(true)
	if _, err := newCaller(e, e.own).call(t, []byte("x")); na.KindOf(err) != na.Unreachable || !errors.Is(err, errRebuilt) {
		t.Errorf("meanwhile: %v", err)
	}
	e.setRecovering(false)
	if _, err := newCaller(e, e.own).call(t, []byte("x")); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestCutAfterGone has a fault noted although the region has been given up: the poller has nothing to do for it.
func TestCutAfterGone(t *testing.T) {
	e, _ := serve(t, Config{Prefix: privatePrefix("h")})
	e.maintenance.gone.Store(true)
	e.maintenance.cut.Store(true)
	e.poll.wake()
	eventually(t, "the poller forgets it", func() bool { return !e.maintenance.cut.Load() })
}

// TestFaultKeepsBuffer has the copying of a message fault while the rest of the region is whole, as it does when there is
// no memory for the file: the copy buffer goes back.
func TestFaultKeepsBuffer(t *testing.T) {
	m, err := shm.Private(extendedSize)
	if err != nil {
		t.Fatal(err)
	}
	r := newRegion(m)
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	r.init(identity{1, 1}, 0)
	c := &conn{reg: r, pair: 1, recvEvent: -1}
	if err := c.attach(); err != nil {
		t.Fatal(err)
	}
	c.extend()
	page := r.b[os.Getpagesize():][:os.Getpagesize()] // copy buffers, and nothing else
	if err := unix.Mprotect(page, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if ok, err := c.send(typeUnexpected, 1, make([]byte, bufferSize)); ok || !errors.Is(err, shm.ErrFault) {
		t.Errorf("got %v, %v", ok, err)
	}
	if free, held := r.bufferMap.Load(), c.ext.holds.Load(); free != ^uint64(0) || held != 0 {
		t.Errorf("%#x are free, %#x are held", free, held)
	}
}

// cleanUp does to an endpoint what HG_Cleanup of C's Mercury does to all of the machine.
func cleanUp(t *testing.T, e *Endpoint) {
	t.Helper()
	for _, path := range []string{e.cfg.socketPath(e.own.uri), e.cfg.socketDir(e.own.uri), e.cfg.objectPath(e.own.uri)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			t.Error(err)
		}
	}
}

// restored waits until an endpoint's files are there.
func restored(t *testing.T, e *Endpoint) {
	t.Helper()
	eventually(t, "the files are restored", func() bool {
		_, region := os.Lstat(e.cfg.objectPath(e.own.uri))
		_, socket := os.Lstat(e.cfg.socketPath(e.own.uri))
		return region == nil && socket == nil
	})
}

// TestCleanUp has the files of a living server removed, several times: its clients stay connected, new ones find it, and
// nothing is left in the end.
func TestCleanUp(t *testing.T) {
	cfg := Config{Prefix: privatePrefix("u")}
	server, _ := serve(t, cfg)
	old := open(t, cfg)
	c := newCaller(old, lookup(t, old, server.own.String()))
	for round := range 3 {
		if _, err := c.call(t, []byte("before")); err != nil {
			t.Fatal(err)
		}
		recv := newSignal()
		old.RecvExpected(&recv.op, c.to, 1<<20, make([]byte, 8))
		cleanUp(t, server)
		if round == 0 { // it takes a while
			old.checkServersFor(t, c.to)
		}
		if _, err := c.call(t, []byte("meanwhile")); err != nil {
			t.Error(err)
		}
		restored(t, server)
		fresh := open(t, cfg)
		calls(t, fresh, server.own.String())
		old.Cancel(&recv.op)
		if err := recv.wait(t); na.KindOf(err) != na.Canceled {
			t.Errorf("what waited: %v", err)
		}
		shut(t, fresh)
	}
	shut(t, old)
	settled(t, server)
	cleanUp(t, server)
	shut(t, server)
	if left := objects(t, &server.cfg); left != nil {
		t.Errorf("%q are left", left)
	}
}

// TestCleanUpKilled kills a server whose files were removed: what it has left under its other names goes at the next
// start, and a file of somebody else's under one of its names stays.
func TestCleanUpKilled(t *testing.T) {
	prefix := privatePrefix("q")
	s := start(t, "server", prefixEnv+"="+prefix)
	uri := strings.TrimPrefix(s.expect("ready "), scheme)
	cfg, err := Config{Prefix: prefix}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s.Suspend()
	for _, path := range []string{cfg.socketPath(uri), cfg.socketDir(uri), cfg.objectPath(uri)} {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	open(t, Config{Prefix: prefix})
	if left := objects(t, &cfg); !slices.Equal(left, []string{"." + prefix + "-" + uri, "." + prefix + "-" + uri}) {
		t.Errorf("while it lives: %q", left)
	}
	s.Kill()
	eventually(t, "the process has ended", func() bool { return processGone(int32(s.Pid())) })
	open(t, Config{Prefix: prefix})
	if left := objects(t, &cfg); left != nil {
		t.Errorf("%q are left", left)
	}
}

func TestNotifyMask(t *testing.T) {
	event := func(mask byte, n byte) []byte {
		b := make([]byte, unix.SizeofInotifyEvent+int(n))
		b[4], b[12] = mask, n
		return b
	}
	b := slices.Concat(event(1, 0), event(2, 16), event(4, 0))
	if m := notifyMask(b); m != 7 {
		t.Errorf("%#x", m)
	}
	for i := range b {
		_ = notifyMask(b[:i])
	}
	if m := notifyMask(event(1, 200)[:20]); m != 1 {
		t.Errorf("%#x", m)
	}
}
