package cinnabar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"cinnabar/codes"
	"cinnabar/stats"
)

// journal notes what happens, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

// Event implements Monitor.
func (j *journal) Event(_ context.Context, ev stats.Event) {
	phase := "start"
	if ev.End {
		phase = "end"
	}
	j.add("%v %v %s", ev.Kind, phase, ev.Info.RPC)
}

func (j *journal) interceptor(name string) Interceptor {
	return func(ctx context.Context, c *CallInfo, next func(context.Context) error) error {
		side := "client"
		if c.Server {
			side = "server"
		}
		j.add("%s before %s %s", name, side, c.RPC)
		err := next(ctx)
		j.add("%s after %v", name, codes.Of(err))
		return err
	}
}

// TestInterceptors checks their order at both sides, and what the monitor is told.
// parity: G04 G86 G89
func TestInterceptors(t *testing.T) {
	var there, here journal
	server := listening(t, &Config{Interceptors: []Interceptor{there.interceptor("A"), there.interceptor("B")}, Monitor: &there})
	client := calling(t, &Config{Interceptors: []Interceptor{here.interceptor("C"), here.interceptor("D")}, Monitor: &here})
	must(t, add.Handle(server, handleAdd))
	must(t, long.HandleCall(server, func(c *Call[addIn, addOut]) { must(t, c.Respond(c.Context(), addOut{Sum: c.In.X})) }))
	ep := reach(t, client, server)
	wantHere := func(name string) []string {
		return []string{"C before client " + name, "D before client " + name, "call start " + name, "call end " + name,
			"D after HG_SUCCESS", "C after HG_SUCCESS"}
	}
	callAdd(t, ep)
	if got := here.take(); !slices.Equal(got, wantHere("add")) {
		t.Errorf("client %q", got)
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
	if got, want := there.take(), []string{"request start add", "A before server add", "B before server add", "handle start add", "handle end add",
		"B after HG_SUCCESS", "A after HG_SUCCESS", "respond start add", "respond end add", "request end add"}; !slices.Equal(got, want) {
		t.Errorf("server %q", got)
	}
	out, err := long.Start(patient(t), ep, addIn{X: 4}).Wait()
	if err != nil || out.Sum != 4 {
		t.Errorf("long = %+v, %v", out, err)
	}
	if got := here.take(); !slices.Equal(got, wantHere("long")) {
		t.Errorf("client %q", got)
	}
	waitFor(t, func() bool { return server.Stats().Handlers.Running == 0 })
	if got, want := there.take(), []string{"request start long", "A before server long", "B before server long", "handle start long", "respond start long",
		"respond end long", "handle end long", "B after HG_SUCCESS", "A after HG_SUCCESS", "request end long"}; !slices.Equal(got, want) {
		t.Errorf("server %q", got)
	}
}

// TestInterceptorsDecide has interceptors end calls, and change their context.
// parity: G86
func TestInterceptorsDecide(t *testing.T) {
	type key struct{}
	errNo := errors.New("no")
	gate := func(ctx context.Context, c *CallInfo, next func(context.Context) error) error {
		if c.RPC == "refused" || c.RPC == "refused long" {
			return codes.Access
		}
		return next(context.WithValue(ctx, key{}, c.RPC))
	}
	server := listening(t, &Config{Interceptors: []Interceptor{gate}})
	client := calling(t, &Config{Interceptors: []Interceptor{func(ctx context.Context, c *CallInfo, next func(context.Context) error) error {
		if c.RPC == "stopped" {
			return errNo
		}
		return next(ctx)
	}}})
	ep := reach(t, client, server)
	h := func(ctx context.Context, in addIn) (addOut, error) {
		if ctx.Value(key{}) == nil || InfoFrom(ctx).Peer == nil {
			return addOut{}, errors.New("context lost")
		}
		return handleAdd(ctx, in)
	}
	must(t, add.Handle(server, h))
	must(t, NewRPC[addIn, addOut]("refused").Handle(server, h))
	must(t, NewRPC[addIn, addOut]("refused long").HandleCall(server, func(*Call[addIn, addOut]) { t.Error("handler runs") }))
	must(t, NewRPC[addIn, addOut]("long").HandleCall(server, func(c *Call[addIn, addOut]) {
		out, err := h(c.Context(), c.In)
		if err != nil {
			must(t, c.Fail(err))
			return
		}
		must(t, c.Respond(c.Context(), out))
	}))
	callAdd(t, ep)
	if out, err := long.Call(patient(t), ep, addIn{X: 1, Y: 2}); err != nil || out.Sum != 3 {
		t.Errorf("long = %+v, %v", out, err)
	}
	for _, name := range []string{"refused", "refused long"} {
		_, err := NewRPC[addIn, addOut](name).Call(patient(t), ep, addIn{})
		wantCode(t, err, codes.Access, name)
	}
	if _, err := NewRPC[addIn, addOut]("stopped").Call(patient(t), ep, addIn{}); !errors.Is(err, errNo) {
		t.Errorf("stopped: %v", err)
	}
}
