//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/codec/cereal"
	"cinnabar/codes"
	"cinnabar/internal/cerealtest"
	margoface "cinnabar/margo"
)

// The C++ programs. Templates take the compiler long enough without optimization.
var (
	thalliumPeer = &program{name: "thallium_peer", cpp: true, sources: []string{"thallium_peer.cpp"}, packages: []string{"thallium"}, flags: cpp17}
	rdmaServer   = &program{name: "do_rdma_server", cpp: true, sources: []string{"do_rdma_server.cpp"}, packages: []string{"thallium"}, flags: cpp17}
	rdmaClient   = &program{name: "do_rdma_client", cpp: true, sources: []string{"do_rdma_client.cpp"}, packages: []string{"thallium"}, flags: cpp17}
	values       = &program{name: "values", cpp: true, sources: []string{"values.cpp"}, packages: []string{"thallium"}, flags: cpp17}

	// Its messages begin with the names of types.
	rdmaTypesClient = &program{
		name: "do_rdma_client_types", cpp: true, sources: []string{"do_rdma_client.cpp"}, packages: []string{"thallium"},
		flags: append([]string{"-DTHALLIUM_DEBUG_RPC_TYPES"}, cpp17...),
	}

	cpp17 = []string{"-std=c++17", "-O0"}
)

// TestRecordedCereal shows that the recorded bytes are what the installed Thallium and cereal write.
// parity(peer): T50
func TestRecordedCereal(t *testing.T) {
	if diff := cmp.Diff(dropComments(cerealtest.Recorded), output(t, values, "")); diff != "" {
		t.Errorf("-recorded +installed:\n%s", diff)
	}
}

// thalliumSteps are what a thallium_peer calls at a server, which may be C++ or Go.
var thalliumSteps = []step{
	{"sum x=40 y=2", "ret=0 value=42"},
	{"sum x=40 y=2 provider=42", "ret=0 value=42"},
	{"product x=6 y=7 provider=42", "ret=0 value=42"},
	{"product x=6 y=7", "ret=2"},
	{"sum x=1 y=2 provider=7", "ret=2"},
	{"divide x=-7 y=2", "ret=0 quotient=-3 remainder=-1"},
	{"nothing", "ret=0"},
	{"unknown", "ret=2"},
	{"later x=41", "ret=0 value=42"},
	{"callback x=20 y=22", "ret=0 value=42"},
	{"values", "ret=0 count=" + strconv.Itoa(len(cerealtest.Values())) + " wrong=0"},
	{"bulks", "ret=0 equal=1"},
	{"null", "ret=0 was=1 is=1"},
	{"async count=100", "ret=0 ok=100"},
	{"timed ms=300 timeout=30", "ret=0 timeout=1"},
	{"sum x=1 y=1", "ret=0 value=2"},
	{"identity provider=42", "ret=0 name=calculator"},
	{"hello name=bob", "ret=0"},
	{"hello size=1048576", "ret=0"},
}

// spelled is a transfer: the sizes of both memories, which parts are selected, and how many bytes are to move.
type spelled struct {
	size, total                                      int // at the caller, and at the server that starts the transfer
	remoteOffset, remoteSize, localOffset, localSize int
	moves                                            int
}

var spellings = []string{"remote>>local", "local<<remote", "local>>remote", "remote<<local"}

// transfers are the tutorial's, and larger ones.
var transfers = []spelled{
	{size: 9, total: 6, moves: 6},
	{size: 6, total: 9, moves: 6},
	{size: 1 << 20, total: 1 << 20, moves: 1 << 20},
	{size: 1 << 20, total: 6, moves: 6},
	{size: 64, total: 64, remoteOffset: 3, remoteSize: 45, localOffset: 13, localSize: 45, moves: 45},
	{size: 64, total: 64, remoteOffset: 3, remoteSize: 45, localOffset: 13, localSize: 40, moves: 40},
	{size: 1 << 20, total: 64, remoteOffset: 3, remoteSize: 40, localOffset: 13, localSize: 45, moves: 40},
}

// hashes returns what the memories of both sides must be afterwards.
func (s spelled) hashes(spelling string, seed uint8) (server, caller uint64) {
	local, remote := pattern(s.total, uint32(seed)), pattern(s.size, uint32(seed)+1)
	to, from := local[s.localOffset:], remote[s.remoteOffset:]
	if spelling == "local>>remote" || spelling == "remote<<local" {
		to, from = from, to
	}
	copy(to[:s.moves], from)
	return fnv1a(local), fnv1a(remote)
}

// runTransfers has the client ask for each transfer in each spelling.
func runTransfers(q *peer) {
	q.t.Helper()
	for i, s := range transfers {
		for _, spelling := range spellings {
			server, caller := s.hashes(spelling, uint8(i))
			q.check(fmt.Sprintf("transfer spelling=%s size=%d total=%d remote-offset=%d remote-size=%d local-offset=%d local-size=%d seed=%d",
				spelling, s.size, s.total, s.remoteOffset, s.remoteSize, s.localOffset, s.localSize, i),
				fmt.Sprintf("ret=0 count=%d hash=%d mine=%d", s.moves, server, caller))
		}
	}
}

// TestThalliumCToC shows that thallium_peer and its steps are right: both sides are C++.
func TestThalliumCToC(t *testing.T) {
	server, client := startPeer(t, thalliumPeer), startPeer(t, thalliumPeer)
	client.aim(server.addr)
	runSteps(client, thalliumSteps)
	runTransfers(client)
	for range 2 {
		server.expect("event hello")
	}
	server.expect("event slow")
	client.stop()
	server.stop()
}

// TestThalliumClientC has a C++ client call a Go server.
// parity(peer): T04 T06 T09 T24 T25 T27 T29 T41 T42 T47 T48
func TestThalliumClientC(t *testing.T) {
	s := listenThallium(t, nil)
	client := startPeer(t, thalliumPeer)
	client.aim(s.Addr())
	runSteps(client, thalliumSteps)
	runTransfers(client)
	if got := client.do("where"); got.value("me") != client.addr || got.value("you") != s.Addr() {
		t.Errorf("the client hears %q; it is %s and calls %s", got, client.addr, s.Addr())
	}
	for _, want := range []int{3, 1 << 20} {
		if got := <-s.greets; len(got) != want {
			t.Errorf("a hello has %d bytes; want %d", len(got), want)
		}
	}
	client.stop()
}

// TestThalliumServerC has Go clients call a C++ server, which calls them back.
// parity(peer): T04 T20 T22 T24 T25 T26 T28 T41 T42 T47 T48 T52
func TestThalliumServerC(t *testing.T) {
	q := startPeer(t, thalliumPeer)
	for name, cfg := range map[string]*cinnabar.Config{"default": nil, "no eager": {NoEager: true}} {
		t.Run(name, func(t *testing.T) {
			s := listenThallium(t, cfg)
			callThallium(t, s.Engine, q.addr)
			q.expect("event slow") // it answers a call that was given up; were this side gone, it would try for 120 s
		})
	}
	q.stop()
}

// TestThalliumGoToGo shows that the calls of the test above are right: both sides are Go.
func TestThalliumGoToGo(t *testing.T) {
	s := listenThallium(t, nil)
	callThallium(t, listenThallium(t, nil).Engine, s.Addr())
}

// callThallium calls everything that a thallium_peer serves.
func callThallium(t *testing.T, e *cinnabar.Engine, addr string) {
	t.Helper()
	to, err := e.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &thalliumClient{t: t, e: e, to: to}
	c.calls()
	c.providers()
	c.values()
	c.handles()
	for i, s := range transfers {
		for _, spelling := range spellings {
			c.transfer(s, spelling, uint8(i))
		}
	}
	c.patience()
}

// thalliumClient makes calls in Thallium's flavour.
type thalliumClient struct {
	t  *testing.T
	e  *cinnabar.Engine
	to *cinnabar.Endpoint
}

func (c *thalliumClient) ctx() context.Context { return limited(c.t, patience) }

// equal reports what a call returned, if it is not what it should be.
func equal[T comparable](t *testing.T, what string, want, got T, err error) {
	t.Helper()
	if err != nil || got != want {
		t.Errorf("%s: %v, %v; want %v", what, got, err, want)
	}
}

func (c *thalliumClient) calls() {
	c.t.Helper()
	sum, err := tlSum.Call(c.ctx(), c.to, numbers{40, 2})
	equal(c.t, "sum", 42, sum, err)
	parts, err := tlDivide.Call(c.ctx(), c.to, numbers{-7, 2})
	equal(c.t, "divide", quotient{-3, -1}, parts, err)
	_, err = tlNothing.Call(c.ctx(), c.to, none{})
	equal(c.t, "nothing", none{}, none{}, err)
	where, err := tlWhere.Call(c.ctx(), c.to, none{})
	equal(c.t, "where", whereOut{c.e.Addr(), c.to.String()}, where, err)
	later, err := tlLater.Call(c.ctx(), c.to, 41)
	equal(c.t, "later", 42, later, err)
	back, err := tlCallback.Call(c.ctx(), c.to, numbers{20, 22})
	equal(c.t, "callback", 42, back, err)
	if _, err := tlUnknown.Call(c.ctx(), c.to, none{}); !errors.Is(err, codes.NoEntry) {
		c.t.Errorf("an RPC that nobody has: %v", err)
	}
	c.greet()
	c.atOnce()
}

// greet sends requests without response, one of which is longer than a message. The server has had them when it says so.
func (c *thalliumClient) greet() {
	c.t.Helper()
	before, err := tlHellos.Call(c.ctx(), c.to, none{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range []string{"bob", "", strings.Repeat("x", 1<<20)} {
		if err := tlHello.Send(c.ctx(), c.to, name); err != nil {
			c.t.Error(err)
		}
	}
	for ctx := c.ctx(); ; {
		n, err := tlHellos.Call(ctx, c.to, none{})
		if err != nil || n == before+3 {
			equal(c.t, "hellos", before+3, n, err)
			return
		}
	}
}

// atOnce has many calls in flight.
func (c *thalliumClient) atOnce() {
	c.t.Helper()
	var calls []*cinnabar.Pending[int32]
	for i := range int32(100) {
		calls = append(calls, tlSum.Start(c.ctx(), c.to, numbers{i, i}))
	}
	seen := 0
	for i, p := range cinnabar.Completed(c.ctx(), calls...) {
		got, err := p.Wait()
		equal(c.t, "a call at once", int32(2*i), got, err)
		seen++
	}
	if seen != len(calls) {
		c.t.Errorf("%d of %d calls have ended", seen, len(calls))
	}
}

func (c *thalliumClient) providers() {
	c.t.Helper()
	ph := c.to.Provider(calculatorID)
	sum, err := tlSum.Call(c.ctx(), ph, numbers{40, 2})
	equal(c.t, "sum at the provider", 42, sum, err)
	product, err := tlProduct.Call(c.ctx(), ph, numbers{6, 7})
	equal(c.t, "product at the provider", 42, product, err)
	identity, err := margoface.Identity(c.ctx(), ph)
	equal(c.t, "identity", calculator, identity, err)
	for _, to := range []cinnabar.Target{c.to, c.to.Provider(0), c.to.Provider(nobody), c.to.Provider(65535)} {
		if _, err := tlProduct.Call(c.ctx(), to, numbers{1, 2}); !errors.Is(err, codes.NoEntry) {
			c.t.Errorf("product at %v: %v", to, err)
		}
	}
}

// values sends each value and wants it back.
func (c *thalliumClient) values() {
	c.t.Helper()
	for name, want := range cerealtest.Values() {
		c.value(name, want)
	}
}

func (c *thalliumClient) value(name string, want any) {
	c.t.Helper()
	plan, err := cereal.Codec{}.Plan(reflect.TypeOf(want).Elem())
	if err != nil {
		c.t.Fatal(err)
	}
	sent, err := plan.Append(nil, want)
	if err != nil {
		c.t.Fatal(err)
	}
	back, err := tlValue(name).Call(c.ctx(), c.to, sent)
	if err == nil {
		_, err = sameValue(name, want, back)
	}
	if err != nil {
		c.t.Error(err)
	}
}

// handles sends handles inside containers, and null ones.
func (c *thalliumClient) handles() {
	c.t.Helper()
	b, err := c.e.Expose(cinnabar.ReadWrite, make([]byte, 100_000))
	if err != nil {
		c.t.Fatal(err)
	}
	defer b.Close() // nobody uses it
	h := b.Handle()
	in := bulks{
		List: []cinnabar.BulkHandle{h, {}, h},
		Map:  map[string]holder{"one": {1, h}, "null": {2, cinnabar.BulkHandle{}}},
	}
	out, err := tlBulks.Call(c.ctx(), c.to, in)
	if err != nil {
		c.t.Fatal(err)
	}
	sizes := func(x bulks) string {
		s := fmt.Sprint(len(x.List), len(x.Map), x.Map["one"].Tag, x.Map["one"].Bulk, x.Map["null"].Tag, x.Map["null"].Bulk)
		for _, h := range x.List {
			s += " " + h.String()
		}
		return s
	}
	equal(c.t, "bulks", sizes(in), sizes(out), nil)
	null, err := tlNull.Call(c.ctx(), c.to, cinnabar.BulkHandle{})
	equal(c.t, "null", nullOut{Was: true}, null, err)
}

// transfer has the server start a transfer.
func (c *thalliumClient) transfer(s spelled, spelling string, seed uint8) {
	c.t.Helper()
	memory := pattern(s.size, uint32(seed)+1)
	mode := cinnabar.ReadOnly
	if spelling == "local>>remote" || spelling == "remote<<local" {
		mode = cinnabar.WriteOnly
	}
	b, err := c.e.Expose(mode, memory)
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := tlTransfer.Call(c.ctx(), c.to, transferIn{
		Spelling: spelling, Total: uint64(s.total), Seed: seed, Remote: b.Handle(),
		RemoteOffset: uint64(s.remoteOffset), RemoteSize: uint64(s.remoteSize),
		LocalOffset: uint64(s.localOffset), LocalSize: uint64(s.localSize),
	})
	if err := b.Close(); err != nil {
		c.t.Error(err)
	}
	local, remote := s.hashes(spelling, seed)
	equal(c.t, fmt.Sprintf("%s %+v", spelling, s), transferOut{uint64(s.moves), local}, out, err)
	if got := fnv1a(memory); got != remote {
		c.t.Errorf("%s %+v: the caller's memory is not what it should be", spelling, s)
	}
}

// patience gives a call less time than it takes.
func (c *thalliumClient) patience() {
	c.t.Helper()
	_, err := tlSlow.Call(limited(c.t, 30*time.Millisecond), c.to, 300)
	if !errors.Is(err, codes.Timeout) || !errors.Is(err, context.DeadlineExceeded) {
		c.t.Errorf("a call without time left fails with %v", err)
	}
	sum, err := tlSum.Call(c.ctx(), c.to, numbers{1, 2})
	equal(c.t, "sum after a time-out", 3, sum, err)
}

// TestThalliumClientOnlyC has a C++ client that does not listen use a Go server.
func TestThalliumClientOnlyC(t *testing.T) {
	s := listenThallium(t, nil)
	client := startPeer(t, thalliumPeer, "--client")
	client.aim(s.Addr())
	callback := func(s step) bool { return strings.HasPrefix(s.command, "callback") } // needs a client that can be called
	runSteps(client, slices.DeleteFunc(slices.Clone(thalliumSteps), callback))
	runTransfers(client)
	client.stop()
}

// TestThalliumShutdown ends either side by the other's request.
// parity(peer): T11
func TestThalliumShutdown(t *testing.T) {
	thalliumPeer.executable(t)
	t.Run("C++", func(t *testing.T) {
		q := startPeer(t, thalliumPeer, "--shutdown")
		c := dial(t, margo, q.addr, nil)
		if err := margoface.ShutdownRemote(c.ctx(), c.to); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		q.bye()
	})
	t.Run("Go", func(t *testing.T) {
		s := listenThallium(t, &cinnabar.Config{AllowRemoteShutdown: true})
		q := startPeer(t, thalliumPeer)
		q.aim(s.Addr())
		q.check("shutdown", "ret=0")
		<-s.Done()
		q.stop()
	})
}

// TestProviderDefaults has Margo's and Thallium's peers call each other's procedures: the default provider differs.
// parity(peer): T22 T23
func TestProviderDefaults(t *testing.T) {
	q := startPeer(t, thalliumPeer)
	c := dial(t, margo, q.addr, nil)
	if _, err := margo.sum.Call(c.ctx(), c.to, sumIn{1, 2}); !errors.Is(err, codes.NoEntry) {
		t.Errorf("Margo's default provider at a Thallium server: %v", err)
	}
	out, err := margo.sum.Call(c.ctx(), c.to.Provider(0), sumIn{1, 2}) // two integers are the same in both encodings
	equal(t, "Margo's flavour at provider 0", sumOut{3}, out, err)
	m := startPeer(t, margoPeer)
	to := dial(t, margo, m.addr, nil).to
	sum, err := tlSum.Call(c.ctx(), to.Provider(65535), numbers{1, 2})
	equal(t, "Thallium's flavour at Margo's default provider", 3, sum, err)
	sum, err = tlSum.Call(c.ctx(), to, numbers{1, 2}) // margo_peer serves provider 0 too
	equal(t, "Thallium's flavour at Margo's provider 0", 3, sum, err)
	q.stop()
	m.stop()
}

// matthi is what the tutorial's server prints.
const matthi = "Server received bulk: Matthi"

// TestTutorialRDMA runs the tutorial "Transferring data over RDMA" with either half in either language, with its nine
// bytes, which travel inside the request, and with more, which the server has to pull.
// parity(peer): T05 T08 T20 T21 T27
func TestTutorialRDMA(t *testing.T) {
	rdmaServer.executable(t) // before anything else is built
	server := goProgram(t, "examples/do_rdma/server")
	client := goProgram(t, "examples/do_rdma/client")
	cppHost := func(t *testing.T) *rdmaHost { return startRDMAServer(t) }
	goHost := func(t *testing.T) *rdmaHost { return startExampleServer(t, server) }
	for _, tt := range []struct {
		name   string
		server func(t *testing.T) *rdmaHost
		client func(t *testing.T, addr string) *process
	}{
		{"C++ server, C++ client", cppHost, startRDMAClient},
		{"C++ server, C++ client, 1 MiB", cppHost, startLargeRDMAClient},
		{"C++ server, Go client", cppHost, func(t *testing.T, addr string) *process { return startFile(t, client, "-grace", "0s", addr) }},
		{"Go server, C++ client", goHost, startRDMAClient},
		{"Go server, C++ client, 1 MiB", goHost, startLargeRDMAClient},
		{"Go server, Go client", goHost, func(t *testing.T, addr string) *process { return startFile(t, client, "-grace", "0s", addr) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := tt.server(t)
			c := tt.client(t, host.addr)
			if got := host.expect("Server"); got != matthi {
				t.Errorf("the server prints %q; want %q", got, matthi)
			}
			c.CloseInput()
			if err := c.Wait(); err != nil || c.log() != "" {
				t.Errorf("the client ends with %v\n%s", err, c.log())
			}
			host.end()
			if err := host.Wait(); err != nil {
				t.Errorf("the server ends with %v\n%s", err, host.log())
			}
		})
	}
}

// rdmaHost is the tutorial's server in either language.
type rdmaHost struct {
	*process
	addr string
	end  func() // has it end in its own time
}

func startRDMAServer(t *testing.T) *rdmaHost {
	t.Helper()
	p := start(t, rdmaServer, network)
	return &rdmaHost{p, p.expect("ready").value("addr"), func() { p.CloseInput() }}
}

func startExampleServer(t *testing.T, path string) *rdmaHost {
	t.Helper()
	p := startFile(t, path, network)
	_, addr, _ := strings.Cut(p.expectLog("Server running at address "), "address ")
	return &rdmaHost{p, addr, func() { p.Interrupt() }}
}

func startRDMAClient(t *testing.T, addr string) *process {
	t.Helper()
	return start(t, rdmaClient, addr)
}

// startLargeRDMAClient starts a client whose memory does not travel inside the request. It keeps it until its standard
// input ends.
func startLargeRDMAClient(t *testing.T, addr string) *process {
	t.Helper()
	return start(t, rdmaClient, addr, strconv.Itoa(1<<20))
}

// TestLargeRDMAGo has a Go client with memory that does not travel inside the request at the C++ server.
func TestLargeRDMAGo(t *testing.T) {
	host := startRDMAServer(t)
	c := dial(t, margo, host.addr, nil)
	memory := make([]byte, 1<<20)
	copy(memory, "Matthieu")
	b, err := c.Expose(cinnabar.ReadOnly, memory)
	if err != nil {
		t.Fatal(err)
	}
	must(t, cinnabar.NewOneWay[cinnabar.BulkHandle]("do_rdma", inThallium).Send(c.ctx(), c.to, b.Handle()))
	if got := host.expect("Server"); got != matthi {
		t.Errorf("the server prints %q; want %q", got, matthi)
	}
	must(t, b.Close())
	host.end()
	if err := host.Wait(); err != nil {
		t.Errorf("the server ends with %v\n%s", err, host.log())
	}
}
