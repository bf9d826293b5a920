package sm

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// announceExtended sends the datagram as a client of this package does that sleeps.
func (c *rawClient) announceExtended() {
	c.t.Helper()
	var err error
	for _, fd := range [...]*int{&c.doorbell, &c.recvEvent} {
		if *fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
			c.t.Fatal(err)
		}
	}
	newBlock(c.r.b, c.pair, false).sleep.Store(1)
	c.datagram(makeCommand(c.ident, c.pair, commandReserved, extensionVersion), c.doorbell, c.recvEvent)
}

// as lets a client be endpoint id, which counts for a host of a test's choice.
func (c *rawClient) as(id uint8) *rawClient {
	c.ident.id = id
	return c
}

// notice waits for a message without bytes and returns its type.
func (c *rawClient) notice() uint8 {
	c.t.Helper()
	var d descriptor
	eventually(c.t, "a message", func() (ok bool) {
		d, _, ok = c.in.peek()
		return ok
	})
	c.in.advance()
	return d.kind()
}

// hostsByID has clients of this process count for the host that of gives for their ids.
func hostsByID(of func(id uint8) int32) *hostRule {
	return &hostRule{func(ident identity, uid uint32) hostquota.Host { return hostquota.ProcessHost(uid, of(ident.id)) }}
}

// counted returns how often an event was recorded.
func counted(trail *audit.Trail, e audit.Event) (n uint64) {
	for _, c := range trail.Counts() {
		if c.Event == e {
			n += c.N
		}
	}
	return n
}

// TestPlacesAreShared has one process take all places of a region that it gets. Others still find one.
func TestPlacesAreShared(t *testing.T) {
	const greedy = 250 // of the 255
	trail := audit.New(nil)
	server, _ := serve(t, Config{Audit: trail, hosts: hostsByID(func(id uint8) int32 { return int32(id/greedy) + 1 })})
	held := 0
	for i := range greedy {
		c := newRaw(t, server).as(uint8(i))
		accepted, refused := server.places.Used(hostquota.Connections), server.stats.refused.Load()
		c.announceExtended()
		eventually(t, "it is accepted or refused", func() bool {
			return server.places.Used(hostquota.Connections) > accepted || server.stats.refused.Load() > refused
		})
		if server.stats.refused.Load() == refused {
			held++
			continue
		}
		if kind := c.notice(); kind != typeRefused {
			t.Fatalf("client %d gets a message of type %#x", i, kind)
		}
		c.release() // as a client of this package does
	}
	if held < 100 || held > 150 {
		t.Errorf("one process holds %d places", held)
	}
	if n := counted(trail, audit.Refused); n != greedy-uint64(held) {
		t.Errorf("%d are refused, and %d hold places", n, held)
	}
	late := newRaw(t, server).as(greedy)
	late.announceExtended()
	late.request(1, nil)
	if kind := late.notice(); kind != typeExpected {
		t.Errorf("a late process gets a message of type %#x", kind)
	}
}

// TestManyProcesses has as many processes as an honest user may start connect, each once: all get a place, and none loses it.
func TestManyProcesses(t *testing.T) {
	const processes = 200
	server, _ := serve(t, Config{hosts: hostsByID(func(id uint8) int32 { return int32(id) + 1 })})
	for id := range uint8(processes) {
		c := newRaw(t, server).as(id)
		c.announceExtended()
		c.request(1, nil)
		if kind := c.notice(); kind != typeExpected {
			t.Fatalf("process %d gets a message of type %#x", id, kind)
		}
	}
	if n := server.stats.evicted.Load() + server.stats.refused.Load(); n != 0 {
		t.Errorf("%d are evicted or refused", n)
	}
}

// TestIdleIsEvicted has a process hold most of an engine's connections, and others take the last ones: the process loses
// one that is idle, but not one with a call.
func TestIdleIsEvicted(t *testing.T) {
	trail := audit.New(nil)
	book := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 16})
	server, _ := serve(t, Config{Audit: trail, Quota: book, hosts: hostsByID(func(id uint8) int32 { return int32(max(1, int(id)-8)) })})
	var raws []*rawClient
	join := func(id uint8) {
		c := newRaw(t, server).as(id)
		c.announceExtended()
		c.request(1, nil)
		if kind := c.notice(); kind != typeExpected {
			t.Fatalf("client %d gets a message of type %#x", id, kind)
		}
		raws = append(raws, c)
	}
	for id := range uint8(9) {
		join(id)
	}
	busy := server.clientOf(raws[3].pair)
	busy.unanswered.Add(1)
	if err := busy.addr.Account().Take(hostquota.Handlers, 1); err != nil {
		t.Fatal(err)
	}
	for id := range uint8(6) {
		join(10 + id)
	}
	eventually(t, "one is evicted", func() bool { return server.stats.evicted.Load() > 0 })
	for i, c := range raws {
		if _, _, ok := c.in.peek(); !ok {
			continue
		}
		if kind := c.notice(); kind != typeEvicted || i == 3 || i > 8 {
			t.Errorf("client %d gets a message of type %#x", i, kind)
		}
		c.release()
	}
	eventually(t, "the audit has an eviction", func() bool { return counted(trail, audit.Evicted) > 0 })
	busy.addr.Account().Give(hostquota.Handlers, 1)
	for _, c := range raws {
		if server.clientOf(c.pair) != nil && server.clientOf(c.pair).addr.ident == c.ident {
			c.release()
		}
	}
	settled(t, server)
	eventually(t, "nothing is held", func() bool {
		return book.Used(hostquota.Connections) == 0 && server.places.Used(hostquota.Connections) == 0
	})
}

// TestEvictedConnectsAnew has a server evict a client of this package: its next call connects anew.
func TestEvictedConnectsAnew(t *testing.T) {
	server, _ := serve(t, Config{})
	client := open(t, Config{})
	to := lookup(t, client, server.own.String())
	c := newCaller(client, to)
	if _, err := c.call(t, []byte("before")); err != nil {
		t.Fatal(err)
	}
	done := to.Done()
	i := slices.IndexFunc(server.list(), func(c *conn) bool { return c.server && !c.self })
	server.list()[i].dismiss(errEvicted, typeEvicted)
	await(t, "the end of the connection", done)
	if got, err := c.call(t, []byte("after")); err != nil || string(got) != "after" {
		t.Errorf("%q, %v", got, err)
	}
	shut(t, client)
	settled(t, server)
}

// TestRefusedIsTold has a server without a connection left: a call fails with the reason, and not after a time-out.
func TestRefusedIsTold(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 1})
	server, _ := serve(t, Config{Quota: book, hosts: hostsByID(func(id uint8) int32 { return int32(id) + 1 })})
	first, second := open(t, Config{}), open(t, Config{})
	calls(t, first, server.own.String())
	_, err := newCaller(second, lookup(t, second, server.own.String())).call(t, nil)
	if na.KindOf(err) != na.Unreachable || !strings.Contains(err.Error(), errRefused.Error()) {
		t.Errorf("got %v", err)
	}
	calls(t, first, server.own.String())
	shut(t, first)
	eventually(t, "the place is free", func() bool { return book.Used(hostquota.Connections) == 0 })
	calls(t, second, server.own.String())
}

// TestHandshakes counts a client that only the command ring names, until the kernel does.
func TestHandshakes(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{})
	server, _ := serve(t, Config{Quota: book})
	c := newRaw(t, server)
	c.announceBusy()
	eventually(t, "it is counted", func() bool { return book.Used(hostquota.Handshakes) == 1 })
	c.announce()
	eventually(t, "it is counted no more", func() bool { return book.Used(hostquota.Handshakes) == 0 })
	if n := book.Used(hostquota.Connections); n != 1 {
		t.Errorf("%d connections", n)
	}
	busy := newRaw(t, server).as(99)
	busy.announceBusy()
	eventually(t, "it is counted", func() bool { return book.Used(hostquota.Handshakes) == 1 })
	if err := busy.r.commands.push(makeCommand(busy.ident, busy.pair, commandReleased, 0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is counted no more", func() bool { return book.Used(hostquota.Handshakes) == 0 })
	c.release()
	settled(t, server)
}

// TestTurns bounds how much is taken from one peer before others have their turn, if the peer's rings are never empty.
func TestTurns(t *testing.T) {
	m, err := shm.Private(extendedSize)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }() // nothing is to be saved
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e := &Endpoint{cfg: cfg, region: newRegion(m), ident: identity{1, 1}}
	e.own = e.newAddr(e.ident, e.ident.uri())
	e.region.init(e.ident, 0)
	ring := e.region.commands.b
	full := func() { // as a process does that writes there without end
		shm.Uint32(ring, offProdTail).Store((shm.Uint32(ring, offConsTail).Load() - 1) & commandMask)
	}
	for range 3 {
		full()
		before := e.stats.violations.Load()
		e.drainCommands(commandBatch)
		if n := e.stats.violations.Load() - before; n != commandBatch {
			t.Errorf("%d commands are taken in a row", n)
		}
	}
	c := &conn{ep: e, addr: e.newAddr(identity{2, 2}, "2-2"), reg: e.region, pair: 5, server: true, recvEvent: -1, done: make(chan struct{}), scratch: make([]byte, bufferSize)}
	if err := c.attach(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		tx := e.region.tx(5)
		for i := range ringSlots {
			shm.Uint64(tx, offSlots+i*slotSize).Store(uint64(makeDescriptor(1, 0, 0, typeExpected)))
		}
		shm.Uint32(tx, offProdTail).Store((shm.Uint32(tx, offConsTail).Load() - 1) & ringMask)
		if n := c.receive(receiveBatch); n != receiveBatch {
			t.Errorf("%d messages are taken in a row", n)
		}
	}
}

// clientConn waits for the server's connection of a client.
func clientConn(t *testing.T, server *Endpoint, pair int) (c *conn) {
	t.Helper()
	eventually(t, "the client is connected", func() bool {
		c = server.clientOf(pair)
		return c != nil && c.addr.conn.Load() == c
	})
	return c
}

// TestNoNoticeAfterTheEnd sends a notice over a connection that another goroutine has ended: nothing is written and no
// doorbell rung, because the pair may be another client's by then, and the doorbell's number another file's.
func TestNoNoticeAfterTheEnd(t *testing.T) {
	server, _ := serve(t, Config{})
	raw := newRaw(t, server)
	raw.announceExtended()
	c := clientConn(t, server, raw.pair)
	c.fail(na.Unreachable, errReleased)
	eventually(t, "it is torn down", func() bool { return server.clientOf(raw.pair) == nil })
	c.notify(typeEvicted)
	if d, _, ok := raw.in.peek(); ok {
		t.Errorf("a message of type %#x", d.kind())
	}
	if raw.moreTokens() {
		t.Error("the doorbell was rung")
	}
}

// TestLeaverIsNotEvicted looks for connections to evict while one ends whose client has left: eviction would keep its pair.
func TestLeaverIsNotEvicted(t *testing.T) {
	server, _ := serve(t, Config{})
	c := &conn{ep: server, addr: server.newAddr(identity{1, 1}, "1-1"), reg: server.region, ext: &block{}, pair: 5, server: true}
	if err := c.attach(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c.idleSince = now.Add(-2 * idleLeast)
	if !c.evictable(now) {
		t.Error("an idle connection is not evicted")
	}
	c.ending.Store(&ending{kind: na.Unreachable, err: errReleased})
	if c.evictable(now) {
		t.Error("a connection is evicted whose client has left")
	}
}

// TestEvictionBesideTeardowns looks for the host with most connections while connections are torn down by other goroutines.
func TestEvictionBesideTeardowns(t *testing.T) {
	server, _ := serve(t, Config{Quota: hostquota.NewBook(hostquota.Limits{hostquota.Connections: 64})})
	for range 8 {
		raw := newRaw(t, server)
		raw.announceExtended()
		c := clientConn(t, server, raw.pair)
		var wg sync.WaitGroup
		wg.Go(func() { c.fail(na.Unreachable, errReleased) })
		for range 100 { // of a host below its share nothing is evicted
			server.evict(time.Now(), func(s *share) *hostquota.Account {
				_, engine := s.accounts()
				return engine
			})
		}
		wg.Wait()
	}
	eventually(t, "nothing is held", func() bool { return server.cfg.Quota.Used(hostquota.Connections) == 0 })
}

// TestOwedTokensAreBounded has a client take very many messages without a doorbell, and then send one. The server rings for
// those that the ring can hold, because it rings with the lock held that answers take, and others wait for the poller.
func TestOwedTokensAreBounded(t *testing.T) {
	server, _ := serve(t, Config{})
	raw := newRaw(t, server)
	raw.announceBusy()
	c := clientConn(t, server, raw.pair)
	c.addr.mu.Lock()
	c.unsignaled = 1 << 40
	c.addr.mu.Unlock()
	raw.announce()
	good := open(t, Config{})
	calls(t, good, server.own.String())
	shut(t, good)
	for raw.token(); raw.moreTokens(); {
		raw.tokens++
	}
	if raw.tokens > ringSlots {
		t.Errorf("%d tokens for a ring of %d messages", raw.tokens, ringSlots)
	}
	raw.release()
	settled(t, server)
}

// TestStolenPair has a process announce itself by the pair that another one has claimed, whose command is still on its way:
// the pair stays the claimant's.
func TestStolenPair(t *testing.T) {
	server, _ := serve(t, Config{})
	owner, thief := newRaw(t, server), mapRaw(t, server)
	owner.r.claimant(owner.pair).Store(asClaimant(owner.ident))
	thief.pair = owner.pair
	thief.announceExtended()
	eventually(t, "the thief is found out", func() bool { return server.stats.violations.Load() == 1 })
	if err := thief.r.commands.push(makeCommand(thief.ident, thief.pair, commandReserved, 0)); err != nil {
		t.Fatal(err)
	}
	owner.announce()
	owner.request(1, []byte("mine"))
	if _, msg := owner.answer(); string(msg) != "mine" {
		t.Errorf("got %q", msg)
	}
	if c := server.clientOf(owner.pair); c == nil || c.addr.ident != owner.ident {
		t.Error("the pair is another's")
	}
	owner.release()
	settled(t, server)
	if v := owner.r.claimant(owner.pair).Load(); v != 0 {
		t.Errorf("a free pair is claimed by %#x", v)
	}
}

// TestFaultsAreCounted has a process send many faulty commands: all are counted, few are described, and a command without
// fault is obeyed after them.
func TestFaultsAreCounted(t *testing.T) {
	const faults = 4 * maxFaults
	trail := audit.New(nil)
	server, _ := serve(t, Config{Audit: trail})
	c := newRaw(t, server)
	for range faults {
		c.datagram(makeCommand(c.ident, 0, 0, 0))
	}
	eventually(t, "all are counted", func() bool { return counted(trail, audit.Broken) == faults })
	if n := server.stats.violations.Load(); n != faults {
		t.Errorf("%d complaints, want %d", n, faults)
	}
	var few uint64
	for _, k := range trail.Counts() {
		if k.Event == audit.Broken && k.Cause != causeManyFaults {
			few += k.N
		}
	}
	if few < maxFaults || few == faults {
		t.Errorf("%d faults of %d are described, want %d in each %v", few, faults, maxFaults, faultWindow)
	}
	c.announce()
	c.request(1, []byte("good"))
	if _, msg := c.answer(); string(msg) != "good" {
		t.Errorf("got %q", msg)
	}
	c.release()
	settled(t, server)
}

func TestOffendersAreBounded(t *testing.T) {
	var o offenders
	for pid := range int32(2 * maxFaulty) {
		o.note(pid)
	}
	if n := o.note(1); n != 2 {
		t.Errorf("fault %d of a process, want 2", n)
	}
	if n := o.note(maxFaulty); n != 0 || len(o.faults) != maxFaulty {
		t.Errorf("fault %d of one process more than are counted; %d are counted", n, len(o.faults))
	}
	o.refresh(time.Now())
	if n := o.note(maxFaulty); n != 1 {
		t.Errorf("fault %d in a new window, want 1", n)
	}
}

// TestFullSocket connects to a server that does not read its socket, which is full: the call is made when the server goes on.
func TestFullSocket(t *testing.T) {
	prefix := privatePrefix("s")
	s := start(t, "server", prefixEnv+"="+prefix)
	addr := s.expect("ready ")
	client := open(t, Config{Prefix: prefix})
	to, _ := lookup(t, client, addr).(*Addr)
	s.Suspend()
	for err := error(nil); !errors.Is(err, unix.EAGAIN); {
		if err = client.sendCommand(client.cfg.socketPath(to.uri), makeCommand(client.ident, 0, 0, 0)); err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
	}
	send, recv := newSignal(), newSignal()
	client.RecvExpected(&recv.op, to, 1, make([]byte, 8))
	client.SendRequest(&send.op, to, 1, []byte("late"))
	eventually(t, "it waits for room", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		return errors.Is(to.connectErr, errSocketFull)
	})
	s.Resume()
	if err := errors.Join(send.wait(t), recv.wait(t)); err != nil || recv.op.N != 4 {
		t.Errorf("%d bytes, %v", recv.op.N, err)
	}
}

// flooder does one thing that no client should, as often as it can, until standard input ends.
func (p *player) flooder(target, step string) error {
	uri, ident, err := parseTarget(target, hostID)
	if err != nil {
		return err
	}
	cfg, err := p.cfg.withDefaults()
	if err != nil {
		return err
	}
	m, err := shm.Open(cfg.objectPath(uri), regionSize, extendedSize)
	if err != nil {
		return err
	}
	r := newRegion(m)
	if err := r.check(ident); err != nil {
		return err
	}
	sock, err := openSocket()
	if err != nil {
		return err
	}
	e := &Endpoint{sock: sock}
	path, pair, own := cfg.socketPath(uri), r.claimPair(), identity{int32(os.Getpid()), 0}
	doorbell, _ := unix.Eventfd(0, unix.EFD_NONBLOCK)
	recvEvent, _ := unix.Eventfd(0, unix.EFD_NONBLOCK)
	if err := e.sendCommand(path, makeCommand(own, pair, commandReserved, 0), doorbell, recvEvent); err != nil {
		return err
	}
	out := producer(r.tx(pair))
	var flood func()
	switch step {
	case "datagrams":
		flood = func() { _ = unix.Sendto(sock, []byte("garbage"), unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: path}) }
	case "connections":
		flood = func() {
			if pair := r.claimPair(); pair >= 0 && e.sendCommand(path, makeCommand(own, pair, commandReserved, 0), doorbell, recvEvent) != nil {
				r.releasePair(pair)
			} else if pair >= 0 {
				for errors.Is(e.sendCommand(path, makeCommand(own, pair, commandReleased, 0)), unix.EAGAIN) {
				}
			}
		}
	case "commands":
		tail := shm.Uint32(r.commands.b, offProdTail)
		flood = func() { tail.Store((tail.Load() + 100) & commandMask) }
	case "messages":
		flood = func() {
			if !out.full() {
				out.push(makeDescriptor(77, 0, 0, typeExpected))
				_ = addTokens(doorbell, 1)
			}
		}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		p.say("ready")
	}()
	for {
		select {
		case <-over:
			return nil
		default:
			flood()
		}
	}
}

// TestFloods has processes send commands to the socket and to the command ring without end, connect and leave, and send
// messages that no caller waits for: the calls of others are answered, and others connect.
func TestFloods(t *testing.T) {
	for _, step := range []string{"datagrams", "connections", "commands", "messages"} {
		t.Run(step, func(t *testing.T) {
			server, _ := serve(t, Config{Prefix: privatePrefix("w")})
			good := open(t, Config{Prefix: server.cfg.Prefix})
			calls(t, good, server.own.String())
			c := start(t, "flooder", prefixEnv+"="+server.cfg.Prefix, targetEnv+"="+server.own.String(), stepEnv+"="+step)
			c.expect("ready")
			for range 3 {
				calls(t, good, server.own.String())
				fresh := open(t, Config{Prefix: server.cfg.Prefix})
				calls(t, fresh, server.own.String())
				shut(t, fresh)
			}
			c.Send("")
		})
	}
}
