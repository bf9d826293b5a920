package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/internal/rig"
)

// next takes the next event of the channel, which rig.Must be of type want, and
// acknowledges it.
func next(t *testing.T, ch *EventChannel, want EventType) *Event {
	t.Helper()
	e, err := ch.Get(rig.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if e.Type != want {
		t.Fatalf("got event %v, want %v", e, want)
	}
	e.Ack()
	return e
}

// newChannel makes a channel that ends with the test.
func newChannel(t *testing.T) *EventChannel {
	t.Helper()
	ch := NewEventChannel(nil)
	rig.CloseAll(t, ch)
	return ch
}

// listening makes an identifier that listens.
func listening(t *testing.T, ch *EventChannel, dev *verbs.Device, backlog int) *ID {
	t.Helper()
	id := rig.Must(ch.NewID(dev))(t)
	if err := id.Listen(rig.Loopback, verbs.ListenConfig{Backlog: backlog}); err != nil {
		t.Fatal(err)
	}
	return id
}

// routed makes an identifier that is ready to connect to addr.
func routed(t *testing.T, ch *EventChannel, dev *verbs.Device, addr netip.AddrPort) *ID {
	t.Helper()
	id := rig.Must(ch.NewID(dev))(t)
	if err := id.ResolveAddr(addr.String(), time.Minute); err != nil {
		t.Fatal(err)
	}
	next(t, ch, EventAddrResolved)
	if err := id.ResolveRoute(time.Minute); err != nil {
		t.Fatal(err)
	}
	next(t, ch, EventRouteResolved)
	return id
}

// The order of calls and events is that of rdma_cm(7), for both sides.
func TestCMConnection(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	client, server := newChannel(t), newChannel(t)
	lid := listening(t, server, dev, 0)
	cid := routed(t, client, dev, lid.LocalAddr())
	if cid.RemoteAddr() != lid.LocalAddr() || cid.Conn() != nil {
		t.Errorf("resolved %v, want %v", cid.RemoteAddr(), lid.LocalAddr())
	}
	if err := cid.Connect(a.QP, verbs.ConnParam{PrivateData: []byte("ping")}); err != nil {
		t.Fatal(err)
	}
	req := next(t, server, EventConnectRequest)
	if req.Listener != lid || req.ID == lid || string(req.Param.PrivateData) != "ping" {
		t.Errorf("got request %+v", req)
	}
	if req.ID.LocalAddr() != lid.LocalAddr() || !req.ID.RemoteAddr().IsValid() {
		t.Errorf("addresses of the request: %v, %v", req.ID.LocalAddr(), req.ID.RemoteAddr())
	}
	if err := req.ID.Accept(b.QP, verbs.ConnParam{PrivateData: []byte("pong")}); err != nil {
		t.Fatal(err)
	}
	if e := next(t, server, EventEstablished); e.ID != req.ID {
		t.Error("established: another identifier")
	}
	if e := next(t, client, EventEstablished); e.ID != cid || string(e.Param.PrivateData) != "pong" {
		t.Errorf("established: got %+v", e)
	}
	if cid.LocalAddr() != cid.Conn().LocalAddr() || cid.RemoteAddr() != lid.LocalAddr() {
		t.Errorf("addresses of the connection: %v, %v", cid.LocalAddr(), cid.RemoteAddr())
	}
	if err := cid.Disconnect(); err != nil {
		t.Fatal(err)
	}
	for _, ch := range []*EventChannel{client, server} {
		if e := next(t, ch, EventDisconnected); e.Err != nil {
			t.Errorf("an orderly end has the error %v", e.Err)
		}
	}
	if err := errors.Join(cid.Close(), req.ID.Close(), lid.Close(), cid.Close()); err != nil {
		t.Error(err)
	}
}

func TestCMReject(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	ch := newChannel(t)
	lid := listening(t, ch, dev, 4)
	cid := routed(t, ch, dev, lid.LocalAddr())
	for _, privateData := range []string{"first", "again"} { // after a refusal it can ask again
		if err := cid.Connect(a.QP, verbs.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		req := next(t, ch, EventConnectRequest)
		rig.WantErr(t, req.ID.Reject(make([]byte, 1000)), verbs.ErrInvalid, "private data")
		if err := req.ID.Reject([]byte(privateData)); err != nil {
			t.Error(err)
		}
		rig.WantErr(t, req.ID.Reject(nil), verbs.ErrInvalid, "the identifier is over")
		if e := next(t, ch, EventRejected); string(e.Param.PrivateData) != privateData || e.Err == nil {
			t.Errorf("got %+v", e)
		}
	}
}

// A request that nobody answers is rejected when its identifier is closed.
func TestCMCloseRejects(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	ch := newChannel(t)
	lid := listening(t, ch, dev, 4)
	cid := routed(t, ch, dev, lid.LocalAddr())
	if err := cid.Connect(a.QP, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	req := next(t, ch, EventConnectRequest)
	if err := req.ID.Close(); err != nil {
		t.Error(err)
	}
	next(t, ch, EventRejected)
}

// A connection request that the program has not taken is rejected when the listener is closed.
func TestCMCloseListenerRejects(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	client, server := newChannel(t), newChannel(t)
	lid := listening(t, server, dev, 4)
	cid := routed(t, client, dev, lid.LocalAddr())
	if err := cid.Connect(a.QP, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	<-server.wake // the request is in the queue
	if err := lid.Close(); err != nil {
		t.Error(err)
	}
	next(t, client, EventRejected)
	server.mu.Lock()
	defer server.mu.Unlock()
	if n := len(server.ids); n != 0 {
		t.Errorf("%d identifiers are left", n)
	}
}

func TestCMConnectRefused(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	ch := newChannel(t)
	cid := routed(t, ch, dev, netip.MustParseAddrPort("127.0.0.1:1"))
	if err := cid.Connect(a.QP, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if e := next(t, ch, EventRejected); !errors.Is(e.Err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", e.Err)
	}
}

func TestDialFailure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want EventType
	}{
		{&verbs.RejectedError{}, EventRejected},
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), EventRejected},
		{fmt.Errorf("dial: %w", syscall.ECONNRESET), EventRejected},
		{fmt.Errorf("dial: %w", context.DeadlineExceeded), EventUnreachable},
		{&verbs.Error{Op: "dial", Err: os.ErrDeadlineExceeded}, EventUnreachable},
		{syscall.EHOSTUNREACH, EventUnreachable},
		{syscall.ENETUNREACH, EventUnreachable},
		{errors.New("else"), EventConnectError},
	} {
		if e := dialFailure(c.err); e.Type != c.want || !errors.Is(e.Err, c.err) {
			t.Errorf("%v: got %v, want %v", c.err, e.Type, c.want)
		}
	}
}

func TestCMResolveErrors(t *testing.T) {
	dev, f := rig.NewFake(t)
	f.Attr.Ports = []verbs.PortAttr{{State: verbs.PortDown, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	ch := newChannel(t)
	id := rig.Must(ch.NewID(dev))(t)
	for in, want := range map[string]string{
		"nonsense":         "missing port",
		"[2001:db8::1]:80": "no address of the family of [[2001:db8::1]:80]",
	} {
		if err := id.ResolveAddr(in, 0); err != nil {
			t.Fatal(err)
		}
		rig.WantErr(t, next(t, ch, EventAddrError).Err, verbs.ErrInvalid, want)
	}
	if err := id.ResolveAddr("192.0.2.9:80", 0); err != nil {
		t.Fatal(err)
	}
	next(t, ch, EventAddrResolved)
	if err := id.ResolveRoute(0); err != nil {
		t.Fatal(err)
	}
	if e := next(t, ch, EventRouteError); e.Err == nil {
		t.Error("no cause")
	}
	f.Fail(errors.New("boom"))
	if err := id.ResolveRoute(0); err != nil { // a failure leaves the state before
		t.Fatal(err)
	}
	next(t, ch, EventRouteError)
}

// The time limit of a look-up is kept, and so is Close.
// parity: V50
func TestCMResolveTimeout(t *testing.T) {
	dev, _ := rig.NewFake(t)
	ch := newChannel(t)
	forever := func(ctx context.Context, _ string) ([]netip.AddrPort, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	id := rig.Must(ch.NewID(dev))(t)
	id.resolve = forever
	if err := id.ResolveAddr("host:1", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	rig.WantErr(t, next(t, ch, EventAddrError).Err, context.DeadlineExceeded)

	if err := id.ResolveAddr("host:1", 0); err != nil {
		t.Fatal(err)
	}
	if err := id.Close(); err != nil { // waits for the look-up to end
		t.Error(err)
	}
}

func TestCMStates(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	ch := newChannel(t)
	id := rig.Must(ch.NewID(dev))(t)
	for name, call := range map[string]func() error{
		"route":      func() error { return id.ResolveRoute(0) },
		"connect":    func() error { return id.Connect(a.QP, verbs.ConnParam{}) },
		"accept":     func() error { return id.Accept(a.QP, verbs.ConnParam{}) },
		"reject":     func() error { return id.Reject(nil) },
		"disconnect": func() error { return id.Disconnect() },
	} {
		t.Run(name, func(t *testing.T) { rig.WantErr(t, call(), verbs.ErrInvalid, "the identifier is idle, not") })
	}
	rig.WantErr(t, id.Connect(nil, verbs.ConnParam{}), verbs.ErrInvalid, "queue pair is nil")
	rig.WantErr(t, id.Accept(rig.NewSide(t, rig.MemDevice(t)).QP, verbs.ConnParam{}), verbs.ErrInvalid, "another device")
	rig.WantErr(t, id.Connect(a.QP, verbs.ConnParam{TypeOfService: 8}), errors.ErrUnsupported, "TypeOfService", "mem0")
	rig.WantErr(t, id.Accept(a.QP, verbs.ConnParam{Source: rig.Loopback}), verbs.ErrInvalid, "Source")
	rig.WantErr(t, id.Listen(rig.Loopback, verbs.ListenConfig{Backlog: -1}), verbs.ErrInvalid, "Backlog")
	rig.WantErr(t, id.Listen(rig.Loopback, verbs.ListenConfig{OnlyIPv6: true}), verbs.ErrInvalid, "OnlyIPv6", "127.0.0.1")
	if err := id.Listen(rig.Loopback, verbs.ListenConfig{Backlog: 1}); err != nil { // the failed attempt has left it idle
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	rig.WantErr(t, id.ResolveAddr("host:1", 0), verbs.ErrClosed)
	rig.WantErr(t, id.WriteEvent(EventEstablished, nil), verbs.ErrClosed)
	rig.WantErr(t, id.Migrate(newChannel(t)), verbs.ErrClosed)
	if id.LocalAddr().Port() == 0 {
		t.Error("the address is forgotten")
	}
}

// An event that this package does not know is logged and handed on; nothing ends.
// parity: V51
func TestCMUnknownEvent(t *testing.T) {
	dev, _ := rig.NewFake(t)
	log := rig.NewLogLines()
	ch := NewEventChannel(slog.New(log))
	rig.CloseAll(t, ch)
	id := rig.Must(ch.NewID(dev))(t)
	const unknown = EventType(99)
	if err := errors.Join(id.WriteEvent(unknown, errors.New("odd")), id.WriteEvent(EventTimewaitExit, nil)); err != nil {
		t.Fatal(err)
	}
	e := next(t, ch, unknown)
	if got := e.String(); got != "UNKNOWN EVENT: odd" {
		t.Errorf("got %q", got)
	}
	if got := <-log.Lines; got != "unknown connection management event" {
		t.Errorf("logged %q", got)
	}
	if got := next(t, ch, EventTimewaitExit).String(); got != "RDMA_CM_EVENT_TIMEWAIT_EXIT" {
		t.Errorf("got %q", got)
	}
	if len(log.Lines) != 0 {
		t.Errorf("a known event was logged: %q", <-log.Lines)
	}
}

// Every event of rdma_cm passes through a channel in order.
// parity: V51
func TestCMAllEvents(t *testing.T) {
	dev, _ := rig.NewFake(t)
	ch := newChannel(t)
	id := rig.Must(ch.NewID(dev))(t)
	for e := range EventType(NumEventTypes) {
		if err := id.WriteEvent(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	for e := range EventType(NumEventTypes) {
		if got := next(t, ch, e); got.ID != id || got.String() != e.String() {
			t.Errorf("got %+v", got)
		}
	}
}

// parity: V51
func TestCMAck(t *testing.T) {
	dev, _ := rig.NewFake(t)
	ch := newChannel(t)
	id := rig.Must(ch.NewID(dev))(t)
	other := newChannel(t)
	for range 3 {
		if err := id.WriteEvent(EventAddrChange, nil); err != nil {
			t.Fatal(err)
		}
	}
	e1, e2 := rig.Must(ch.Get(t.Context()))(t), rig.Must(ch.Get(t.Context()))(t)
	rig.WantErr(t, id.Close(), verbs.ErrBusy, "2 of its events are not acknowledged")
	e1.Ack()
	e1.Ack() // once is enough, twice does no harm
	rig.WantErr(t, id.Migrate(other), verbs.ErrBusy, "1 of its events")
	e2.Ack()
	if err := id.Migrate(other); err != nil {
		t.Fatal(err)
	}
	e2.Ack()
	next(t, other, EventAddrChange) // the third was moved along
	if err := errors.Join(id.Migrate(other), id.Close()); err != nil {
		t.Error(err)
	}
}

// A listener moves with the requests that nobody has taken.
// parity: V51
func TestCMMigrateListener(t *testing.T) {
	dev := rig.MemDevice(t)
	a, b := rig.NewSide(t, dev), rig.NewSide(t, dev)
	client, from, to := newChannel(t), NewEventChannel(nil), newChannel(t)
	lid := listening(t, from, dev, 4)
	cid := routed(t, client, dev, lid.LocalAddr())
	if err := cid.Connect(a.QP, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	<-from.wake // the request is in the queue
	if err := errors.Join(lid.Migrate(to), from.Close()); err != nil {
		t.Fatal(err)
	}
	rig.WantErr(t, lid.Migrate(from), verbs.ErrClosed)
	req := next(t, to, EventConnectRequest)
	if err := req.ID.Accept(b.QP, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	next(t, to, EventEstablished)
	next(t, client, EventEstablished)
}

func TestCMGet(t *testing.T) {
	dev, _ := rig.NewFake(t)
	ch := NewEventChannel(nil)
	id := rig.Must(ch.NewID(dev))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ch.Get(ctx)
	rig.WantErr(t, err, context.Canceled)
	if err := id.WriteEvent(EventAddrChange, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.Get(ctx); err != nil {
		t.Errorf("an event is there, but: %v", err)
	}
	waiting := make(chan error)
	for range 2 {
		go func() { _, err := ch.Get(t.Context()); waiting <- err }()
	}
	for range 2 { // closing twice does no harm; the event not acknowledged is no obstacle
		if err := ch.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		rig.WantErr(t, <-waiting, verbs.ErrClosed)
	}
	_, err = ch.NewID(dev)
	rig.WantErr(t, err, verbs.ErrClosed)
	rig.WantErr(t, id.WriteEvent(EventAddrChange, nil), verbs.ErrClosed)
}

// Two goroutines get the events of one channel; none is left behind.
func TestCMGetTogether(t *testing.T) {
	dev, _ := rig.NewFake(t)
	ch := newChannel(t)
	id := rig.Must(ch.NewID(dev))(t)
	const total = 200
	got := make(chan error, total)
	for range 2 {
		go func() {
			for range total / 2 {
				e, err := ch.Get(rig.Context(t))
				if err == nil {
					e.Ack()
				}
				got <- err
			}
		}()
	}
	for range total {
		if err := id.WriteEvent(EventAddrChange, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range total {
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
}

// Requests beyond the backlog wait in the device, not in the queue.
func TestCMBacklog(t *testing.T) {
	dev := rig.MemDevice(t)
	client, server := newChannel(t), newChannel(t)
	lid := listening(t, server, dev, 1)
	for n := range 2 {
		cid := routed(t, client, dev, lid.LocalAddr())
		if err := cid.Connect(rig.NewSide(t, dev).QP, verbs.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			<-server.wake // the device refuses the second request if the first is not taken, because the backlog is the device's too
		}
	}
	server.mu.Lock()
	queued := len(server.queue)
	server.mu.Unlock()
	if queued != 1 {
		t.Fatalf("%d requests are queued, want 1", queued)
	}
	server.signal()
	for range 2 { // taking the first makes room for the second
		if err := next(t, server, EventConnectRequest).ID.Reject(nil); err != nil {
			t.Error(err)
		}
		next(t, client, EventRejected)
	}
}

// When the device takes the listener away, the identifier says so.
func TestCMDeviceRemoval(t *testing.T) {
	dev := rig.MemDevice(t)
	ch := newChannel(t)
	id := listening(t, ch, dev, 1)
	id.mu.Lock()
	l := id.lis
	id.mu.Unlock()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	rig.WantErr(t, next(t, ch, EventDeviceRemoval).Err, verbs.ErrClosed)
}

// Closing the channel gives up whatever its identifiers are at.
func TestCMCloseChannel(t *testing.T) {
	dev := rig.MemDevice(t)
	a := rig.NewSide(t, dev)
	client, server := NewEventChannel(nil), NewEventChannel(nil)
	lid := listening(t, server, dev, 4)
	cid := routed(t, client, dev, lid.LocalAddr())
	if err := cid.Connect(a.QP, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	<-server.wake // nobody will answer the request
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Error(err)
	}
	rig.WantErr(t, cid.Connect(a.QP, verbs.ConnParam{}), verbs.ErrClosed)
	if err := errors.Join(cid.Close(), lid.Close()); err != nil {
		t.Error(err)
	}
}
