package sm

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"cinnabar/internal/na"
)

// objects are what endpoints of a prefix have in the file system.
func objects(t testing.TB, cfg *Config) (list []string) {
	t.Helper()
	for _, dir := range [...]string{cfg.ShmDir, cfg.SocketDir} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasPrefix(strings.TrimPrefix(f.Name(), "."), cfg.Prefix+"-") {
				list = append(list, f.Name())
			}
		}
	}
	return list
}

// TestCloseLeavesNothing closes endpoints with calls under way: each operation ends once, and no file is left.
func TestCloseLeavesNothing(t *testing.T) {
	cfg := Config{Prefix: privatePrefix("c")}
	server, h := serve(t, cfg)
	client := open(t, cfg)
	to := lookup(t, client, server.own.String())
	c := newCaller(client, to)
	if _, err := c.call(t, []byte("q")); err != nil {
		t.Fatal(err)
	}
	recv, self := newSignal(), newSignal()
	client.RecvExpected(&recv.op, to, 500, make([]byte, 8))
	client.RecvExpected(&self.op, client.own, 501, make([]byte, 8))
	shut(t, client)
	for _, s := range []*signal{recv, self} {
		if err := s.wait(t); na.KindOf(err) != na.Closed {
			t.Errorf("got %v", err)
		}
	}
	late := newSignal()
	client.SendRequest(&late.op, to, 1, nil)
	if err := late.wait(t); na.KindOf(err) != na.Closed {
		t.Errorf("after Close: %v", err)
	}
	client.RecvExpected(&late.op, to, 1, nil)
	if err := late.wait(t); na.KindOf(err) != na.Closed {
		t.Errorf("after Close: %v", err)
	}
	settled(t, server)
	if n := h.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	shut(t, server)
	if left := objects(t, &server.cfg); left != nil {
		t.Errorf("%q are left", left)
	}
}

// TestCloseLate closes endpoints that have nothing to do when there is no time left to wait for tasks: none is said to run.
func TestCloseLate(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		server, _ := serve(t, Config{})
		client := open(t, Config{})
		calls(t, client, server.own.String())
		for _, e := range []*Endpoint{client, server} {
			if err := e.Close(over); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestServerCloses closes a server while a call waits for its answer.
func TestServerCloses(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	c := newCaller(client, to)
	if _, err := c.call(t, nil); err != nil {
		t.Fatal(err)
	}
	recv := newSignal()
	client.RecvExpected(&recv.op, to, 500, make([]byte, 8)) // which no request provokes
	done := to.Done()
	shut(t, server)
	if err := recv.wait(t); na.KindOf(err) != na.Unreachable || !errors.Is(err, errClosing) {
		t.Errorf("got %v", err)
	}
	await(t, "the end of the connection", done)
	if _, err := c.call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("a later call: %v", err)
	}
	eventually(t, "the watcher drops the lost connection", client.watch.Idle)
}

// TestSlowConnectIsChecked connects after the poller has ended its checks of servers: they begin again, because an operation waits.
func TestSlowConnectIsChecked(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	send, recv := newSignal(), newSignal()
	client.RecvExpected(&recv.op, to, 500, make([]byte, 8)) // which no request provokes
	client.poll.awaited.Store(false)                        // as checkAwaited does an interval later
	client.SendRequest(&send.op, to, 1, nil)
	if err := send.wait(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the poller checks whether the server exists", client.poll.awaited.Load)
	client.Cancel(&recv.op)
	if err := recv.wait(t); na.KindOf(err) != na.Canceled {
		t.Error(err)
	}
}

// TestServerUnmaps has a server close as C's do, which do not tell: a region that is removed is nothing yet, one that is
// not mapped any more is the end.
func TestServerUnmaps(t *testing.T) {
	s := start(t, "unmapper")
	client := open(t, Config{})
	to := lookup(t, client, s.expect("ready "))
	send, recv := newSignal(), newSignal()
	client.RecvExpected(&recv.op, to, 1, make([]byte, 8))
	client.SendRequest(&send.op, to, 1, nil)
	if err := send.wait(t); err != nil {
		t.Fatal(err)
	}
	s.Send("")
	s.expect("removed")
	client.checkServersFor(t, to)
	if to.(*Addr).conn.Load() == nil {
		t.Error("a server whose region was removed counts as closed")
	}
	s.Send("")
	s.expect("unmapped")
	if err := recv.wait(t); na.KindOf(err) != na.Unreachable || !errors.Is(err, errClosing) {
		t.Errorf("got %v", err)
	}
}

// checkServersFor waits until the poller has looked after a server twice.
func (e *Endpoint) checkServersFor(t *testing.T, to na.Addr) {
	t.Helper()
	for range 2 {
		before := e.stats.checks.Load()
		eventually(t, "the poller looks", func() bool { return e.stats.checks.Load() > before })
	}
}

// TestServerReturns has another endpoint of the same name come after one that has closed.
func TestServerReturns(t *testing.T) {
	cfg := Config{Address: "na+sm://returns"}
	client := open(t, Config{})
	for range 3 {
		server, _ := serve(t, cfg)
		c := newCaller(client, lookup(t, client, "na+sm://returns"))
		eventually(t, "a call succeeds", func() bool {
			_, err := c.call(t, []byte("q"))
			return err == nil
		})
		shut(t, server)
	}
}

// TestLateRelease closes a server, and opens another one of its name, while a client has not torn down its connection to the
// first one. The client has the same pair of the second one by the time that it sends the command that releases the first
// one's, and stays connected.
func TestLateRelease(t *testing.T) {
	cfg := Config{Prefix: privatePrefix("n"), Address: "na+sm://late"}
	client := open(t, Config{Prefix: cfg.Prefix})
	old, _ := serve(t, cfg)
	first, _ := lookup(t, client, cfg.Address).(*Addr)
	if _, err := newCaller(client, first).call(t, nil); err != nil {
		t.Fatal(err)
	}
	lost := first.conn.Load()
	eventually(t, "the role", lost.enter) // which keeps the connection from being torn down
	shut(t, old)
	lost.fail(na.Unreachable, errClosing)
	server, _ := serve(t, cfg)
	c := newCaller(client, lookup(t, client, cfg.Address))
	if _, err := c.call(t, []byte("before")); err != nil {
		t.Fatal(err)
	}
	to, _ := c.to.(*Addr)
	if to == first || to.conn.Load().pair != lost.pair {
		t.Fatal("the second connection is not by the pair of the first")
	}
	lost.leave()
	eventually(t, "it is torn down", func() bool { return client.connOf(lost.id) == nil && lost.role.held.Load() })
	for range 3 { // the server has read its socket after the first
		if _, err := c.call(t, []byte("after")); err != nil {
			t.Fatal(err)
		}
	}
	if n := server.stats.connections.Load(); n != 1 || server.clientOf(lost.pair) == nil {
		t.Errorf("%d connections, of which the last one is lost", n)
	}
}

// TestReleasedByServer has a server release a connection that its client has not given up. The client finds out while a call
// waits, and connects anew with the next one.
func TestReleasedByServer(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	to, _ := lookup(t, client, server.own.String()).(*Addr)
	c := newCaller(client, to)
	if _, err := c.call(t, nil); err != nil {
		t.Fatal(err)
	}
	pair := to.conn.Load().pair
	recv := newSignal()
	client.RecvExpected(&recv.op, to, 500, make([]byte, 8)) // which no request provokes
	other := mapRaw(t, server)
	other.datagram(makeCommand(client.ident, pair, commandReleased, 0))
	if err := recv.wait(t); na.KindOf(err) != na.Unreachable || !errors.Is(err, errReleased) {
		t.Errorf("got %v", err)
	}
	if _, err := c.call(t, []byte("anew")); err != nil {
		t.Error(err)
	}
}

// TestShutdownWhileConnecting has the command of a client come after Shutdown. The client has looked whether the server takes
// clients before.
func TestShutdownWhileConnecting(t *testing.T) {
	server, _ := serve(t, Config{})
	c := newRaw(t, server)
	c.r.claimant(c.pair).Store(asClaimant(c.ident))
	server.Shutdown()
	c.announceExtended()
	eventually(t, "the pair is released", func() bool { return c.r.claimant(c.pair).Load() == 0 && !c.r.claimed(c.pair) })
}

func TestShutdown(t *testing.T) {
	server, h := serve(t, Config{})
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	c := newCaller(client, to)
	if _, err := c.call(t, nil); err != nil {
		t.Fatal(err)
	}
	server.Shutdown()
	server.Shutdown()
	send := newSignal()
	client.SendRequest(&send.op, to, 100, nil)
	if err := send.wait(t); err != nil {
		t.Error(err)
	}
	eventually(t, "the request is dropped", func() bool { return server.stats.dropped.Load() == 1 })
	if n := h.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	other := open(t, Config{})
	if _, err := newCaller(other, lookup(t, other, server.own.String())).call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("a new client: %v", err)
	}
}

// TestNameTaken opens a second endpoint under the name of a living one, which goes on.
// parity: D20
func TestNameTaken(t *testing.T) {
	cfg := Config{Address: "sm://taken"}
	server, _ := serve(t, cfg)
	cfg.Prefix, cfg.Listen, cfg.Handler = testPrefix, true, &echo{}
	if _, err := Open(context.Background(), cfg); na.KindOf(err) != na.InUse {
		t.Errorf("got %v", err)
	}
	client := open(t, Config{})
	calls(t, client, server.own.String())
	if server.own.String() != "na+sm://taken" {
		t.Error(server.own)
	}
}

// TestNumberTaken opens endpoints without a name while another endpoint has the files of their number, as a process of the same number in another
// namespace of processes may have, once with the same directories and once with the same directory of sockets only. They get other numbers.
// parity: D20
func TestNumberTaken(t *testing.T) {
	for name, shmDir := range map[string]string{"common directories": "", "common sockets": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			numbers.mu.Lock()
			taken := identity{int32(os.Getpid()), numbers.next + 1} // the number of the second endpoint from now on
			numbers.mu.Unlock()
			server, _ := serve(t, Config{Address: scheme + taken.uri()})
			second, _ := serve(t, Config{ShmDir: shmDir})
			if second.ident.id == taken.id || second.own.uri == server.own.uri {
				t.Errorf("the second endpoint is %s beside %s", second.own, server.own)
			}
			client := open(t, Config{ShmDir: shmDir})
			calls(t, client, second.own.String())
		})
	}
}

// TestLivingStays has an endpoint open while others live, of which one has a socket and no region, and one is not set up
// to the end.
// parity: H07 D19
func TestLivingStays(t *testing.T) {
	cfg := Config{Prefix: privatePrefix("l")}
	server, _ := serve(t, cfg)
	before := objects(t, &server.cfg)
	client := open(t, cfg)
	if after := objects(t, &server.cfg); len(after) != len(before) || len(after) != 4 {
		t.Errorf("%q before, %q after", before, after)
	}
	calls(t, client, server.own.String())
}

// TestReclaim removes what dead processes have left, in all states.
// parity: H07 D19
func TestReclaim(t *testing.T) {
	cfg, err := Config{Prefix: privatePrefix("r")}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	const dead = "2147483646-0" // larger than any process number can be
	write := func(path string, size int64) {
		f, err := os.Create(path)
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(cfg.objectPath(dead), regionSize)
	write(cfg.objectPath(dead)+".new", 0)
	write(cfg.objectPath("name"), 100) // nobody's
	write(cfg.spareObject("2147483646-2"), regionSize)
	for _, uri := range []string{dead, "2147483646-1"} {
		if err := os.Mkdir(cfg.socketDir(uri), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ep, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, ep)
	if left := objects(t, &cfg); left != nil {
		t.Errorf("%q are left", left)
	}
}

// TestPlaces has 255 clients at once: the next one is told why it waits, and gets a place that becomes free.
// parity: H128
func TestPlaces(t *testing.T) {
	server, _ := serve(t, Config{})
	raws := make([]*rawClient, pairs-1)
	for i := range raws {
		raws[i] = newRaw(t, server)
		raws[i].ident.id = uint8(i)
		raws[i].announce()
	}
	for i, c := range raws {
		c.request(uint32(i), nil)
	}
	for i, c := range raws {
		if d, _ := c.answer(); d.tag() != uint32(i) {
			t.Fatalf("client %d got an answer to %d", i, d.tag())
		}
	}
	client := open(t, Config{})
	to, _ := lookup(t, client, server.own.String()).(*Addr)
	send := newSignal()
	client.SendRequest(&send.op, to, 1, nil)
	eventually(t, "it knows why", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		return to.connectErr != nil
	})
	client.Cancel(&send.op)
	if err := send.wait(t); na.KindOf(err) != na.Canceled || !strings.Contains(err.Error(), "all 255 places") {
		t.Errorf("cancelled: %v", err)
	}
	hasty := open(t, Config{ConnectTimeout: time.Millisecond})
	if _, err := newCaller(hasty, lookup(t, hasty, server.own.String())).call(t, nil); na.KindOf(err) != na.Unreachable || !strings.Contains(err.Error(), "all 255 places") {
		t.Errorf("after its time: %v", err)
	}
	c := newCaller(client, to)
	free := time.AfterFunc(5*time.Millisecond, raws[100].release)
	defer free.Stop()
	if _, err := c.call(t, []byte("a place")); err != nil {
		t.Error(err)
	}
	for i, c := range raws {
		if i != 100 {
			c.release()
		}
	}
	shut(t, client)
	settled(t, server)
}

func TestNobody(t *testing.T) {
	client := open(t, Config{})
	for _, s := range []string{"na+sm://2147483646-0", "na+sm://1-0"} {
		if _, err := newCaller(client, lookup(t, client, s)).call(t, nil); na.KindOf(err) != na.Unreachable {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestBadRegion connects to files that are no regions.
func TestBadRegion(t *testing.T) {
	client := open(t, Config{})
	ident := identity{int32(os.Getpid()), 250}
	path := client.cfg.objectPath(ident.uri())
	defer func() { _ = os.Remove(path) }() // the last case may have left none
	for _, tt := range []struct {
		name string
		data []byte
	}{
		{"empty", nil},
		{"short", make([]byte, regionSize-1)},
		{"zeros", make([]byte, regionSize)},
	} {
		if err := os.WriteFile(path, tt.data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := newCaller(client, lookup(t, client, scheme+ident.uri())).call(t, nil)
		if na.KindOf(err) != na.Unreachable {
			t.Errorf("%s: %v", tt.name, err)
		}
		if st, serr := os.Stat(path); serr != nil || st.Size() != int64(len(tt.data)) {
			t.Errorf("%s: the file is changed", tt.name)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := newCaller(client, lookup(t, client, scheme+ident.uri())).call(t, nil); na.KindOf(err) != na.Unreachable {
		t.Errorf("a symbolic link: %v", err)
	}
}

// TestOpenCanceled calls Open with a context that has ended. Open returns the cause of that end and leaves no files, and the number of the endpoint
// is free for the next endpoint.
func TestOpenCanceled(t *testing.T) {
	h := &echo{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the program ends")
	cancel(cause)
	for range 2 * maxNumbers {
		if _, err := Open(ctx, Config{Prefix: testPrefix, Listen: true, Handler: h}); na.KindOf(err) != na.Canceled || !errors.Is(err, cause) {
			t.Fatalf("%v, want kind %v because %v", err, na.Canceled, cause)
		}
	}
	serve(t, Config{})
}

// endingContext is a context that ends after left calls of Err.
type endingContext struct {
	context.Context
	left int
}

func (c *endingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestReclaimCanceled ends the context while reclaimAll removes the files of dead processes. The next call removes the files that are left.
func TestReclaimCanceled(t *testing.T) {
	cfg, err := Config{Prefix: testPrefix, ShmDir: t.TempDir(), SocketDir: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	const files = 4
	for i := range files {
		dead := identity{pid: math.MaxInt32, id: uint8(i)} // no process has such a number
		if err := os.WriteFile(cfg.objectPath(dead.uri()), make([]byte, regionSize), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		list, err := os.ReadDir(cfg.ShmDir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	ctx := &endingContext{Context: context.WithoutCancel(t.Context()), left: 1}
	if err := reclaimAll(ctx, &cfg); !errors.Is(err, context.Canceled) || left() != files-1 {
		t.Errorf("%d of %d files are left, %v; want all but the one before the end of the context", left(), files, err)
	}
	if err := reclaimAll(t.Context(), &cfg); err != nil || left() != 0 {
		t.Errorf("%d files are left, %v", left(), err)
	}
}

// TestSweepIntervals checks the limit of the poller's next parking after a client has opened the region, and after a client has died.
func TestSweepIntervals(t *testing.T) {
	e := &Endpoint{region: &region{}}
	e.conns.Store(new([]*conn))
	k, start := &e.maintenance, time.Now()
	want := func(when string, at time.Duration, limit time.Duration) {
		t.Helper()
		if got := e.interval(start.Add(at)); got != limit {
			t.Errorf("%s: %v, want %v", when, got, limit)
		}
	}
	want("nothing has happened", 0, 0)
	k.opened()
	want("a client has opened the region", 0, busyInterval)
	want("that client has had time to announce itself", openTime, lookInterval)
	k.suspects = 1
	want("a copy buffer may be lost", openTime, orphanInterval)
	k.suspects, k.lost[0] = 0, 1
	want("a pair may be lost", openTime, orphanInterval)
	k.lost[0] = 0
	want("nothing is lost", maintenanceTime-1, lookInterval)
	want("the client has opened the region long ago", maintenanceTime, 0)
	k.died()
	want("a client has died", maintenanceTime, orphanInterval)
	want("the client has died long ago", 2*maintenanceTime, 0)
}
