package hello_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/examples/hello"
	"cinnabar/margo"
)

// lane serves greetings with a worker of their own, in which important people come first.
func lane(engine *cinnabar.Engine, vip *cinnabar.Provider, greet func(context.Context, hello.In) (hello.Out, error)) error {
	pool, err := engine.AddPool(cinnabar.PoolConfig{Name: "greetings", Workers: 1, Kind: cinnabar.PoolPriority})
	if err != nil {
		return err
	}
	if err := hello.Greet.Handle(vip, greet, cinnabar.WithPool(pool), cinnabar.WithPriority(1)); err != nil {
		return err
	}
	return hello.Greet.Handle(engine, greet, cinnabar.WithPool(pool))
}

// heartbeat greets server each second, until a greeting fails, the timer is cancelled or the engine ends.
func heartbeat(engine *cinnabar.Engine, server *cinnabar.Endpoint, missed func(error)) (*margo.Timer, error) {
	var timer *margo.Timer
	timer = margo.NewTimer(engine, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := hello.Greet.Call(ctx, server, hello.In{Name: "again"}); err != nil {
			missed(err)
			return
		}
		_ = timer.Start(time.Second) // refused when the engine ends
	})
	return timer, timer.Start(0)
}

// writeState writes the state of the engine to a file.
func writeState(engine *cinnabar.Engine, name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // DumpState returns the error of a write
	return margo.DumpState(engine, f)
}

// parity: G76
func TestLane(t *testing.T) {
	r := newRig(t)
	vip, err := r.serving.NewProvider(1, "for important people")
	check(t, err)
	var pools []string
	check(t, lane(r.serving, vip, func(ctx context.Context, in hello.In) (hello.Out, error) {
		info := cinnabar.InfoFrom(ctx)
		pools = append(pools, info.Pool)
		return hello.Out{Greeting: in.Name}, nil
	}))
	for _, to := range []cinnabar.Target{r.server, r.server.Provider(1)} {
		if out, err := hello.Greet.Call(t.Context(), to, hello.In{Name: "x"}); err != nil || out.Greeting != "x" {
			t.Errorf("greet = %+v, %v", out, err)
		}
	}
	if len(pools) != 2 || pools[0] != "greetings" || pools[1] != "greetings" {
		t.Errorf("pools %q", pools)
	}
}

// parity: G70
func TestHeartbeat(t *testing.T) {
	r := newRig(t)
	beats, missed := make(chan string, 1), make(chan error, 1)
	check(t, hello.Greet.Handle(r.serving, func(_ context.Context, in hello.In) (hello.Out, error) {
		beats <- in.Name
		return hello.Out{}, nil
	}))
	timer, err := heartbeat(r.calling, r.server, func(err error) { missed <- err })
	check(t, err)
	if name := <-beats; name != "again" {
		t.Errorf("greeted %q", name)
	}
	check(t, timer.Cancel(t.Context()))
	check(t, r.serving.Close())
	check(t, timer.Start(0))
	if err := <-missed; err == nil {
		t.Error("a beat that is missed has no error")
	}
	name := filepath.Join(t.TempDir(), "state")
	check(t, writeState(r.calling, name))
	if text := read(t, name); !strings.Contains(text, r.calling.Addr()) {
		t.Errorf("state %q", text)
	}
}
