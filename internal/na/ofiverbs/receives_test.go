package ofiverbs

import (
	"bytes"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/internal/audit"
	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// countingDevice counts the bytes of registered memory, in whole pages, for each protection domain in the order in which they were made.
type countingDevice struct {
	verbs.DeviceDriver

	mu sync.Mutex
	// +checklocks:mu
	pds []*countingPD
}

type countingPD struct {
	verbs.PDDriver
	pinned atomic.Int64
}

type countingMR struct {
	verbs.MRDriver
	pd *countingPD
	n  int64
}

func (d *countingDevice) AllocPD() (verbs.PDDriver, error) {
	pd, err := d.DeviceDriver.AllocPD()
	if err != nil {
		return nil, err
	}
	p := &countingPD{PDDriver: pd}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pds = append(d.pds, p)
	return p, nil
}

// pinned returns the number of bytes that the endpoint opened as number i has registered.
func (d *countingDevice) pinned(i int) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pds[i].pinned.Load()
}

func (p *countingPD) RegMR(r verbs.MRInit, access verbs.Access) (verbs.MRDriver, error) {
	mr, err := p.PDDriver.RegMR(r, access)
	if err != nil {
		return nil, err
	}
	page := int64(os.Getpagesize())
	n := (int64(len(r.Bytes)) + page - 1) / page * page
	p.pinned.Add(n)
	return &countingMR{mr, p, n}, nil
}

func (m *countingMR) Close() error {
	m.pd.pinned.Add(-m.n)
	return m.MRDriver.Close()
}

// openCounting opens a device in memory that counts registered memory, and closes it with the test.
func openCounting(t *testing.T) (*countingDevice, *verbs.Device) {
	t.Helper()
	d := &countingDevice{DeviceDriver: memdev.Open(memdev.Config{})}
	dev := verbs.NewDevice(d)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	return d, dev
}

// TestPinnedMemory counts the registered memory of idle connections, for messages of all sizes: with a receive queue of its own a
// connection has 512 KiB at most. With a shared one it has little more than half of that for the longest messages, and all of it is given back.
// parity: N05
func TestPinnedMemory(t *testing.T) {
	for _, size := range []int{smallestMessage, defaultMessage, eagerLimit} {
		var each [2]int64
		for i, own := range []int{sharedPlaces, -1} {
			count, dev := openCounting(t)
			cfg := Config{Device: dev, MaxRequest: size, MaxResponse: size, OwnQueues: own}
			server := openServer(t, cfg)
			before := count.pinned(0)
			var clients []*Endpoint
			for n := range sharedPlaces {
				client := openEndpoint(t, cfg)
				idle := count.pinned(n + 1)
				ask(t, client, lookup(t, client, server), 1, nil)
				if got := count.pinned(n+1) - idle; got > mostPinned {
					t.Errorf("messages of %d bytes: the client has %d bytes of a connection registered; the limit is %d", size, got, mostPinned)
				}
				clients = append(clients, client)
			}
			each[i] = (count.pinned(0) - before) / sharedPlaces
			for _, c := range clients {
				closeEndpoint(t, c)
			}
			eventually(t, "the end of the connections", func() bool { return count.pinned(0) == before })
		}
		if each[0] > mostPinned {
			t.Errorf("messages of %d bytes: a connection has %d bytes registered; the limit is %d", size, each[0], mostPinned)
		}
		if size > smallestMessage && each[1] > each[0]*11/20 {
			t.Errorf("messages of %d bytes: with a shared queue a connection has %d bytes registered, with one of its own %d", size, each[1], each[0])
		}
	}
}

// sharedWindows returns the number of receives in the windows of the connections of the only shared queue, and the number of all its
// receives without those that the queue counts as lost.
func sharedWindows(t *testing.T, e *Endpoint) (windows, all int) {
	t.Helper()
	e.queues.mu.Lock()
	defer e.queues.mu.Unlock()
	if len(e.queues.list) != 1 {
		t.Fatalf("%d shared queues, want 1", len(e.queues.list))
	}
	q := e.queues.list[0]
	for _, c := range e.connections() {
		c.mu.Lock()
		windows += c.window
		c.mu.Unlock()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return windows, windows + q.common + (sharedPlaces-q.places)*sharedWindow
}

// TestSharedReceives sends more requests at a time, from many clients, than the shared queue has receives. The windows grow, and are never
// larger than the queue.
// parity: N05
func TestSharedReceives(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *verbs.Device{"iwarp": openDevice, "memory": func(t testing.TB) *verbs.Device { return openMemory(t) }} {
		t.Run(name, func(t *testing.T) {
			const clients, calls = 8, 300
			dev := open(t)
			server := openServer(t, Config{Device: dev, OwnQueues: -1})
			for round := range 2 {
				var list []*Endpoint
				var wg sync.WaitGroup
				for range clients {
					client := openEndpoint(t, Config{Device: dev})
					list = append(list, client)
					to := lookup(t, client, server)
					answers, bufs := make([]*call, calls), make([][]byte, calls)
					wg.Go(func() {
						for i := range calls {
							answers[i], bufs[i] = newCall(), make([]byte, 300)
							client.RecvExpected(&answers[i].op, to, uint32(i), bufs[i])
							client.SendRequest(&newCall().op, to, uint32(i), request(client, noise(i)))
						}
						for i, c := range answers {
							if err := c.wait(t, client, to); err != nil || !bytes.Equal(bufs[i][:c.op.N], noise(i)) {
								t.Errorf("response %d: %v, %d bytes", i, err, c.op.N)
							}
						}
					})
				}
				wg.Wait()
				if windows, all := sharedWindows(t, server); windows <= clients*sharedWindow || all != sharedMost {
					t.Errorf("round %d: %d receives in windows, which have not grown, or %d receives in all, not %d", round, windows, all, sharedMost)
				}
				for _, c := range list {
					closeEndpoint(t, c)
				}
				eventually(t, "the end of the shared queue", func() bool {
					server.queues.mu.Lock()
					defer server.queues.mu.Unlock()
					return len(server.queues.list) == 0
				})
			}
		})
	}
}

// TestSharedOverrun sends more packets from a peer than it has credits for, which take receives of other connections of the shared queue. Its
// connection ends, and the queue has all receives again.
// parity: N05
func TestSharedOverrun(t *testing.T) {
	trail := audit.New(nil)
	server := openServer(t, Config{OwnQueues: -1, Audit: trail})
	innocent := openEndpoint(t, Config{})
	to := lookup(t, innocent, server)
	ask(t, innocent, to, 1, nil)
	r := newRawPeer(t)
	for range 3 {
		c := r.mustDial(t, server)
		p := r.request(c, 1, "x")
		copy(c.send.Bytes(), p)
		wrs := make([]verbs.SendWR, rawReceives)
		for i := range wrs {
			wrs[i] = verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{c.send.SGE(0, len(p))}}
		}
		for range sharedMost / rawReceives {
			if _, err := c.qp.PostSend(wrs); err != nil {
				break // because the connection has ended, or the queue is full
			}
		}
		<-c.vc.Done()
		eventually(t, "the end of the connection", func() bool { return len(server.connections()) == 1 })
		ask(t, innocent, to, 2, nil)
	}
	if got := counted(trail, audit.Broken, causePacket); got != 3 {
		t.Errorf("%d violations are recorded, want 3", got)
	}
	if _, all := sharedWindows(t, server); all != sharedMost-3 {
		t.Errorf("%d receives in all, not %d and one less for each connection that has ended", all, sharedMost)
	}
}

// TestReceivesOfEndedConnection ends a connection with a shared queue before its packets are processed. Their receives are posted again: so
// many packets as the queue has receives arrive over another connection, on a device where a send completes when its receive has.
// parity: N05
func TestReceivesOfEndedConnection(t *testing.T) {
	dev := openMemory(t)
	server, innocent := openServer(t, Config{Device: dev, OwnQueues: -1}), openEndpoint(t, Config{Device: dev})
	ask(t, innocent, lookup(t, innocent, server), 1, nil)
	fill := func(packets int) {
		r := newRawPeerOn(t, dev)
		rc := r.mustDial(t, server)
		eventually(t, "the connection", func() bool { return len(server.connections()) == 2 })
		list := server.connections()
		c := list[slices.IndexFunc(list, func(c *conn) bool { return c.peer.addr == r.ln.Addr() })]
		c.polling.Lock()
		defer eventually(t, "the end of the connection", func() bool { return len(server.connections()) == 1 })
		defer c.polling.Unlock()
		for range packets {
			rc.put(t, r.request(rc, 1, "x"))
		}
		c.fail(na.Unreachable, errEnded)
	}
	fill(3 * pollBatch) // more than one poll takes
	fill(sharedMost)
}

// counted returns the number of events of a cause.
func counted(trail *audit.Trail, event audit.Event, cause string) uint64 {
	for _, n := range trail.Counts() {
		if n.Event == event && n.Cause == cause {
			return n.N
		}
	}
	return 0
}

// TestOwnQueues checks which connections share receives: those that peers make beyond Config.OwnQueues, unless the peer gives no
// credits and therefore takes none. Such a peer could use all receives of a shared queue.
func TestOwnQueues(t *testing.T) {
	server := openServer(t, Config{OwnQueues: 2})
	shared := func() (n int) {
		for _, c := range server.connections() {
			if c.shared != nil {
				n++
			}
		}
		return n
	}
	r := newRawPeer(t)
	sent := newCall()
	server.SendRequest(&sent.op, r.addr(t, server), 1, request(server, nil)) // the server's own connection
	r.accept(t)
	for i, want := range []int{0, 1, 2} {
		client := openEndpoint(t, Config{})
		ask(t, client, lookup(t, client, server), 1, nil)
		if got := shared(); got != want {
			t.Errorf("with %d clients %d connections share receives, want %d", i+1, got, want)
		}
	}
	without := newRawPeer(t)
	req := without.cmRequest()
	req.flow = flowOff
	if _, err := without.dial(t, server, appendRequest(nil, req)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection", func() bool { return len(server.connections()) == 5 })
	if got := shared(); got != 2 {
		t.Errorf("%d connections share receives, want 2 without that of the peer that gives no credits", got)
	}
}

// TestDevicesThatShare checks that connections share receives only on devices with such queues, where no packet ends a connection for want
// of a receive.
func TestDevicesThatShare(t *testing.T) {
	all := verbs.CapSRQ | verbs.CapRNRWait
	for _, c := range []struct {
		attr verbs.DeviceAttr
		want bool
	}{
		{verbs.DeviceAttr{Caps: all}, true}, {verbs.DeviceAttr{Caps: verbs.CapSRQ}, false}, {verbs.DeviceAttr{Caps: verbs.CapRNRWait}, false},
		{verbs.DeviceAttr{Caps: all, MaxSRQWR: sharedMost - 1}, false}, {verbs.DeviceAttr{Caps: all, MaxSRQWR: sharedMost, MaxCQE: 1000}, true},
		{verbs.DeviceAttr{Caps: all, MaxCQE: sharedMost}, false},
	} {
		c.attr.MaxPrivateData = 56
		s, err := shapeOf(&Config{MaxRequest: defaultMessage, MaxResponse: defaultMessage}, &c.attr)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.ofShared(&c.attr).receives > 0; got != c.want {
			t.Errorf("%v, %d receives, %d completions: shares %v", c.attr.Caps, c.attr.MaxSRQWR, c.attr.MaxCQE, got)
		}
	}
}

// TestWindows follows the windows of connections of one queue: those that send grow while receives are free, and shrink when others have
// taken them. The queue takes no more connections when those that ended may have cost it all common receives.
func TestWindows(t *testing.T) {
	q := &sharedQueue{}
	q.mu.Lock()
	q.common = sharedCommon
	q.mu.Unlock()
	common := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.common
	}
	windows := make([]int, sharedPlaces)
	for i := range windows {
		if !q.join() {
			t.Fatalf("no place for connection %d", i)
		}
		windows[i] = sharedWindow
	}
	if q.join() {
		t.Error("a queue takes more connections than it has places for")
	}
	sum := func() (n int) {
		for _, w := range windows {
			n += w
		}
		return n + common()
	}
	use := func(list []int) {
		for range 100 {
			for i := range list {
				w := q.resize(list[i], 2)
				if w < sharedWindow || w > mostReceives || w < list[i]-2 || w > list[i]+2 {
					t.Fatalf("a window of %d becomes %d after 2 packets", list[i], w)
				}
				list[i] = w
			}
			if got := sum(); got != sharedMost || common() < 0 {
				t.Fatalf("%d receives in all, of which %d are free", got, common())
			}
		}
	}
	use(windows[:1])
	alone := windows[0]
	use(windows)
	if alone < 10*sharedWindow || windows[0] >= alone/2 || windows[sharedPlaces-1] <= sharedWindow {
		t.Errorf("alone a connection has a window of %d; among others the first has %d and the last %d", alone, windows[0], windows[sharedPlaces-1])
	}
	e := &Endpoint{}
	ended := 0
	for ; common() > 0; ended++ {
		if err := e.leave(q, windows[0]); err != nil {
			t.Fatal(err)
		}
		if windows[0] = sharedWindow; !q.join() {
			break
		}
	}
	if got := sum(); ended > sharedCommon || got < sharedMost-ended-1 || got > sharedMost-ended {
		t.Errorf("after %d connections that have ended the queue has %d receives", ended, got)
	}
}

// TestExhaustedQueue has connections stay in a shared queue that takes no more of them, because many others have ended. There is
// another queue only if the connections that stay would have as many receives in queues of their own.
// parity: N05
func TestExhaustedQueue(t *testing.T) {
	const enough = sharedMost / mostReceives
	for _, stay := range []int{enough - 1, enough} {
		server := openServer(t, Config{OwnQueues: -1})
		for range stay {
			client := openEndpoint(t, Config{})
			ask(t, client, lookup(t, client, server), 1, nil)
		}
		server.queues.mu.Lock()
		q := server.queues.list[0]
		server.queues.mu.Unlock()
		for range 2 * sharedCommon {
			q.mu.Lock()
			q.places++
			q.mu.Unlock()
			if err := server.leave(q, sharedWindow); err != nil {
				t.Fatal(err)
			}
		}
		late := openEndpoint(t, Config{})
		ask(t, late, lookup(t, late, server), 1, nil)
		server.queues.mu.Lock()
		queues, own := len(server.queues.list), 0
		server.queues.mu.Unlock()
		for _, c := range server.connections() {
			if c.shared == nil {
				own++
			}
		}
		if another := stay == enough; another && (queues != 2 || own != 0) || !another && (queues != 1 || own != 1) {
			t.Errorf("with %d connections in a queue without places there are %d queues, and %d connections with one of their own", stay, queues, own)
		}
	}
}

// TestNoRoomForSharedQueue has a device with room for the buffers of a connection, and not for those of a shared queue. A client gets a
// connection nevertheless.
// parity: N05
func TestNoRoomForSharedQueue(t *testing.T) {
	inner := memdev.Open(memdev.Config{})
	scarce := &scarceDevice{DeviceDriver: inner}
	scarce.room.Store(1 << 30)
	dev := verbs.NewDevice(scarce)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	server := openServer(t, Config{Device: dev, OwnQueues: -1})
	scarce.room.Store(mostPinned)
	client := openEndpoint(t, Config{Device: verbs.NewDevice(inner)})
	ask(t, client, lookup(t, client, server), 1, nil)
	if c := server.connections()[0]; c.shared != nil {
		t.Error("the connection shares receives for which the device has no room")
	}
}
