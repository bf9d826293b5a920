package autosm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/na"
	"cinnabar/internal/na/ofitcp"
	"cinnabar/internal/na/sm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must happen.
const patience = 20 * time.Second

// call is an operation that a test waits for.
type call struct {
	op   na.Op
	done chan struct{}
}

func newCall() *call {
	c := &call{done: make(chan struct{}, 1)}
	c.op.Done = c
	return c
}

func (c *call) Complete(*na.Op) { c.done <- struct{}{} }

// expired returns a channel that is closed after the patience of the tests, or at the end of the test.
func expired(t *testing.T) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx.Done()
}

func (c *call) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-c.done:
	case <-expired(t):
		t.Fatal("the operation does not end")
	}
	return c.op.Err
}

// request is a message that an endpoint has got.
type request struct {
	from na.Addr
	tag  uint32
	data string
}

// inbox takes requests.
type inbox chan request

func (b inbox) Request(m *na.Message) na.Task {
	b <- request{m.From, m.Tag, string(m.Data)}
	return nil
}

// open opens an endpoint over ofi+tcp and shared memory.
func open(t *testing.T) (*Endpoint, inbox) {
	t.Helper()
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	got := make(inbox, 16)
	ep, err := Open(t.Context(), sm.Config{Listen: true, Handler: got}, func() (na.Endpoint, error) {
		return ofitcp.Open(t.Context(), ofitcp.Config{Address: "ofi+tcp://127.0.0.1", Listen: true, Handler: got})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ep.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return ep.(*Endpoint), got
}

// message returns a message with the room that the endpoint asks for.
func message(room int, text string) []byte { return append(make([]byte, room), text...) }

// find returns the address for operations that a string stands for.
func find(t *testing.T, e *Endpoint, s string) na.Addr {
	t.Helper()
	a, err := e.Lookup(s)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := a.(na.Named); ok {
		if a = n.Reached(); a == nil {
			t.Fatalf("%s is not reached", s)
		}
	}
	return a
}

// exchange sends a request and its response, and returns the address from which the request came.
func exchange(t *testing.T, e *Endpoint, to na.Addr, server *Endpoint, got inbox) (from na.Addr) {
	t.Helper()
	const tag = 7
	receive, send, respond := newCall(), newCall(), newCall()
	buf := make([]byte, e.Limits().MaxResponse)
	e.RecvExpected(&receive.op, to, tag, buf)
	e.SendRequest(&send.op, to, tag, message(e.Limits().RequestRoom, "question"))
	if err := send.wait(t); err != nil {
		t.Fatal(err)
	}
	var r request
	select {
	case r = <-got:
	case <-expired(t):
		t.Fatal("no request")
	}
	if r.tag != tag || r.data != "question" {
		t.Errorf("request %q with tag %d", r.data, r.tag)
	}
	server.SendExpected(&respond.op, r.from, tag, message(server.Limits().ResponseRoom, "answer"))
	if err := errors.Join(respond.wait(t), receive.wait(t)); err != nil {
		t.Fatal(err)
	}
	if text := string(buf[:receive.op.N]); text != "answer" {
		t.Errorf("response %q", text)
	}
	return r.from
}

// TestEndpoint exchanges messages over both networks, and transfers by the handles of each.
// parity: N06
func TestEndpoint(t *testing.T) {
	client, _ := open(t)
	server, got := open(t)
	data := []byte(strings.Repeat("data", 1000))
	mem, err := server.Register(data, na.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	handle, shared := mem.AppendHandle(nil), mem.(na.SharedHandle).AppendSharedHandle(nil)
	_, tcp, _ := strings.Cut(server.Addr().String(), "#ofi+")
	for _, tc := range []struct {
		name, addr, from string
		shared           []byte
		shares           bool
	}{
		{"shared memory", server.Addr().String(), "na+sm://", shared, true},
		{"the network", "ofi+" + tcp, "ofi+tcp://", nil, false},
		{"the network, with a handle of shared memory", "ofi+" + tcp, "ofi+tcp://", shared, false},
	} {
		to := find(t, client, tc.addr)
		if client.Shares(to) != tc.shares {
			t.Errorf("%s: shared memory is used: %v", tc.name, client.Shares(to))
		}
		if client.DrivesTransfers(to) == tc.shares {
			t.Errorf("%s: a transfer needs a goroutine that receives: %v", tc.name, tc.shares)
		}
		from := exchange(t, client, to, server, got)
		if !strings.HasPrefix(from.String(), tc.from) || server.Shares(from) != tc.shares {
			t.Errorf("%s: the request comes from %s", tc.name, from)
		}
		r, err := client.ParseHandles(handle, tc.shared)
		if err != nil || r.Len() != uint64(len(data)) {
			t.Fatalf("%s: %v, %v", tc.name, r, err)
		}
		into := make([]byte, len(data))
		get := newCall()
		client.Get(&get.op, client.Part(to, len(tc.shared) > 0), []na.Fragment{{Remote: r, Local: into}})
		if err := get.wait(t); err != nil || !bytes.Equal(into, data) {
			t.Errorf("%s: get: %v", tc.name, err)
		}
		put := newCall()
		r, _ = client.ParseHandles(handle, tc.shared)
		client.Put(&put.op, client.Part(to, len(tc.shared) > 0), []na.Fragment{{Remote: r, Offset: 4, Local: []byte("DATA")}})
		if err := put.wait(t); err != nil || string(data[:12]) != "dataDATAdata" {
			t.Errorf("%s: put: %v, %q", tc.name, err, data[:12])
		}
		copy(data, "datadata")
	}
}

// TestTransferWithoutHandle refuses a transfer over shared memory if the memory has no handle of it, and finds the network's address of
// a peer with both.
// parity: N06
func TestTransferWithoutHandle(t *testing.T) {
	client, _ := open(t)
	server, got := open(t)
	data := []byte("data")
	mem, err := client.Register(data, na.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	from := exchange(t, client, find(t, client, server.Addr().String()), server, got)
	if a := server.Part(from, false); a != nil {
		t.Errorf("a peer in shared memory alone has the address %v in the network", a)
	}
	r, err := server.ParseHandle(mem.AppendHandle(nil))
	if err != nil {
		t.Fatal(err)
	}
	get := newCall()
	server.Get(&get.op, from, []na.Fragment{{Remote: r, Local: make([]byte, 4)}})
	if err := get.wait(t); na.KindOf(err) != na.Invalid {
		t.Errorf("get: %v", err)
	}
	into := make([]byte, 4)
	server.Get(&get.op, server.Part(find(t, server, client.Addr().String()), false), []na.Fragment{{Remote: r, Local: into}})
	if err := get.wait(t); err != nil || string(into) != "data" {
		t.Errorf("get over the network: %v, %q", err, into)
	}
}

// TestAddresses compares addresses of both networks, and reads them from their bytes.
// parity: N06 H127
func TestAddresses(t *testing.T) {
	e, _ := open(t)
	other, _ := open(t)
	s := other.Addr().String()
	host, rest, _ := strings.Cut(s, "#")
	near, far, _ := strings.Cut(rest, "#")
	for _, own := range []string{e.Addr().String(), strings.Replace(e.Addr().String(), "uid://", "uid://1", 1)} {
		if a := find(t, e, own); !e.Addr().Equal(a) {
			t.Errorf("%s is not the own address", own)
		}
	}
	whole := find(t, e, s)
	for _, part := range []string{s, near, far} {
		if a := find(t, e, part); !whole.Equal(a) || e.Addr().Equal(a) {
			t.Errorf("%s is another process than %s, or this one", part, s)
		}
	}
	if whole.String() != s {
		t.Errorf("%s becomes %s", s, whole)
	}
	network, shared := other.AppendAddr(nil, other.Addr()), other.AppendSharedAddr(nil, other.Addr())
	a, err := e.ParseAddrs(network, shared)
	if err != nil || !a.Equal(whole) || !e.Shares(a) || e.Part(a, false).String() != far || e.Part(a, true).String() != near {
		t.Errorf("the bytes stand for %v, %v", a, err)
	}
	if self, err := other.ParseAddrs(network, shared); err != nil || self != other.Addr() {
		t.Errorf("the own bytes stand for %v, %v", self, err)
	}
	gone := bytes.Clone(shared)
	copy(gone, "\xff\xff\xff\x7f")
	if a, err := e.ParseAddrs(network, gone); err != nil || e.Shares(a) || a.String() != far {
		t.Errorf("a process that does not exist is %v, %v", a, err)
	}
	if _, err := e.ParseAddrs(network, shared[:3]); na.KindOf(err) != na.Protocol {
		t.Errorf("half an address: %v", err)
	}
	// Another host has the same identifier.
	abroad := host + "#" + near + "#ofi+tcp://192.0.2.1:1"
	if a, err := e.Lookup(abroad); err != nil || e.Shares(a) || a.String() != "ofi+tcp://192.0.2.1:1" {
		t.Errorf("%s is %v, %v", abroad, a, err)
	}
	// A host name is not looked up for the choice.
	if a, err := e.Lookup(host + "#" + near + "#ofi+tcp://some-host:1"); err != nil || a.String() != "ofi+tcp://some-host:1" {
		t.Errorf("a host name is %v, %v", a, err)
	}
}

// TestChoiceAfterLoss chooses the network when the process is gone from shared memory, and shared memory when it is there again.
// parity: N06
func TestChoiceAfterLoss(t *testing.T) {
	e, _ := open(t)
	server, got := open(t)
	a, err := e.Lookup(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n := a.(na.Named)
	first := n.Reached()
	if !e.Shares(first) || n.Reached() != first {
		t.Fatalf("the address is %v at first, and %v then", first, n.Reached())
	}
	exchange(t, e, first, server, got)
	region := "/dev/shm/na_sm-" + strings.TrimPrefix(server.Part(server.Addr(), true).String(), "na+sm://")
	if err := server.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.Done():
	case <-expired(t):
		t.Fatal("the connection lives on")
	}
	if _, err := os.Stat(region); err == nil {
		t.Errorf("%s is left", region)
	}
	if a := n.Reached(); e.Shares(a) {
		t.Errorf("a process that has ended is reached at %v", a)
	}
	if a, err := n.Resolve(t.Context()); err != nil || e.Shares(a) {
		t.Errorf("a process that has ended is resolved to %v, %v", a, err)
	}
}

// TestOtherProcess looks up addresses in which the parts are those of two processes of this host, as a process in another container makes
// them: its /dev/shm is another one, where its number has the region that another process has here. The network leads to it.
// parity: N06
func TestOtherProcess(t *testing.T) {
	e, _ := open(t)
	one, _ := open(t)
	two, _ := open(t)
	host, _, _ := strings.Cut(e.Addr().String(), "#")
	far := two.Part(two.Addr(), false)
	for name, near := range map[string]*Endpoint{"this process": e, "another process": one} {
		s := host + "#" + near.Part(near.Addr(), true).String() + "#" + far.String()
		if a := find(t, e, s); e.Shares(a) || a.String() != far.String() {
			t.Errorf("with the number of %s: the address becomes %s", name, a)
		}
	}
	a, err := e.ParseAddrs(two.AppendAddr(nil, two.Addr()), one.AppendSharedAddr(nil, one.Addr()))
	if err != nil || e.Shares(a) || a.String() != far.String() {
		t.Errorf("the bytes with the number of another process stand for %v, %v", a, err)
	}
}

// TestListensAt finds the process that listens at an address of TCP.
// parity: N06
func TestListensAt(t *testing.T) {
	e, _ := open(t)
	self := e.Part(e.Addr(), false)
	if err := listensAt(os.Getpid(), self); err != nil {
		t.Error(err)
	}
	if err := listensAt(os.Getppid(), self); err == nil {
		t.Errorf("the parent of this process listens at %s", self)
	}
	any, err := net.Listen("tcp", ":0") // with IPv6, if the host has it
	if err != nil {
		t.Fatal(err)
	}
	port := any.Addr().(*net.TCPAddr).Port
	if err := listensAt(os.Getpid(), find(t, e, fmt.Sprintf("ofi+tcp://127.0.0.1:%d", port))); err != nil {
		t.Error(err)
	}
	if err := any.Close(); err != nil {
		t.Fatal(err)
	}
	if err := listensAt(os.Getpid(), find(t, e, fmt.Sprintf("ofi+tcp://127.0.0.1:%d", port))); err == nil {
		t.Error("this process listens at a port that it has closed")
	}
	if err := listensAt(1<<30, self); err == nil {
		t.Error("a process that does not exist listens")
	}
}

// TestOpenFails leaves no part open when the other does not open.
// parity: N06
func TestOpenFails(t *testing.T) {
	if err := sm.Available(); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	failure := errors.New("no network")
	_, err := Open(t.Context(), sm.Config{Listen: true, Handler: make(inbox)}, func() (na.Endpoint, error) { return nil, failure })
	if !errors.Is(err, failure) {
		t.Errorf("the error is %v", err)
	}
	_, err = Open(t.Context(), sm.Config{Address: "na+sm://a/b"}, func() (na.Endpoint, error) {
		t.Error("the network is opened")
		return nil, failure
	})
	if na.KindOf(err) != na.Invalid {
		t.Errorf("the error is %v", err)
	}
}

// TestCancel cancels an operation of each network.
// parity: N06
func TestCancel(t *testing.T) {
	client, _ := open(t)
	server, got := open(t)
	_, tcp, _ := strings.Cut(server.Addr().String(), "#ofi+")
	for _, addr := range []string{server.Addr().String(), "ofi+" + tcp} {
		to := find(t, client, addr)
		exchange(t, client, to, server, got)
		c := newCall()
		client.RecvExpected(&c.op, to, 99, make([]byte, 10))
		client.Cancel(&c.op)
		if err := c.wait(t); na.KindOf(err) != na.Canceled {
			t.Errorf("%s: %v", addr, err)
		}
		client.Cancel(&c.op) // not in flight any more
	}
}
