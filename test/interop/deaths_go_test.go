//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/internal/testproc"
	"cinnabar/verbs/auto"
)

// victimRole is a Go process with an engine that serves or calls a C process until it is killed.
const victimRole = "victim"

// victimArgs are the arguments of a victim: its address, the phase in which it is killed, and its target. With a target it is the client: in phase connect
// new engines of it connect to the target again and again, in phases hold, pull and push the target has its call, and in phase idle that call is over.
// Without a target it serves, and prints "event PHASE" when it has the call, of which a transfer has begun.
func victimArgs(address, phase, target string) []string { return []string{address, phase, target} }

// victim is the process.
func victim(args []string) (err error) {
	address, phase, target := args[0], args[1], args[2]
	cfg := &cinnabar.Config{}
	if strings.HasPrefix(address, verbsScheme) {
		dev, err := auto.Open(address)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dev.Close()) }()
		cfg.Device = dev
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-testproc.InputClosed()
		cancel()
	}()
	if phase == "connect" {
		return victimConnects(ctx, address, target, cfg)
	}
	e, err := cinnabar.Listen(ctx, address, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if target == "" {
		return victimServes(ctx, e, phase)
	}
	return victimCalls(ctx, e, phase, target)
}

// victimConnects calls the target once with each of many engines. It prints "connecting" when the first call has been answered.
func victimConnects(ctx context.Context, address, target string, cfg *cinnabar.Config) error {
	for i := 0; ctx.Err() == nil; i++ {
		e, err := cinnabar.Open(ctx, address, cfg)
		if err != nil {
			return err
		}
		to, err := e.Lookup(target)
		if err == nil {
			_, err = mercury.sum.Call(ctx, to, sumIn{1, 2})
		}
		if err = errors.Join(err, e.Close()); err != nil {
			return err
		}
		if i == 0 {
			fmt.Println("connecting")
		}
	}
	return nil
}

// victimCalls calls the target.
func victimCalls(ctx context.Context, e *cinnabar.Engine, phase, target string) error {
	to, err := e.Lookup(target)
	if err != nil {
		return err
	}
	switch phase {
	case "hold":
		_, err = mercury.hold.Call(ctx, to, none{})
	case "pull", "push":
		rpc, mode := mercury.pull, cinnabar.ReadOnly
		if phase == "push" {
			rpc, mode = mercury.push, cinnabar.WriteOnly
		}
		b, exposeErr := e.Expose(mode, make([]byte, doomedSize))
		if exposeErr != nil {
			return exposeErr
		}
		defer func() { _ = b.Close() }() // the process is killed before
		sh := shape{total: doomedSize, segments: 1}
		_, err = rpc.Call(ctx, to, sh.in(b))
	case "idle":
		if _, err = mercury.sum.Call(ctx, to, sumIn{1, 2}); err == nil {
			fmt.Println("idle")
			<-ctx.Done()
		}
	}
	return err
}

// victimServes serves one call of the phase, and further ones of sum.
func victimServes(ctx context.Context, e *cinnabar.Engine, phase string) error {
	move := func(transfer func(cinnabar.RemoteBulk, context.Context, *cinnabar.Bulk) (int64, error), mode cinnabar.Mode) func(context.Context, moveIn) (moveOut, error) {
		return func(ctx context.Context, in moveIn) (moveOut, error) {
			remote := in.Bulk.On(cinnabar.InfoFrom(ctx).Peer)
			b, err := e.Alloc(mode, remote.Len())
			if err != nil {
				return moveOut{}, err
			}
			defer func() { _ = b.Close() }() // the process is killed before
			if _, err := transfer(remote.Slice(0, 1<<20), ctx, b.Slice(0, 1<<20)); err != nil {
				return moveOut{}, err
			}
			fmt.Println("event", phase)
			for ctx.Err() == nil {
				if _, err := transfer(remote, ctx, b); err != nil {
					return moveOut{}, err
				}
			}
			return moveOut{}, context.Cause(ctx)
		}
	}
	err := errors.Join(
		mercury.sum.Handle(e, func(_ context.Context, in sumIn) (sumOut, error) { return sumOut{in.A + in.B}, nil }),
		mercury.hold.Handle(e, func(ctx context.Context, _ none) (none, error) {
			fmt.Println("event", phase)
			<-ctx.Done()
			return none{}, context.Cause(ctx)
		}),
		mercury.pull.Handle(e, move(cinnabar.RemoteBulk.Pull, cinnabar.WriteOnly)),
		mercury.push.Handle(e, move(cinnabar.RemoteBulk.Push, cinnabar.ReadOnly)),
	)
	if err != nil {
		return err
	}
	fmt.Println("ready", e.Addr())
	<-ctx.Done()
	return nil
}

// startVictim starts a victim.
func startVictim(t *testing.T, phase, target string) *process {
	t.Helper()
	p := testproc.Start(t, testproc.Command{Role: victimRole, Args: victimArgs(network, phase, target), Limit: patience})
	return &process{p, t, victimRole}
}

// TestGoClientKilled kills clients in Go of one C server in each phase, and checks that the server goes on to serve other engines.
// parity(peer): Y02 D01
func TestGoClientKilled(t *testing.T) {
	q := startPeer(t, hgPeer)
	for _, phase := range []string{"connect", "idle", "pull", "push", "hold"} {
		t.Run(phase, func(t *testing.T) {
			for range 3 {
				p := startVictim(t, phase, q.addr)
				switch phase {
				case "connect":
					p.expect("connecting")
				case "idle":
					p.expect("idle")
				default:
					q.expect("event " + phase)
				}
				p.Kill()
				c := dial(t, mercury, q.addr, nil)
				c.pipeline(100, 4)
			}
		})
	}
}

// giveUp is the time in milliseconds after which a C client gives up a call. Mercury does not fail the calls of a lost connection itself.
const giveUp = 2000

// TestGoServerKilled kills servers in Go of one C client in each phase, starts another one at the address of each, and checks that the client then uses it.
// parity(peer): H58 Y02
func TestGoServerKilled(t *testing.T) {
	hgPeer.executable(t) // skips all phases together
	for _, phase := range []string{"idle", "hold", "pull", "push"} {
		t.Run(phase, func(t *testing.T) {
			q := startPeer(t, hgPeer, "--timeout", fmt.Sprint(giveUp))
			p := startVictim(t, phase, "")
			addr := string(p.expect("ready"))
			addr = strings.TrimPrefix(addr, "ready ")
			q.aim(addr)
			q.check("sum a=1 b=2", "ret=0 value=3")
			command := phase
			switch phase {
			case "pull", "push":
				command = fmt.Sprintf("%s total=%d", phase, doomedSize)
			}
			if phase != "idle" {
				q.start(command)
				p.expect("event " + phase)
			}
			p.Kill()
			if phase != "idle" {
				if got := q.result(command); got.has("ret=0") {
					t.Errorf("a call at a server that was killed says %q", got)
				}
			}
			s := listenAt(t, addr, mercury, nil)
			calls(t, q)
			q.check("pull total=1048576", "ret=0")
			q.stop()
			closeEngine(t, s.Engine)
		})
	}
}

// calls repeats a call of a C client until it succeeds, because the client may notice the end of its connection by that call only.
func calls(t *testing.T, q *peer) {
	t.Helper()
	for began := time.Now(); ; {
		got := q.do("sum a=1 b=2")
		if got.has("ret=0 value=3") {
			return
		}
		if time.Since(began) > soon {
			t.Fatalf("the client of a server that was started again says %q", got)
		}
	}
}

// TestIdleKilled kills C processes while nothing is under way on their connections: a client, and a server that is started again at its address. The
// engine drops the connections, and goes on.
// parity(peer): Y02 D01
func TestIdleKilled(t *testing.T) {
	s := listen(t, mercury, nil)
	o := startOthers(t, s)
	client := startPeer(t, hgPeer)
	client.aim(s.Addr())
	client.check("sum a=1 b=2", "ret=0 value=3")
	server := startPeer(t, hgPeer)
	c := aim(t, mercury, s.Engine, server.addr)
	c.pipeline(10, 2)
	for _, victim := range []*peer{client, server} {
		victim.Kill()
		began := time.Now()
		s.loses(t, victim.addr)
		t.Logf("the connection was gone %v after the end of its process", time.Since(began))
	}
	_, err := c.rpc.void.Call(limited(t, patience), c.to, none{})
	failed(t, "a call at an address where no program listens", err, server.addr, "void")
	again := startPeer(t, hgPeer, "--init", server.addr)
	c.pipeline(10, 2)
	again.stop()
	o.start("sum a=1 b=2 count=100 inflight=2")
	o.served(t, 100)
	o.stop()
}

// loses waits until the engine has no connection with the process at addr.
func (s *server) loses(t *testing.T, addr string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		connected := false
		for _, c := range s.State(-1).Connections {
			connected = connected || c.Peer == addr
		}
		if !connected {
			return
		}
		if time.Since(began) > soon {
			t.Fatalf("there is still a connection with %s, of which the process was killed", addr)
		}
	}
}
