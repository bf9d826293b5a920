package main

import (
	"context"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// perfPair is a server in this process and a client's run of it.
type perfPair struct {
	server *perfServer
	run    *perfRun
}

func newPerfPair(t *testing.T, so perfServeOptions, o perfOptions) *perfPair {
	t.Helper()
	engine, err := cinnabar.Listen("ofi+tcp://127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if so.memory == 0 {
		so.memory = 1 << 30
	}
	if so.timeout == 0 {
		so.timeout = clitest.ProcessLimit
	}
	p := &perfPair{server: newPerfServer(engine, &so, 0, newPerfMemory(so.memory))}
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
func (p *perfPair) client(t *testing.T, o perfOptions) *perfRun {
	t.Helper()
	engine, err := cinnabar.Open("ofi+tcp://127.0.0.1", nil)
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
	return &perfRun{o: &o, engine: engine, servers: []*cinnabar.Endpoint{server}}
}

// memory is how much of it the server has in use.
func (p *perfPair) memory() (used int64, count int) {
	m := p.server.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used, m.count
}

// wantMemory waits until the server has so much in use.
func (p *perfPair) wantMemory(t *testing.T, used int64, count int) {
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

func (p *perfPair) prepare(t *testing.T, prepare func(context.Context, *perfRun) (perfCaller, error)) perfCaller {
	t.Helper()
	c, err := prepare(t.Context(), p.run)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}
