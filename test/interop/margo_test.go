//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
	margoface "cinnabar/margo"
)

// The provider that margo_peer has besides the default one and 0, and what it calls itself.
const (
	providerID = 42
	identity   = "myprov"
	nobody     = 7 // a provider that nobody has
)

// margoSteps are what a margo_peer calls at a server, which may be C or Go. 65535 is the provider of MARGO_REGISTER.
var margoSteps = []step{
	{"sum a=40 b=2", "ret=0 value=42"},
	{"sum a=40 b=2 provider=0", "ret=0 value=42"},
	{"sum a=40 b=2 provider=42", "ret=0 value=42"},
	{"sum a=40 b=2 provider=7", "ret=2"},
	{"sum a=1 b=2 count=200", "ret=0 value=3 count=200"},
	{"async count=300", "ret=0 count=300 ok=300"},
	{"async count=100 provider=42", "ret=0 count=100 ok=100"},
	{"which", "ret=0 id=920c29010000ffff"},
	{"which provider=0", "ret=0 id=920c290100000000"},
	{"which provider=42", "ret=0 id=920c29010000002a"},
	{"void", "ret=0"},
	{"null", "ret=2"},
	{"unknown", "ret=2"},
	{"echo variant=0", "ret=0 equal=1"},
	{"echo variant=1", "ret=0 equal=1"},
	{"echo variant=2", "ret=0 equal=1"},
	{"notify seq=1 text=bob", "ret=0"},
	{"notify seq=2 size=1048576", "ret=0"},
	{"blob size=0 reply=0", "ret=0 sent-ok=1 reply=0 reply-ok=1"},
	{"blob size=4036 reply=4067", "ret=0 sent-ok=1 reply=4067 reply-ok=1"},
	{"blob size=4037 reply=4068", "ret=0 sent-ok=1 reply=4068 reply-ok=1"},
	{"blob size=1048576 reply=1048576", "ret=0 sent-ok=1 reply=1048576 reply-ok=1"},
	{"slow ms=500 timeout=50", "ret=20"},
	{"sum a=1 b=1", "ret=0 value=2"},
	{"nested a=20 b=22", "ret=0 code=0 value=42"},
	{"nested a=20 b=22 inner=42", "ret=0 code=0 value=42"},
	{"nested a=20 b=22 inner=7", "ret=0 code=2"},
	{"identity provider=42", "ret=0 name=myprov size=7"},
	{"identity provider=42 size=7", "ret=0 name=myprov size=7"},
	{"identity provider=42 size=6", "ret=5 size=7"}, // the buffer is too small: HG_NOMEM, and how large it should be
	{"identity provider=7", "ret=2"},
}

// serveMargo adds what only margo_peer serves.
func (s *server) serveMargo(t *testing.T) *server {
	t.Helper()
	p, err := s.NewProvider(providerID, identity)
	if err != nil {
		t.Fatal(err)
	}
	zero, err := s.NewProvider(0, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []cinnabar.Registrar{p, zero} {
		must(t, s.rpc.sum.Handle(on, s.sum))
	}
	for _, on := range []cinnabar.Registrar{s.Engine, p, zero} {
		must(t, s.rpc.which.Handle(on, s.which))
	}
	must(t, s.rpc.nested.Handle(s.Engine, s.nested), s.rpc.slow.Handle(s.Engine, s.slow))
	return s
}

func (s *server) which(ctx context.Context, _ none) (idOut, error) {
	info := cinnabar.InfoFrom(ctx)
	if info.Peer == nil {
		return idOut{}, errors.New("the context does not say who is called")
	}
	return idOut{s.rpc.which.ID(info.Provider)}, nil
}

func (s *server) nested(ctx context.Context, in nestedIn) (nestedOut, error) {
	to := cinnabar.InfoFrom(ctx).Peer
	if in.To != "" {
		var err error
		if to, err = s.Lookup(in.To); err != nil {
			return nestedOut{}, err
		}
	}
	out, err := s.rpc.sum.Call(ctx, to.Provider(in.Provider), in.Sum)
	return nestedOut{int32(codes.Of(err)), out.Ret}, nil
}

func (s *server) slow(ctx context.Context, in slowIn) (none, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Millis)*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	return none{}, nil
}

// margoConfig is Margo's configuration of a peer program.
func margoConfig(mercury string) []string {
	return []string{"--config", fmt.Sprintf(`{"use_progress_thread":true,"rpc_thread_count":1,"mercury":{%s}}`, mercury)}
}

var margoSettings = []setting{
	{name: "default"},
	{name: "no-eager", options: margoConfig(`"no_bulk_eager":true`)},
	{name: "headers", options: margoConfig(`"checksum_level":"rpc_headers"`), levels: true},
	{name: "payload", options: margoConfig(`"checksum_level":"rpc_payload"`), levels: true},
}

// eachMargoSetting is eachSetting for margo_peer.
func eachMargoSetting(t *testing.T, f func(t *testing.T, options []string)) {
	checksums := startPeer(t, margoPeer).checksums
	for _, s := range margoSettings {
		t.Run(s.name, func(t *testing.T) {
			if s.levels && !checksums {
				t.Skip("the installed Mercury was built without checksums")
			}
			f(t, s.options)
		})
	}
}

// TestMargoCToC shows that margo_peer and its steps are right: both sides are C.
func TestMargoCToC(t *testing.T) {
	eachMargoSetting(t, func(t *testing.T, options []string) {
		server, client := startPeer(t, margoPeer, options...), startPeer(t, margoPeer, options...)
		client.aim(server.addr)
		runSteps(client, margoSteps, moveSteps)
		server.expect("event notify seq=1")
		server.expect("event notify seq=2")
		server.expect("event slow")
		client.stop()
		server.stop()
	})
}

// TestMargoClientC has a C client call a Go server.
// parity(peer): H47 G21 G27 G45
func TestMargoClientC(t *testing.T) {
	eachMargoSetting(t, func(t *testing.T, options []string) {
		s := listen(t, margo, nil).serveMargo(t)
		client := startPeer(t, margoPeer, options...)
		client.aim(s.Addr())
		runSteps(client, margoSteps, moveSteps)
		s.takeNotes(t)
		client.stop()
	})
}

// TestMargoServerC has Go clients call a C server, which calls them back.
// parity(peer): H46 G21 G27 G38 G45
func TestMargoServerC(t *testing.T) {
	eachMargoSetting(t, func(t *testing.T, options []string) {
		q := startPeer(t, margoPeer, options...)
		for name, cfg := range configs(q.checksums, options) {
			t.Run(name, func(t *testing.T) {
				s := listen(t, margo, cfg).serveMargo(t)
				callMargo(aim(t, margo, s.Engine, q.addr))
				q.expect("event slow") // it answers a call that was given up; were this side gone, it would try for 120 s
			})
		}
		q.stop()
	})
}

// TestMargoGoToGo shows that the calls of the test above are right: both sides are Go.
func TestMargoGoToGo(t *testing.T) {
	s := listen(t, margo, nil).serveMargo(t)
	callMargo(aim(t, margo, listen(t, margo, nil).serveMargo(t).Engine, s.Addr()))
}

// callMargo calls everything that a margo_peer serves, from an engine that serves sum.
func callMargo(c *client) {
	c.basics()
	_, err := c.rpc.null.Call(c.ctx(), c.to, none{})
	c.refused("an RPC without handler", err, codes.NoEntry)
	c.moves(shapes)
	c.modes()
	c.providers()
	c.nesting()
	c.patience()
}

// providers calls under each provider id.
func (c *client) providers() {
	c.t.Helper()
	for _, id := range []uint16{65535, 0, providerID} {
		if out, err := c.rpc.which.Call(c.ctx(), c.to.Provider(id), none{}); err != nil || out.ID != c.rpc.which.ID(id) {
			c.t.Errorf("the call to provider %d came under id %#x, %v; want %#x", id, out.ID, err, c.rpc.which.ID(id))
		}
		if out, err := c.rpc.sum.Call(c.ctx(), c.to.Provider(id), sumIn{1, 2}); err != nil || out.Ret != 3 {
			c.t.Errorf("sum at provider %d is %d, %v", id, out.Ret, err)
		}
	}
	_, err := c.rpc.sum.Call(c.ctx(), c.to.Provider(nobody), sumIn{1, 2})
	c.refused("a call to a provider that nobody has", err, codes.NoEntry)
	if got, err := margoface.Identity(c.ctx(), c.to.Provider(providerID)); err != nil || got != identity {
		c.t.Errorf("provider %d is %q, %v; want %q", providerID, got, err, identity)
	}
	_, err = margoface.Identity(c.ctx(), c.to.Provider(nobody))
	if codes.Of(err) != codes.NoEntry {
		c.t.Errorf("the identity of a provider that nobody has: %v; want %v", err, codes.NoEntry)
	}
}

// nesting has the server call this side from its handler.
func (c *client) nesting() {
	c.t.Helper()
	for _, id := range []uint16{65535, providerID} {
		out, err := c.rpc.nested.Call(c.ctx(), c.to, nestedIn{Provider: id, Sum: sumIn{20, 22}})
		if err != nil || out != (nestedOut{0, 42}) {
			c.t.Errorf("nested with provider %d: %+v, %v; want 42", id, out, err)
		}
	}
}

// patience gives a call less time than it takes.
func (c *client) patience() {
	c.t.Helper()
	_, err := c.rpc.slow.Call(limited(c.t, 50*time.Millisecond), c.to, slowIn{500})
	if !errors.Is(err, codes.Timeout) || !errors.Is(err, context.DeadlineExceeded) {
		c.t.Errorf("a call without time left fails with %v", err)
	}
	if out, err := c.rpc.sum.Call(c.ctx(), c.to, sumIn{1, 2}); err != nil || out.Ret != 3 {
		c.t.Errorf("sum after a time-out is %d, %v; want 3", out.Ret, err)
	}
}

// TestMargoParent has a C handler call a Go one, which sees for whom.
// parity(peer): G39
func TestMargoParent(t *testing.T) {
	q := startPeer(t, margoPeer)
	parents := make(chan uint64, 2) // one for each call
	see := func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
		if c.Server {
			parents <- c.Parent
		}
		return next(ctx)
	}
	s := listen(t, margo, &cinnabar.Config{Interceptors: []cinnabar.Interceptor{see}})
	c := aim(t, margo, s.Engine, q.addr)
	if out, err := margo.nested.Call(c.ctx(), c.to, nestedIn{Provider: 65535, Sum: sumIn{1, 2}}); err != nil || out != (nestedOut{0, 3}) {
		t.Fatalf("nested: %+v, %v", out, err)
	}
	if got, want := <-parents, margo.nested.ID(65535); got != want {
		t.Errorf("the nested call says that %#x called; want %#x", got, want)
	}
	q.aim(s.Addr())
	q.check("sum a=1 b=2", "ret=0 value=3")
	if got, want := <-parents, uint64(65535); got != want {
		t.Errorf("a call from outside of handlers says that %#x called; want %#x", got, want)
	}
	q.stop()
}

// TestMargoOpenOnly has a Go client that does not listen use a C server, which it ends.
func TestMargoOpenOnly(t *testing.T) { openOnly(t, margoPeer, margo) }

// TestMargoClientOnlyC has a C client that does not listen use a Go server.
func TestMargoClientOnlyC(t *testing.T) {
	s := listen(t, margo, nil).serveMargo(t)
	client := startPeer(t, margoPeer, "--client")
	client.aim(s.Addr())
	nested := func(s step) bool { return strings.HasPrefix(s.command, "nested") } // needs a client that can be called
	runSteps(client, slices.DeleteFunc(slices.Clone(margoSteps), nested), moveSteps)
	client.stop()
}

// TestMargoShutdown ends either side by Margo's remote shutdown, where it is allowed.
// parity(peer): G07
func TestMargoShutdown(t *testing.T) {
	margoPeer.executable(t)
	t.Run("C", func(t *testing.T) {
		q := startPeer(t, margoPeer, "--shutdown", "--callbacks")
		c := dial(t, margo, q.addr, nil)
		if err := margoface.ShutdownRemote(c.ctx(), c.to); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		for _, want := range []string{"prefinalize n=3", "prefinalize n=2", "prefinalize n=1", "finalize n=3", "finalize n=2", "finalize n=1"} {
			if got := q.expect("event"); !strings.HasPrefix(string(got), "event "+want) {
				t.Errorf("the server says %q; want %q", got, want)
			}
		}
		q.bye()
	})
	t.Run("C/refused", func(t *testing.T) {
		q := startPeer(t, margoPeer)
		c := dial(t, margo, q.addr, nil)
		if err := margoface.ShutdownRemote(c.ctx(), c.to); codes.Of(err) != codes.Permission {
			t.Errorf("shutdown that is not allowed: %v; want %v", err, codes.Permission)
		}
		q.stop()
	})
	t.Run("Go", func(t *testing.T) {
		s := listen(t, margo, &cinnabar.Config{AllowRemoteShutdown: true})
		q := startPeer(t, margoPeer, "--client")
		q.aim(s.Addr())
		q.check("shutdown", "ret=0")
		<-s.Done()
		q.stop()
	})
	t.Run("Go/refused", func(t *testing.T) {
		s := listen(t, margo, nil)
		q := startPeer(t, margoPeer, "--client")
		q.aim(s.Addr())
		q.check("shutdown", "ret=-1")
		q.check("sum a=1 b=2", "ret=0 value=3")
		q.stop()
	})
}
