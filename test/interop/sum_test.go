//go:build linux

package interop

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"cinnabar"
	"cinnabar/regmem"
)

// The tutorial's sum: the server pulls the values.
type (
	tutorialIn struct {
		N    int32
		Bulk cinnabar.BulkHandle
	}
	tutorialOut struct{ Ret int32 }
)

var tutorial = cinnabar.NewRPC[tutorialIn, tutorialOut]("sum")

const (
	tutorialCalls = 16 // after which the server ends itself
	clientCalls   = 4  // of one client
)

// tutorialServer is the server's half in Go. It ends itself from inside the handler of its last call.
func tutorialServer(t *testing.T, cfg *cinnabar.Config) *cinnabar.Engine {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), network, configured(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	var calls struct {
		sync.Mutex
		n int
	}
	must(t, tutorial.Handle(e, func(ctx context.Context, in tutorialIn) (tutorialOut, error) {
		values := make([]int32, in.N)
		local, err := e.Expose(cinnabar.WriteOnly, regmem.Bytes(values))
		if err != nil {
			return tutorialOut{}, err
		}
		defer local.Close() // the pull has ended
		if _, err := in.Bulk.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err != nil {
			return tutorialOut{}, err
		}
		var out tutorialOut
		for _, v := range values {
			out.Ret += v
		}
		calls.Lock()
		defer calls.Unlock()
		if calls.n++; calls.n == tutorialCalls {
			err = e.Shutdown(ctx) // does not wait for this handler
		}
		return out, err
	}))
	return e
}

// load is what a client of the tutorial exposes.
type load struct {
	values, segments int // 0 values: the tutorial's ten
	sum              int
	noEager          bool
}

var loads = []load{
	{segments: 1, sum: 36},
	{segments: 1, sum: 36, noEager: true},
	{values: 262144, segments: 1, sum: 786429},
	{values: 262144, segments: 1024, sum: 786429, noEager: true},
}

// arguments are those of margo_sum_client.
func (l load) arguments(addr string) []string {
	if l.values == 0 && !l.noEager {
		return []string{addr}
	}
	values := l.values
	if values == 0 {
		values = 10 // 0 to 6 and 0 to 2, which are 24
	}
	config := "{}"
	if l.noEager {
		config = `{"mercury":{"no_bulk_eager":true}}`
	}
	return []string{addr, fmt.Sprint(values), fmt.Sprint(l.segments), config}
}

// want is the sum that the client in C prints.
func (l load) want() int {
	if l.values == 0 && l.noEager {
		return 24
	}
	return l.sum
}

// runClients runs four clients in C, one after the other, each of which must print the sum four times.
func runClients(t *testing.T, addr string, l load) {
	t.Helper()
	for range tutorialCalls / clientCalls {
		p := start(t, sumClient, l.arguments(addr)...)
		if err := p.Wait(); err != nil {
			t.Fatalf("the client ends with %v\n%s", err, p.log())
		}
		want := strings.Repeat(fmt.Sprintf("[debug] Got response: %d\n", l.want()), clientCalls)
		if got := p.Stderr.String(); got != want {
			t.Errorf("the client prints %q; want %q", got, want)
		}
	}
}

// TestTutorialCToC shows that the two programs do what the tutorial's do.
func TestTutorialCToC(t *testing.T) {
	sumClient.executable(t)
	for _, l := range loads {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			p, addr := startTutorialServer(t)
			runClients(t, addr, l)
			p.checkEnd(addr)
		})
	}
}

// TestTutorialClientC has the C clients of the tutorial call a server in Go.
// parity(peer): H32 H45 H47 H77 H124 G01 G02 G20 G62
func TestTutorialClientC(t *testing.T) {
	sumClient.executable(t)
	for _, l := range loads {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			e := tutorialServer(t, nil)
			runClients(t, e.Addr(), l)
			<-e.Done()
			if s := e.Stats(); (s.Reads > 0) != (l.values > 0 || l.noEager) {
				t.Errorf("%d reads of clients' memory, %d copies of what came with the handle", s.Reads, s.EagerCopies)
			}
		})
	}
}

// TestTutorialServerC has clients in Go call the tutorial's server in C.
// parity(peer): H30 H46 H77 H124 G01 G20 G30
func TestTutorialServerC(t *testing.T) {
	sumServer.executable(t)
	for _, l := range loads {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			p, addr := startTutorialServer(t)
			for range tutorialCalls / clientCalls {
				callTutorial(t, addr, l)
			}
			p.checkEnd(addr)
		})
	}
}

// callTutorial is the client's half in Go.
func callTutorial(t *testing.T, addr string, l load) {
	t.Helper()
	e, err := cinnabar.Open(t.Context(), network, configured(t, &cinnabar.Config{NoEager: l.noEager}))
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine(t, e)
	to, err := e.Lookup(addr)
	if err != nil {
		t.Fatal(err)
	}
	values := []int32{1, 4, 2, 5, 6, 3, 5, 3, 2, 5}
	if l.values > 0 {
		values = make([]int32, l.values)
		for i := range values {
			values[i] = int32(i % 7)
		}
	}
	for range clientCalls {
		b, err := exposeValues(e, values, l.segments)
		if err != nil {
			t.Fatal(err)
		}
		out, err := tutorial.Call(limited(t, patience), to, tutorialIn{int32(len(values)), b.Handle()})
		if err != nil || int(out.Ret) != l.sum {
			t.Errorf("the sum is %d, %v; want %d", out.Ret, err, l.sum)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// exposeValues exposes the bytes of values in as many segments.
func exposeValues(e *cinnabar.Engine, values []int32, segments int) (*cinnabar.Bulk, error) {
	if segments == 1 {
		return e.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
	}
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	return e.Expose(cinnabar.ReadOnly, cut(b, segments)...)
}

// tutorialProcess is the tutorial's server in C.
type tutorialProcess struct{ *process }

func startTutorialServer(t *testing.T) (p tutorialProcess, addr string) {
	t.Helper()
	p = tutorialProcess{start(t, sumServer, network)}
	_, addr, _ = strings.Cut(p.expectLog("Server running at address "), "address ")
	return p, addr
}

// checkEnd waits for a server that has had its 16 calls, and checks what it has printed.
func (p tutorialProcess) checkEnd(addr string) {
	p.t.Helper()
	if err := p.Wait(); err != nil {
		p.t.Errorf("the server ends with %v\n%s", err, p.log())
	}
	if got, want := p.Stderr.String(), "[info] Server running at address "+addr+"\n\n"; got != want {
		p.t.Errorf("the server prints %q; want %q", got, want)
	}
}
