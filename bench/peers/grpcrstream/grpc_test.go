package grpcrstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"cinnabar/identity"
	"cinnabar/internal/tlstest"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openDevice opens the RDMA device that CINNABAR_RDMA_DEVICE names, in builds with such devices, or the software device if it
// names none, and returns it with an address to listen at.
func openDevice(t testing.TB) (*verbs.Device, netip.AddrPort) {
	t.Helper()
	name := os.Getenv("CINNABAR_RDMA_DEVICE")
	open := func() (*verbs.Device, error) { return rdmacore.Open(name) }
	if name == "" {
		open = func() (*verbs.Device, error) { return iwarp.Open(iwarp.Config{}) }
	}
	dev, err := open()
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	attr, err := dev.Query()
	must(t, err)
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if name != "" { // such devices have addresses of their own
		at = attr.Ports[0].Addrs[slices.IndexFunc(attr.Ports[0].Addrs, netip.Addr.Is4)]
	}
	return dev, netip.AddrPortFrom(at, 0)
}

// rig is a server and a client on one device.
type rig struct {
	srv    *grpc.Server
	served chan error
	client *grpc.ClientConn
	inside chan struct{} // a Wait call has arrived
	left   chan error    // how its context ended, nil if it was let go
	let    chan struct{} // closed to let Wait calls go
	shut   chan struct{} // closed with the listener
}

// start makes a rig that ends with the test.
func start(t testing.TB) *rig {
	t.Helper()
	dev, at := openDevice(t)
	return startOn(t, dev, at)
}

// startOn is start on a device.
func startOn(t testing.TB, dev *verbs.Device, at netip.AddrPort) *rig {
	t.Helper()
	r := &rig{served: make(chan error, 1), inside: make(chan struct{}, 1), left: make(chan error, 1), let: make(chan struct{}), shut: make(chan struct{})}
	r.srv = newServer(r.wait)
	r.listen(t, dev, at)
	return r
}

func (r *rig) listen(t testing.TB, dev *verbs.Device, at netip.AddrPort) {
	t.Helper()
	n := NewNetwork(dev)
	t.Cleanup(n.Close)
	l, err := n.Listen(at)
	must(t, err)
	go func() {
		r.served <- r.srv.Serve(&noticed{Listener: l, closed: sync.OnceFunc(func() { close(r.shut) })})
	}()
	r.client, err = newClient(n, l.Addr())
	must(t, err)
	t.Cleanup(func() {
		must(t, r.client.Close())
		r.srv.Stop()
		if err := <-r.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
}

// noticed is a listener that tells when it is closed.
type noticed struct {
	net.Listener
	closed func()
}

func (l *noticed) Close() error {
	err := l.Listener.Close()
	l.closed()
	return err
}

// wait is the Wait method.
func (r *rig) wait(ctx context.Context) error {
	r.inside <- struct{}{}
	select {
	case <-ctx.Done():
		r.left <- ctx.Err()
		return ctx.Err()
	case <-r.let:
		r.left <- nil
		return nil
	}
}

// limit bounds a call; it is there for what hangs.
func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) echo(ctx context.Context, b []byte) ([]byte, error) {
	var out wrapperspb.BytesValue
	err := r.client.Invoke(ctx, echoMethod, wrapperspb.Bytes(b), &out)
	return out.Value, err
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v, want %v: %v", got, want, err)
	}
}

// TestTLS makes calls over a software device with TLS and a token. gRPC itself has no encryption then, and needs none.
func TestTLS(t *testing.T) {
	local, tok := tlstest.NewCA(t).Local(t), identity.NewToken()
	dev, err := iwarp.Open(iwarp.Config{TLS: local, Token: tok})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	r := startOn(t, dev, netip.MustParseAddrPort("127.0.0.1:0"))
	for _, size := range []int{0, 1, 70_000, 3 << 20} {
		data := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		got, err := r.echo(limit(t), data)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes: other bytes came back", size)
		}
	}
	stream, err := r.client.NewStream(limit(t), &countStream, countMethod)
	must(t, err)
	must(t, errors.Join(stream.SendMsg(wrapperspb.Int32(100)), stream.CloseSend()))
	for i := range int32(100) {
		var n wrapperspb.Int32Value
		must(t, stream.RecvMsg(&n))
		if n.Value != i {
			t.Fatalf("%d came in the place of %d", n.Value, i)
		}
	}
}

func TestUnary(t *testing.T) {
	r := start(t)
	for _, size := range []int{0, 1, 64, 70_000, 1 << 20, 3 << 20} {
		data := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		got, err := r.echo(limit(t), data)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back of %d, or others", len(got), size)
		}
	}
	wantCode(t, r.client.Invoke(limit(t), "/"+serviceName+"/Nothing", &emptypb.Empty{}, &emptypb.Empty{}), codes.Unimplemented)
}

func TestServerStream(t *testing.T) {
	const n = 5000
	r := start(t)
	stream, err := r.client.NewStream(limit(t), &countStream, countMethod)
	must(t, err)
	must(t, stream.SendMsg(wrapperspb.Int32(n)))
	must(t, stream.CloseSend())
	var got wrapperspb.Int32Value
	for i := range int32(n) {
		must(t, stream.RecvMsg(&got))
		if got.Value != i {
			t.Fatalf("message %d is %d", i, got.Value)
		}
	}
	if err := stream.RecvMsg(&got); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// The client gives up: its call fails, and the handler's context ends.
func TestCancel(t *testing.T) {
	r := start(t)
	ctx, cancel := context.WithCancel(limit(t))
	called := make(chan error, 1)
	go func() { called <- r.client.Invoke(ctx, waitMethod, &emptypb.Empty{}, &emptypb.Empty{}) }()
	<-r.inside
	cancel()
	wantCode(t, <-called, codes.Canceled)
	if err := <-r.left; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler saw %v", err)
	}
	if _, err := r.echo(limit(t), nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// A deadline passes, in the call and, if it has come so far, in the handler.
func TestDeadline(t *testing.T) {
	r := start(t)
	_, err := r.echo(limit(t), nil) // the connection is there
	must(t, err)
	ctx, cancel := context.WithTimeout(limit(t), 20*time.Millisecond)
	defer cancel()
	wantCode(t, r.client.Invoke(ctx, waitMethod, &emptypb.Empty{}, &emptypb.Empty{}), codes.DeadlineExceeded)
	if _, err := r.echo(limit(t), nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	const calls = 100
	r := start(t)
	ctx := limit(t)
	ends := make(chan error, calls)
	for i := range calls {
		go func() {
			data := bytes.Repeat([]byte{byte(i)}, 1000*i)
			got, err := r.echo(ctx, data)
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("other bytes came back")
			}
			ends <- err
		}()
	}
	for range calls {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
}

// A server that stops in order lets the call under way end, and takes no more.
func TestGracefulStop(t *testing.T) {
	r := start(t)
	called := make(chan error, 1)
	go func() { called <- r.client.Invoke(limit(t), waitMethod, &emptypb.Empty{}, &emptypb.Empty{}) }()
	<-r.inside
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.srv.GracefulStop()
	}()
	<-r.shut
	select {
	case <-stopped:
		t.Error("the server has not waited for the call")
	default:
	}
	close(r.let)
	must(t, errors.Join(<-called, <-r.left))
	<-stopped
	_, err := r.echo(limit(t), nil)
	wantCode(t, err, codes.Unavailable)
}

// A server that stops at once ends the calls under way, on both sides.
func TestStop(t *testing.T) {
	r := start(t)
	called := make(chan error, 1)
	go func() { called <- r.client.Invoke(limit(t), waitMethod, &emptypb.Empty{}, &emptypb.Empty{}) }()
	<-r.inside
	r.srv.Stop()
	wantCode(t, <-called, codes.Unavailable)
	if err := <-r.left; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler saw %v", err)
	}
}

func BenchmarkUnary(b *testing.B) {
	r := start(b)
	data := make([]byte, 64)
	ctx := limit(b)
	_, err := r.echo(ctx, data)
	must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.echo(ctx, data); err != nil {
			b.Fatal(err)
		}
	}
}
