package perfrpc

import (
	"context"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// pair is a server in this process and a client's run of it.
type pair struct {
	server *server
	run    *run
}

func newPair(t *testing.T, so serveOptions, o options) *pair {
	t.Helper()
	engine, err := cinnabar.Listen(t.Context(), "ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if so.memory == 0 {
		so.memory = 1 << 30
	}
	if so.timeout == 0 {
		so.timeout = clitest.ProcessLimit
	}
	p := &pair{server: newServer(engine, &so, 0, newHandleTable(so.memory))}
	if err := p.server.register(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
		p.server.memory.close()
		if used, count := p.memory(); used != 0 || count != 0 {
			t.Errorf("the server closed with %d bytes of %d handles in use", used, count)
		}
	})
	if o.inflight == 0 {
		o.inflight = 1
	}
	o.transfers, o.clients = max(1, o.transfers), max(1, o.clients)
	if o.timeout == 0 {
		o.timeout = clitest.ProcessLimit
	}
	p.run = p.client(t, o)
	return p
}

// client is another client of the server.
func (p *pair) client(t *testing.T, o options) *run {
	t.Helper()
	engine, err := cinnabar.Open(t.Context(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	server, err := engine.Lookup(p.server.engine.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return &run{o: &o, engine: engine, servers: []*cinnabar.Endpoint{server}}
}

// memory is how much of it the server has in use.
func (p *pair) memory() (used int64, count int) {
	m := p.server.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used, m.count
}

// wantMemory waits until the server has so much in use.
func (p *pair) wantMemory(t *testing.T, used int64, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.ProcessLimit)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		u, c := p.memory()
		if u == used && c == count {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the server has %d bytes of %d handles in use, want %d of %d", u, c, used, count)
		}
	}
}

func (p *pair) prepare(t *testing.T, prepare func(context.Context, *run) (caller, error)) caller {
	t.Helper()
	c, err := prepare(t.Context(), p.run)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}
