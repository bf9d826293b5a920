package verbs

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
)

// next takes the next event of the channel, which must be of type want, and
// acknowledges it.
func next(t *testing.T, ch *EventChannel, want CMEventType) *CMEvent {
	t.Helper()
	e, err := ch.Get(testContext(t))
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
	closeAll(t, ch)
	return ch
}

// listening makes an identifier that listens.
func listening(t *testing.T, ch *EventChannel, dev *Device, backlog int) *ID {
	t.Helper()
	id := must(ch.NewID(dev))(t)
	if err := id.Listen(loopback, backlog); err != nil {
		t.Fatal(err)
	}
	return id
}

// routed makes an identifier that is ready to connect to addr.
func routed(t *testing.T, ch *EventChannel, dev *Device, addr netip.AddrPort) *ID {
	t.Helper()
	id := must(ch.NewID(dev))(t)
	if err := id.ResolveAddr(addr.String(), time.Minute); err != nil {
		t.Fatal(err)
	}
	next(t, ch, CMAddrResolved)
	if err := id.ResolveRoute(time.Minute); err != nil {
		t.Fatal(err)
	}
	next(t, ch, CMRouteResolved)
	return id
}

// The order of calls and events is that of rdma_cm(7), for both sides.
func TestCMConnection(t *testing.T) {
	dev := memDevice(t)
	a, b := newSide(t, dev), newSide(t, dev)
	client, server := newChannel(t), newChannel(t)
	lid := listening(t, server, dev, 0)
	cid := routed(t, client, dev, lid.LocalAddr())
	if cid.RemoteAddr() != lid.LocalAddr() || cid.Conn() != nil {
		t.Errorf("resolved %v, want %v", cid.RemoteAddr(), lid.LocalAddr())
	}
	if err := cid.Connect(a.qp, ConnParam{PrivateData: []byte("ping")}); err != nil {
		t.Fatal(err)
	}
	req := next(t, server, CMConnectRequest)
	if req.Listener != lid || req.ID == lid || string(req.Param.PrivateData) != "ping" {
		t.Errorf("got request %+v", req)
	}
	if req.ID.LocalAddr() != lid.LocalAddr() || !req.ID.RemoteAddr().IsValid() {
		t.Errorf("addresses of the request: %v, %v", req.ID.LocalAddr(), req.ID.RemoteAddr())
	}
	if err := req.ID.Accept(b.qp, ConnParam{PrivateData: []byte("pong")}); err != nil {
		t.Fatal(err)
	}
	if e := next(t, server, CMEstablished); e.ID != req.ID {
		t.Error("established: another identifier")
	}
	if e := next(t, client, CMEstablished); e.ID != cid || string(e.Param.PrivateData) != "pong" {
		t.Errorf("established: got %+v", e)
	}
	if cid.LocalAddr() != cid.Conn().LocalAddr() || cid.RemoteAddr() != lid.LocalAddr() {
		t.Errorf("addresses of the connection: %v, %v", cid.LocalAddr(), cid.RemoteAddr())
	}
	if err := cid.Disconnect(); err != nil {
		t.Fatal(err)
	}
	for _, ch := range []*EventChannel{client, server} {
		if e := next(t, ch, CMDisconnected); e.Err != nil {
			t.Errorf("an orderly end has the error %v", e.Err)
		}
	}
	if err := errors.Join(cid.Close(), req.ID.Close(), lid.Close(), cid.Close()); err != nil {
		t.Error(err)
	}
}

func TestCMReject(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	ch := newChannel(t)
	lid := listening(t, ch, dev, 4)
	cid := routed(t, ch, dev, lid.LocalAddr())
	for _, privateData := range []string{"first", "again"} { // after a refusal it can ask again
		if err := cid.Connect(a.qp, ConnParam{}); err != nil {
			t.Fatal(err)
		}
		req := next(t, ch, CMConnectRequest)
		wantErr(t, req.ID.Reject(make([]byte, 1000)), ErrInvalid, "private data")
		if err := req.ID.Reject([]byte(privateData)); err != nil {
			t.Error(err)
		}
		wantErr(t, req.ID.Reject(nil), ErrInvalid, "the identifier is over")
		if e := next(t, ch, CMRejected); string(e.Param.PrivateData) != privateData || e.Err == nil {
			t.Errorf("got %+v", e)
		}
	}
}

// A request that nobody answers is rejected when its identifier is closed.
func TestCMCloseRejects(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	ch := newChannel(t)
	lid := listening(t, ch, dev, 4)
	cid := routed(t, ch, dev, lid.LocalAddr())
	if err := cid.Connect(a.qp, ConnParam{}); err != nil {
		t.Fatal(err)
	}
	req := next(t, ch, CMConnectRequest)
	if err := req.ID.Close(); err != nil {
		t.Error(err)
	}
	next(t, ch, CMRejected)
}

// What peers ask and nobody takes is rejected when the listener is closed.
func TestCMCloseListenerRejects(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	client, server := newChannel(t), newChannel(t)
	lid := listening(t, server, dev, 4)
	cid := routed(t, client, dev, lid.LocalAddr())
	if err := cid.Connect(a.qp, ConnParam{}); err != nil {
		t.Fatal(err)
	}
	<-server.wake // the request is in the queue
	if err := lid.Close(); err != nil {
		t.Error(err)
	}
	next(t, client, CMRejected)
	server.mu.Lock()
	defer server.mu.Unlock()
	if n := len(server.ids); n != 0 {
		t.Errorf("%d identifiers are left", n)
	}
}

func TestCMConnectRefused(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	ch := newChannel(t)
	cid := routed(t, ch, dev, netip.MustParseAddrPort("127.0.0.1:1"))
	if err := cid.Connect(a.qp, ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if e := next(t, ch, CMRejected); !errors.Is(e.Err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", e.Err)
	}
}

func TestDialFailure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want CMEventType
	}{
		{&RejectedError{}, CMRejected},
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), CMRejected},
		{fmt.Errorf("dial: %w", syscall.ECONNRESET), CMRejected},
		{fmt.Errorf("dial: %w", context.DeadlineExceeded), CMUnreachable},
		{&Error{Op: "dial", Err: os.ErrDeadlineExceeded}, CMUnreachable},
		{syscall.EHOSTUNREACH, CMUnreachable},
		{syscall.ENETUNREACH, CMUnreachable},
		{errors.New("else"), CMConnectError},
	} {
		if e := dialFailure(c.err); e.Type != c.want || !errors.Is(e.Err, c.err) {
			t.Errorf("%v: got %v, want %v", c.err, e.Type, c.want)
		}
	}
}

func TestCMResolveErrors(t *testing.T) {
	dev, f := newFake(t)
	f.attr.Ports = []PortAttr{{State: PortDown, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	ch := newChannel(t)
	id := must(ch.NewID(dev))(t)
	for in, want := range map[string]string{
		"nonsense":         "missing port",
		"[2001:db8::1]:80": "no address of the family of [[2001:db8::1]:80]",
	} {
		if err := id.ResolveAddr(in, 0); err != nil {
			t.Fatal(err)
		}
		wantErr(t, next(t, ch, CMAddrError).Err, ErrInvalid, want)
	}
	if err := id.ResolveAddr("192.0.2.9:80", 0); err != nil {
		t.Fatal(err)
	}
	next(t, ch, CMAddrResolved)
	if err := id.ResolveRoute(0); err != nil {
		t.Fatal(err)
	}
	if e := next(t, ch, CMRouteError); e.Err == nil {
		t.Error("no cause")
	}
	f.fail(errors.New("boom"))
	if err := id.ResolveRoute(0); err != nil { // a failure leaves the state before
		t.Fatal(err)
	}
	next(t, ch, CMRouteError)
}

// The time limit of a look-up is kept, and so is Close.
// parity: V50
func TestCMResolveTimeout(t *testing.T) {
	dev, _ := newFake(t)
	ch := newChannel(t)
	forever := func(ctx context.Context, _ string) ([]netip.AddrPort, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	id := must(ch.NewID(dev))(t)
	id.resolve = forever
	if err := id.ResolveAddr("host:1", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	wantErr(t, next(t, ch, CMAddrError).Err, context.DeadlineExceeded)

	if err := id.ResolveAddr("host:1", 0); err != nil {
		t.Fatal(err)
	}
	if err := id.Close(); err != nil { // waits for the look-up to end
		t.Error(err)
	}
}

func TestCMStates(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	ch := newChannel(t)
	id := must(ch.NewID(dev))(t)
	for name, call := range map[string]func() error{
		"route":      func() error { return id.ResolveRoute(0) },
		"connect":    func() error { return id.Connect(a.qp, ConnParam{}) },
		"accept":     func() error { return id.Accept(a.qp, ConnParam{}) },
		"reject":     func() error { return id.Reject(nil) },
		"disconnect": func() error { return id.Disconnect() },
	} {
		t.Run(name, func(t *testing.T) { wantErr(t, call(), ErrInvalid, "the identifier is idle, not") })
	}
	wantErr(t, id.Connect(nil, ConnParam{}), ErrInvalid, "queue pair is nil")
	wantErr(t, id.Accept(newSide(t, memDevice(t)).qp, ConnParam{}), ErrInvalid, "another device")
	wantErr(t, id.Listen(loopback, -1), ErrInvalid, "Backlog")
	if err := id.Listen(loopback, 1); err != nil { // the failed attempt has left it idle
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, id.ResolveAddr("host:1", 0), ErrClosed)
	wantErr(t, id.WriteEvent(CMEstablished, nil), ErrClosed)
	wantErr(t, id.Migrate(newChannel(t)), ErrClosed)
	if id.LocalAddr().Port() == 0 {
		t.Error("the address is forgotten")
	}
}

// An event that this package does not know is logged and handed on; nothing ends.
// parity: V51
func TestCMUnknownEvent(t *testing.T) {
	dev, _ := newFake(t)
	log := newLogLines()
	ch := NewEventChannel(slog.New(log))
	closeAll(t, ch)
	id := must(ch.NewID(dev))(t)
	const unknown = CMEventType(99)
	if err := errors.Join(id.WriteEvent(unknown, errors.New("odd")), id.WriteEvent(CMTimewaitExit, nil)); err != nil {
		t.Fatal(err)
	}
	e := next(t, ch, unknown)
	if got := e.String(); got != "UNKNOWN EVENT: odd" {
		t.Errorf("got %q", got)
	}
	if got := <-log.lines; got != "unknown connection management event" {
		t.Errorf("logged %q", got)
	}
	if got := next(t, ch, CMTimewaitExit).String(); got != "RDMA_CM_EVENT_TIMEWAIT_EXIT" {
		t.Errorf("got %q", got)
	}
	if len(log.lines) != 0 {
		t.Errorf("a known event was logged: %q", <-log.lines)
	}
}

// Every event of rdma_cm passes through a channel in order.
// parity: V51
func TestCMAllEvents(t *testing.T) {
	dev, _ := newFake(t)
	ch := newChannel(t)
	id := must(ch.NewID(dev))(t)
	for e := range CMEventType(NumCMEventTypes) {
		if err := id.WriteEvent(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	for e := range CMEventType(NumCMEventTypes) {
		if got := next(t, ch, e); got.ID != id || got.String() != e.String() {
			t.Errorf("got %+v", got)
		}
	}
}

// parity: V51
func TestCMAck(t *testing.T) {
	dev, _ := newFake(t)
	ch := newChannel(t)
	id := must(ch.NewID(dev))(t)
	other := newChannel(t)
	for range 3 {
		if err := id.WriteEvent(CMAddrChange, nil); err != nil {
			t.Fatal(err)
		}
	}
	e1, e2 := must(ch.Get(t.Context()))(t), must(ch.Get(t.Context()))(t)
	wantErr(t, id.Close(), ErrBusy, "2 of its events are not acknowledged")
	e1.Ack()
	e1.Ack() // once is enough, twice does no harm
	wantErr(t, id.Migrate(other), ErrBusy, "1 of its events")
	e2.Ack()
	if err := id.Migrate(other); err != nil {
		t.Fatal(err)
	}
	e2.Ack()
	next(t, other, CMAddrChange) // the third was moved along
	if err := errors.Join(id.Migrate(other), id.Close()); err != nil {
		t.Error(err)
	}
}

// A listener moves with the requests that nobody has taken.
// parity: V51
func TestCMMigrateListener(t *testing.T) {
	dev := memDevice(t)
	a, b := newSide(t, dev), newSide(t, dev)
	client, from, to := newChannel(t), NewEventChannel(nil), newChannel(t)
	lid := listening(t, from, dev, 4)
	cid := routed(t, client, dev, lid.LocalAddr())
	if err := cid.Connect(a.qp, ConnParam{}); err != nil {
		t.Fatal(err)
	}
	<-from.wake // the request is in the queue
	if err := errors.Join(lid.Migrate(to), from.Close()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, lid.Migrate(from), ErrClosed)
	req := next(t, to, CMConnectRequest)
	if err := req.ID.Accept(b.qp, ConnParam{}); err != nil {
		t.Fatal(err)
	}
	next(t, to, CMEstablished)
	next(t, client, CMEstablished)
}

func TestCMGet(t *testing.T) {
	dev, _ := newFake(t)
	ch := NewEventChannel(nil)
	id := must(ch.NewID(dev))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ch.Get(ctx)
	wantErr(t, err, context.Canceled)
	if err := id.WriteEvent(CMAddrChange, nil); err != nil {
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
		wantErr(t, <-waiting, ErrClosed)
	}
	_, err = ch.NewID(dev)
	wantErr(t, err, ErrClosed)
	wantErr(t, id.WriteEvent(CMAddrChange, nil), ErrClosed)
}

// Two goroutines get the events of one channel; none is left behind.
func TestCMGetTogether(t *testing.T) {
	dev, _ := newFake(t)
	ch := newChannel(t)
	id := must(ch.NewID(dev))(t)
	const total = 200
	got := make(chan error, total)
	for range 2 {
		go func() {
			for range total / 2 {
				e, err := ch.Get(testContext(t))
				if err == nil {
					e.Ack()
				}
				got <- err
			}
		}()
	}
	for range total {
		if err := id.WriteEvent(CMAddrChange, nil); err != nil {
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
	dev := memDevice(t)
	client, server := newChannel(t), newChannel(t)
	lid := listening(t, server, dev, 1)
	for range 2 {
		cid := routed(t, client, dev, lid.LocalAddr())
		if err := cid.Connect(newSide(t, dev).qp, ConnParam{}); err != nil {
			t.Fatal(err)
		}
	}
	<-server.wake
	server.mu.Lock()
	queued := len(server.queue)
	server.mu.Unlock()
	if queued != 1 {
		t.Fatalf("%d requests are queued, want 1", queued)
	}
	server.signal()
	for range 2 { // taking the first makes room for the second
		if err := next(t, server, CMConnectRequest).ID.Reject(nil); err != nil {
			t.Error(err)
		}
		next(t, client, CMRejected)
	}
}

// When the device takes the listener away, the identifier says so.
func TestCMDeviceRemoval(t *testing.T) {
	dev := memDevice(t)
	ch := newChannel(t)
	id := listening(t, ch, dev, 1)
	id.mu.Lock()
	l := id.lis
	id.mu.Unlock()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, next(t, ch, CMDeviceRemoval).Err, ErrClosed)
}

// Closing the channel gives up whatever its identifiers are at.
func TestCMCloseChannel(t *testing.T) {
	dev := memDevice(t)
	a := newSide(t, dev)
	client, server := NewEventChannel(nil), NewEventChannel(nil)
	lid := listening(t, server, dev, 4)
	cid := routed(t, client, dev, lid.LocalAddr())
	if err := cid.Connect(a.qp, ConnParam{}); err != nil {
		t.Fatal(err)
	}
	<-server.wake // nobody will answer the request
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Error(err)
	}
	wantErr(t, cid.Connect(a.qp, ConnParam{}), ErrClosed)
	if err := errors.Join(cid.Close(), lid.Close()); err != nil {
		t.Error(err)
	}
}
