package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/na/natest"
	"cinnabar/internal/na/sm"
)

// home is a network that a process is at.
type home struct{ server, client *Engine }

// homes makes engines on all networks there are, two of them on the first.
func homes(t *testing.T) (hs []home) {
	t.Helper()
	protocols := []string{"ofi+tcp://127.0.0.1", "ofi+tcp://127.0.0.1"}
	if sm.Available() == nil {
		protocols = append(protocols, "na+sm")
	}
	for _, p := range protocols {
		server, err := Listen(t.Context(), p, nil)
		opened(t, server, err)
		client, err := Open(t.Context(), p, nil)
		hs = append(hs, home{server, opened(t, client, err)})
	}
	return hs
}

// TestMultihome has one set of handlers on several engines of a process, each of which is reached by its own network,
// and a bridge: a request that comes in by one goes out by the next.
// parity: G09
func TestMultihome(t *testing.T) {
	hs := homes(t)
	bridge := NewRPC[addIn, addOut]("bridge")
	for i, h := range hs {
		next := hs[(i+1)%len(hs)]
		there := reach(t, next.client, next.server)
		must(t, add.Handle(h.server, handleAdd))
		must(t, bridge.Handle(h.server, func(ctx context.Context, in addIn) (addOut, error) { return add.Call(ctx, there, in) }))
	}
	for i, h := range hs {
		ep := reach(t, h.client, h.server)
		callAdd(t, ep)
		if out, err := bridge.Call(patient(t), ep, addIn{X: int32(i), Y: 1}); err != nil || out.Sum != int32(i)+1 {
			t.Errorf("over the bridge from %v: %+v, %v", h.server, out, err)
		}
	}
}

// fill is the RPC that both services of TestComposition have: it has the caller's memory, or that of who is named,
// filled with a byte.
var fill = NewRPC[fillIn, int64]("fill")

type fillIn struct {
	Byte  uint8
	Data  BulkHandle
	Owner string // of Data; empty: the caller
}

// serveFill serves fill by pushing into the memory.
func serveFill(t *testing.T, e *Engine, id uint16) {
	t.Helper()
	p, err := e.NewProvider(id, "data")
	must(t, err)
	must(t, fill.Handle(p, func(ctx context.Context, in fillIn) (int64, error) {
		owner, err := e.Lookup(in.Owner)
		if err != nil {
			return 0, err
		}
		b, err := e.Expose(ReadOnly, slices.Repeat([]byte{in.Byte}, int(in.Data.Len())))
		if err != nil {
			return 0, err
		}
		n, err := in.Data.On(owner).Push(ctx, b)
		return n, errors.Join(err, b.Close())
	}))
}

// delegateFill serves fill by passing it on, with the caller's handle and address.
func delegateFill(t *testing.T, e *Engine, id uint16, to ProviderHandle) {
	t.Helper()
	p, err := e.NewProvider(id, "delegator")
	must(t, err)
	must(t, fill.Handle(p, func(ctx context.Context, in fillIn) (int64, error) {
		in.Owner = InfoFrom(ctx).Peer.String()
		return fill.Call(ctx, to, in)
	}))
}

// TestComposition has a service that passes requests and bulk handles on to another one, which moves the data: in the
// same process, under the same name, and in another.
// parity: G12
func TestComposition(t *testing.T) {
	both, data, delegator, client := listening(t, nil), listening(t, nil), listening(t, nil), calling(t, nil)
	serveFill(t, both, 1)
	delegateFill(t, both, 2, both.Self().Provider(1))
	serveFill(t, data, 1)
	delegateFill(t, delegator, 2, reach(t, delegator, data).Provider(1))
	for i, e := range []*Engine{both, delegator} {
		mem := make([]byte, 100_000)
		b, err := client.Expose(WriteOnly, mem[:50_000], mem[50_000:])
		must(t, err)
		n, err := fill.Call(patient(t), reach(t, client, e).Provider(2), fillIn{Byte: uint8(i + 1), Data: b.Handle()})
		if err != nil || n != int64(len(mem)) {
			t.Errorf("fill = %d, %v", n, err)
		}
		must(t, b.Close())
		if slices.ContainsFunc(mem, func(b byte) bool { return b != uint8(i+1) }) {
			t.Error("the memory is not filled")
		}
		_, err = fill.Call(patient(t), reach(t, client, e), fillIn{})
		wantCode(t, err, codes.NoEntry)
	}
}

// TestFailedCallsLeaveNothing fails calls at each stage that a call may fail at, and waits past their deadlines: no timer
// of theirs is left that could end something else.
// parity: D03
func TestFailedCallsLeaveNothing(t *testing.T) {
	simulate(t, natest.Config{}, &Config{Checksums: NoChecksums, MaxHandlers: 1, MaxQueued: -1, NoOverflow: true}, func(t *testing.T, s *sim) {
		text := NewRPC[string, struct{}]("text")
		must(t, nap.Handle(s.server, handleNap))
		must(t, text.Handle(s.server, func(context.Context, string) (struct{}, error) { return struct{}{}, codes.Fault }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stages := func() map[string]error {
			_, unknown := add.Call(ctx, s.ep, addIn{})
			_, encoded := text.Call(ctx, s.ep, "a\x00b")
			_, long := text.Call(ctx, s.ep, string(make([]byte, 1<<20)))
			_, answered := text.Call(ctx, s.ep, "x")
			busy := nap.Start(t.Context(), s.ep, 100)
			_, refused := nap.Call(ctx, s.ep, 1)
			_, err := busy.Wait()
			_, canceled := func() (int64, error) {
				p := nap.Start(ctx, s.ep, 100)
				p.cancel()
				return p.Wait()
			}()
			elapse(100 * time.Millisecond)
			return map[string]error{"unknown": unknown, "encoded": encoded, "long": long, "answered": answered, "refused": refused,
				"canceled": canceled, "": errors.Join(err, nil)}
		}
		for stage, err := range stages() {
			if (err == nil) != (stage == "") {
				t.Errorf("%s: %v", stage, err)
			}
		}
		elapse(time.Hour)
		if n, err := nap.Call(t.Context(), s.ep, 5000); err != nil || n != 5000 {
			t.Errorf("a call afterwards: %d, %v", n, err)
		}
	})
}

// TestChildKeepsNothing starts a program while an engine lives: it keeps neither the engine's port nor its connections.
// parity: D18
func TestChildKeepsNothing(t *testing.T) {
	if _, err := exec.LookPath("cat"); err != nil {
		t.Skip("there is no program to start: ", err)
	}
	server, err := Listen(t.Context(), "ofi+tcp://127.0.0.1", nil)
	opened(t, server, err)
	client, err := Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	ep := reach(t, opened(t, client, err), server)
	must(t, add.Handle(server, handleAdd))
	callAdd(t, ep)
	child := exec.Command("cat")
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	must(t, err)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	callAdd(t, ep)
	addr := server.Addr()
	must(t, server.Close())
	again, err := Listen(t.Context(), addr, nil)
	must(t, add.Handle(opened(t, again, err), handleAdd))
	if _, err := fmt.Fprint(in, "alive"); err != nil {
		t.Fatal(err)
	}
	callAdd(t, ep) // by a new connection, since the old one has ended
	must(t, in.Close())
	if text, err := io.ReadAll(out); string(text) != "alive" || err != nil {
		t.Errorf("the child says %q, %v", text, err)
	}
	must(t, child.Wait())
}
