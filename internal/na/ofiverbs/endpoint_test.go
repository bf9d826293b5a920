package ofiverbs

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/verbs"
)

// TestMessages sends requests of all sizes, in both directions over one connection.
func TestMessages(t *testing.T) {
	a, b := openServer(t, Config{}), openServer(t, Config{})
	for i, n := range []int{0, 1, 100, a.Limits().MaxRequest} {
		ask(t, a, lookup(t, a, b), uint32(i), noise(n))
		ask(t, b, lookup(t, b, a), uint32(i), noise(n))
	}
	if n := len(a.connections()); n != 1 {
		t.Errorf("%d connections for one peer", n)
	}
	if l := a.Limits(); l.MaxRequest+l.RequestRoom != 4096 || l.MaxResponse != 4096 {
		t.Errorf("limits are %+v", l)
	}
}

// TestLongMessages checks messages of the size of the eager limit, which libfabric sends in one packet.
func TestLongMessages(t *testing.T) {
	cfg := Config{MaxRequest: eagerLimit, MaxResponse: eagerLimit}
	server, client := openServer(t, cfg), openEndpoint(t, cfg)
	ask(t, client, lookup(t, client, server), 1, noise(client.Limits().MaxRequest))
}

// TestTooLong checks that messages beyond the limits are refused before anything is sent.
func TestTooLong(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	c := newCall()
	client.SendRequest(&c.op, to, 1, make([]byte, 4097))
	c.want(t, na.Truncated)
	client.SendExpected(&c.op, to, 1, make([]byte, 4097))
	c.want(t, na.Truncated)
	client.SendRequest(&c.op, to, 1, make([]byte, client.Limits().RequestRoom-1))
	c.want(t, na.Invalid)
}

// TestManyInFlight has more requests in flight than there are credits, slots and receives.
func TestManyInFlight(t *testing.T) {
	const n = 2000
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	answers, bufs := make([]*call, n), make([][]byte, n)
	for i := range n {
		answers[i], bufs[i] = newCall(), make([]byte, 300)
		client.RecvExpected(&answers[i].op, to, uint32(i), bufs[i])
		client.SendRequest(&newCall().op, to, uint32(i), request(client, noise(i%300)))
	}
	for i, c := range answers {
		if err := c.wait(t, client, to); err != nil || !bytes.Equal(bufs[i][:c.op.N], noise(i%300)) {
			t.Fatalf("response %d: %v, %d bytes", i, err, c.op.N)
		}
	}
}

// TestOneWay sends many requests that are not answered, so that credits travel in packets without messages beside them.
func TestOneWay(t *testing.T) {
	const n = 1000
	var mu sync.Mutex
	var got []string
	done := make(chan struct{})
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, string(m.Data)); len(got) == n {
			close(done)
		}
		return nil
	})})
	client := openEndpoint(t, Config{})
	to := lookup(t, client, server)
	for i := range n {
		c := newCall()
		client.SendRequest(&c.op, to, 0, request(client, []byte(fmt.Sprint(i))))
		if i == n-1 {
			c.want(t, 0)
		}
	}
	<-done
	for i, s := range got {
		if s != fmt.Sprint(i) {
			t.Fatalf("request %d is %q; requests of one peer come in order", i, s)
		}
	}
}

// TestConcurrentClients has goroutines of several clients call one server.
func TestConcurrentClients(t *testing.T) {
	server := openServer(t, Config{})
	var wg sync.WaitGroup
	for i := range 4 {
		client := openEndpoint(t, Config{})
		to := lookup(t, client, server)
		for g := range 4 {
			wg.Go(func() {
				for k := range 50 {
					ask(t, client, to, uint32(g<<16|k), noise(10*i+k))
				}
			})
		}
	}
	wg.Wait()
}

// TestSelf has an endpoint call itself.
func TestSelf(t *testing.T) {
	e := openServer(t, Config{})
	for i := range 3 {
		ask(t, e, lookup(t, e, e), uint32(i), noise(100))
	}
	mem := noise(1000)
	m, err := e.Register(mem, na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := e.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	got, c := make([]byte, 1000), newCall()
	e.Get(&c.op, e.Addr(), []na.Fragment{{Remote: r, Local: got}})
	c.want(t, 0)
	if !bytes.Equal(got, mem) {
		t.Error("an endpoint reads other bytes of itself than it has")
	}
}

// TestCrossingConnects has two endpoints call each other at the same moment, again and again. One connection is left.
func TestCrossingConnects(t *testing.T) {
	for range 20 {
		a, b := openServer(t, Config{}), openServer(t, Config{})
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, pair := range [][2]*Endpoint{{a, b}, {b, a}} {
			wg.Go(func() {
				<-start
				for i := range 3 {
					ask(t, pair[0], lookup(t, pair[0], pair[1]), uint32(i), noise(10))
				}
			})
		}
		close(start)
		wg.Wait()
		eventually(t, "one connection on either side", func() bool { return len(a.connections()) == 1 && len(b.connections()) == 1 })
	}
}

// TestUnreachable calls an address at which no process listens.
func TestUnreachable(t *testing.T) {
	gone, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, gone)
	closeEndpoint(t, gone)
	sent, answer := newCall(), newCall()
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.SendRequest(&sent.op, to, 1, request(client, nil))
	answer.want(t, na.Unreachable)
	sent.want(t, na.Unreachable)
	eventually(t, "no peer with something under way", func() bool { return len(client.active.List()) == 0 })
}

// TestPeerCloses ends the server while calls wait, and then reaches another server at the same address.
func TestPeerCloses(t *testing.T) {
	silent := handlerFunc(func(*na.Message) na.Task { return nil })
	server := openEndpoint(t, Config{Listen: true, Handler: silent})
	client := openEndpoint(t, Config{})
	to := lookup(t, client, server)
	answer := newCall()
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.SendRequest(&newCall().op, to, 1, request(client, nil))
	eventually(t, "a connection", func() bool { return to.Done() != nil })
	done := to.Done()
	closeEndpoint(t, server)
	answer.want(t, na.Unreachable)
	<-done

	again := openServer(t, Config{Address: strings.Replace(server.Addr().String(), scheme, "verbs://", 1)})
	if !again.Addr().Equal(to) {
		t.Fatalf("the server is at %v again, not at %v", again.Addr(), to)
	}
	ask(t, client, to, 2, noise(100))
}

// TestClose ends an endpoint with operations of all kinds. They complete with kind Closed, and so do later ones.
func TestClose(t *testing.T) {
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(*na.Message) na.Task { return nil })})
	client := openEndpoint(t, Config{})
	to := lookup(t, client, server)
	answer := newCall()
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.SendRequest(&newCall().op, to, 1, request(client, nil))
	eventually(t, "a connection", func() bool { return to.Done() != nil })
	closeEndpoint(t, client)
	answer.want(t, na.Closed)
	for _, start := range []func(op *na.Op){
		func(op *na.Op) { client.RecvExpected(op, to, 1, make([]byte, 10)) },
		func(op *na.Op) { client.SendRequest(op, to, 1, request(client, nil)) },
		func(op *na.Op) { client.SendExpected(op, to, 1, nil) },
	} {
		c := newCall()
		start(&c.op)
		c.want(t, na.Closed)
	}
	if _, err := client.Register(make([]byte, 1), na.ReadOnly); na.KindOf(err) != na.Closed {
		t.Errorf("Register after Close: %v", err)
	}
}

// TestCloseSendsResponses closes a server right after it has responded.
func TestCloseSendsResponses(t *testing.T) {
	for range 10 {
		var server *Endpoint
		responded := make(chan struct{})
		server = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
			server.SendExpected(&newCall().op, m.From, m.Tag, []byte("bye"))
			close(responded)
			return nil
		})})
		client := openEndpoint(t, Config{})
		to := lookup(t, client, server)
		answer := newCall()
		client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
		client.SendRequest(&newCall().op, to, 1, request(client, nil))
		<-responded
		closeEndpoint(t, server)
		answer.want(t, 0)
	}
}

// TestShutdown drops requests and refuses connections, while operations under way go on.
func TestShutdown(t *testing.T) {
	server, client, late := openServer(t, Config{}), openEndpoint(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	m, err := server.Register(noise(10), na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	server.Shutdown()
	answer := newCall()
	client.RecvExpected(&answer.op, to, 2, make([]byte, 10))
	client.SendRequest(&newCall().op, to, 2, request(client, nil))
	r, err := client.ParseHandle(m.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	got, c := make([]byte, 10), newCall()
	client.Get(&c.op, to, []na.Fragment{{Remote: r, Local: got}})
	c.want(t, 0)
	client.Cancel(&answer.op)
	answer.want(t, na.Canceled)
	c = newCall()
	late.SendRequest(&c.op, lookup(t, late, server), 1, request(late, nil))
	c.want(t, na.Unreachable)
}

// TestCancelMessages gives up operations that wait for a connection, a message, or credits.
func TestCancelMessages(t *testing.T) {
	peer := newRawPeer(t)
	client := openEndpoint(t, Config{})
	to := peer.addr(t, client)
	connecting, answer := newCall(), newCall()
	client.SendRequest(&connecting.op, to, 1, request(client, nil))
	client.RecvExpected(&answer.op, to, 1, make([]byte, 10))
	client.Cancel(&connecting.op)
	connecting.want(t, na.Canceled)
	client.Cancel(&answer.op)
	answer.want(t, na.Canceled)
	client.Cancel(&answer.op) // not in flight any more

	conn := peer.accept(t) // which grants no credits
	queued := newCall()
	client.SendRequest(&queued.op, to, 2, request(client, nil))
	eventually(t, "a message that waits for credits", func() bool { return strings.Contains(client.Report(to), "credits") })
	client.Cancel(&queued.op)
	queued.want(t, na.Canceled)
	conn.close(t)
}

// TestExpectedTwice checks that a tag is waited for once at a time, and that a message longer than its buffer is an error.
func TestExpectedTwice(t *testing.T) {
	server, client := openServer(t, Config{}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	first, second := newCall(), newCall()
	buf := make([]byte, 10)
	client.RecvExpected(&first.op, to, 1, buf)
	client.RecvExpected(&second.op, to, 1, buf)
	second.want(t, na.Invalid)
	client.SendRequest(&newCall().op, to, 1, request(client, noise(11)))
	first.want(t, na.Truncated)
}

// TestForeignAddress uses the address of another endpoint.
func TestForeignAddress(t *testing.T) {
	a, b := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	c := newCall()
	a.SendRequest(&c.op, b.Addr(), 1, request(a, nil))
	c.want(t, na.Invalid)
}

// TestAddresses checks the binary forms of addresses.
func TestAddresses(t *testing.T) {
	a, b := openEndpoint(t, Config{}), openEndpoint(t, Config{})
	enc := a.AppendAddr(nil, a.Addr())
	got, err := b.ParseAddr(enc)
	if err != nil || got.String() != a.Addr().String() || !got.Equal(a.Addr()) {
		t.Errorf("%v, %v, want %v", got, err, a.Addr())
	}
	for _, bad := range [][]byte{nil, enc[:len(enc)-1], append([]byte{18}, append(enc[1:8:8], make([]byte, 18)...)...)} {
		if got, err := b.ParseAddr(bad); na.KindOf(err) != na.Protocol {
			t.Errorf("% x is read as %v, %v", bad, got, err)
		}
	}
	if _, err := a.Lookup("ofi+tcp://127.0.0.1:1"); na.KindOf(err) != na.Invalid {
		t.Errorf("Lookup of another network's address: %v", err)
	}
}

// TestOpenErrors checks configurations that cannot be opened.
func TestOpenErrors(t *testing.T) {
	dev := openDevice(t)
	for name, tc := range map[string]struct {
		cfg  Config
		kind na.Kind
		text string
	}{
		"no device":          {Config{}, na.Invalid, "Device"},
		"no handler":         {Config{Device: dev, Listen: true}, na.Invalid, "Handler"},
		"long request":       {Config{Device: dev, MaxRequest: eagerLimit + 1}, na.Invalid, "16384"},
		"short response":     {Config{Device: dev, MaxResponse: 1}, na.Invalid, "64"},
		"negative":           {Config{Device: dev, DialTimeout: -1}, na.Invalid, "DialTimeout"},
		"other network":      {Config{Device: dev, Address: "ofi+tcp://"}, na.Invalid, "ofi+verbs://"},
		"port":               {Config{Device: dev, Address: "verbs://127.0.0.1:x"}, na.Invalid, "65535"},
		"other device":       {Config{Device: dev, Address: "verbs://mlx5_9/127.0.0.1:0"}, na.NotAvailable, "cinnabar0"},
		"unknown interface":  {Config{Device: dev, Address: "verbs://nowhere9"}, na.NotAvailable, "interface"},
		"address of no host": {Config{Device: dev, Address: "verbs://192.0.2.1:0"}, na.NotAvailable, "192.0.2.1"},
	} {
		e, err := Open(t.Context(), tc.cfg)
		if err == nil {
			closeEndpoint(t, e)
		}
		if na.KindOf(err) != tc.kind || !strings.Contains(fmt.Sprint(err), tc.text) {
			t.Errorf("%s: %v, want kind %v and %q", name, err, tc.kind, tc.text)
		}
	}
}

// TestChoice checks the address that an endpoint takes on a device.
func TestChoice(t *testing.T) {
	attr := func(addrs string) *verbs.DeviceAttr {
		a := &verbs.DeviceAttr{Name: "mlx5_0", Ports: []verbs.PortAttr{{}}}
		for _, s := range strings.Fields(addrs) {
			a.Ports[0].Addrs = append(a.Ports[0].Addrs, addrOf(s))
		}
		return a
	}
	card, soft := "fe80::1 2001:db8::1 10.0.0.1", "10.0.0.1 127.0.0.1 ::1"
	for _, tc := range []struct {
		addrs, address string
		listen         bool
		bind, self     string
	}{
		{card, "verbs", true, "10.0.0.1:0", "10.0.0.1"},
		{card, "ofi+verbs://", false, "10.0.0.1:0", "10.0.0.1"},
		{card, "ofi+verbs;ofi_rxm://:7", true, "10.0.0.1:7", "10.0.0.1"},
		{card, "verbs://mlx5_0", true, "10.0.0.1:0", "10.0.0.1"},
		{card, "verbs://mlx5_0/10.0.0.1:7", true, "10.0.0.1:7", "10.0.0.1"},
		{card, "verbs://[2001:db8::1]:7", true, "[2001:db8::1]:7", "2001:db8::1"},
		{card, "verbs://2001:db8::1", true, "[2001:db8::1]:0", "2001:db8::1"},
		{card, "verbs://[::]:7", true, "[::]:7", "2001:db8::1"},
		{soft, "verbs", true, "127.0.0.1:0", "127.0.0.1"},
		{soft, "verbs", false, "10.0.0.1:0", "10.0.0.1"},
		{soft, "verbs://localhost:3", false, "127.0.0.1:3", "127.0.0.1"},
		{soft, "verbs://0.0.0.0:3", true, "0.0.0.0:3", "10.0.0.1"},
	} {
		got, err := choose(tc.address, attr(tc.addrs), netip.Prefix{}, tc.listen)
		if err != nil || got.bind.String() != tc.bind || got.self.String() != tc.self {
			t.Errorf("%s on %s, listen %t: %v, %v, want %s, %s", tc.address, tc.addrs, tc.listen, got, err, tc.bind, tc.self)
		}
	}
	for subnet, want := range map[string]string{"10.0.0.0/8": "10.0.0.1", "::/0": "::1", "127.0.0.0/8": "127.0.0.1"} {
		if got, err := choose("verbs", attr(soft), netip.MustParsePrefix(subnet), true); err != nil || got.self.String() != want {
			t.Errorf("in subnet %s: %v, %v, want %s", subnet, got, err, want)
		}
	}
	for _, address := range []string{"verbs", "verbs://10.0.0.1"} {
		if got, err := choose(address, attr(soft), netip.MustParsePrefix("192.0.2.0/24"), true); na.KindOf(err) != na.NotAvailable || !strings.Contains(err.Error(), "192.0.2.0/24") {
			t.Errorf("%s outside the subnet: %v, %v", address, got, err)
		}
	}
	if got, err := choose("verbs", attr(""), netip.Prefix{}, true); na.KindOf(err) != na.NotAvailable {
		t.Errorf("a device without addresses: %v, %v", got, err)
	}
}

// TestPinned checks how much memory the buffers of a connection have, and that a device's limits are kept.
func TestPinned(t *testing.T) {
	for _, size := range []int{64, 4096, 9000, eagerLimit} {
		for _, depth := range []int{0, 16, 40, 4096} {
			s, err := shapeOf(&Config{MaxRequest: size, MaxResponse: 64}, &verbs.DeviceAttr{MaxQPWR: depth, MaxPrivateData: 56})
			if err != nil {
				t.Fatal(err)
			}
			if pinned := (s.receives + s.slots) * s.receive; pinned > mostPinned {
				t.Errorf("messages of %d bytes: a connection pins %d", size, pinned)
			}
			if depth > 0 && (s.receives > depth || s.slots+s.oneSided > depth) || s.oneSided < 1 || s.slots < leastSlots || s.receives < leastRecvs {
				t.Errorf("messages of %d bytes on queues of %d: %+v", size, depth, s)
			}
		}
	}
	for name, attr := range map[string]verbs.DeviceAttr{
		"MaxQPWR": {MaxQPWR: 4, MaxPrivateData: 56}, "MaxCQE": {MaxCQE: 20, MaxPrivateData: 56}, "MaxPrivateData": {MaxPrivateData: 20},
	} {
		if _, err := shapeOf(&Config{MaxRequest: 4096, MaxResponse: 4096}, &attr); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a device with too low a %s: %v", name, err)
		}
	}
}

// TestQuota makes as many connections from one host as the quota permits, each with a request that is being handled. A further one is refused until
// one of these ends.
func TestQuota(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{hostquota.Connections: 2})
	var server *Endpoint
	server = openEndpoint(t, Config{Quota: book, Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		m.From.(na.Holder).Hold(1)
		return (&echo{server}).Request(m)
	})})
	var clients []*Endpoint
	for range 2 {
		client := openEndpoint(t, Config{})
		ask(t, client, lookup(t, client, server), 1, nil)
		clients = append(clients, client)
	}
	third := openEndpoint(t, Config{})
	to := lookup(t, third, server)
	c := newCall()
	third.SendRequest(&c.op, to, 1, request(third, nil))
	c.want(t, na.Unreachable)
	closeEndpoint(t, clients[0])
	eventually(t, "the end of a connection", func() bool { return book.Used(hostquota.Connections) == 1 })
	ask(t, third, to, 2, nil)
}

// TestCloseWaitsForTasks checks the context of Close.
func TestCloseWaitsForTasks(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	server := openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(*na.Message) na.Task {
		return taskFunc(func() {
			close(begun)
			<-end
		})
	})})
	client := openEndpoint(t, Config{})
	client.SendRequest(&newCall().op, lookup(t, client, server), 1, request(client, nil))
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Close(ctx); err == nil {
		t.Error("Close does not wait for a task")
	}
	close(end)
}
