package ofiverbs

import (
	"bytes"
	"context"
	"runtime"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// serve opens an endpoint that calls before with the tag of each request, and then answers with the bytes of the request.
func serve(t *testing.T, before func(tag uint32)) *Endpoint {
	var e *Endpoint
	e = openEndpoint(t, Config{Listen: true, Handler: handlerFunc(func(m *na.Message) na.Task {
		from, tag, msg := m.From, m.Tag, bytes.Clone(m.Data)
		return taskFunc(func() {
			before(tag)
			e.SendExpected(&newCall().op, from, tag, msg)
		})
	})})
	return e
}

// start sends a request and returns the operation that waits for the response. The sender does not drive.
func start(t *testing.T, e *Endpoint, to na.Addr, tag uint32) *call {
	t.Helper()
	sent, answer := newCall(), newCall()
	e.RecvExpected(&answer.op, to, tag, make([]byte, 100))
	e.SendRequest(&sent.op, to, tag, request(e, nil))
	if err := sent.park(t); err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestTaskThatWaits checks that another goroutine polls, and runs further tasks, while a task waits on the goroutine of its connection.
func TestTaskThatWaits(t *testing.T) {
	release := make(chan struct{})
	server, client := serve(t, func(tag uint32) {
		if tag%2 == 1 {
			<-release
		}
	}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	var held []*call
	for tag := uint32(1); tag <= 20; tag += 2 {
		held = append(held, start(t, client, to, tag))
		if err := start(t, client, to, tag+1).park(t); err != nil {
			t.Fatalf("request %d behind a task that waits: %v", tag+1, err)
		}
	}
	close(release)
	for _, c := range held {
		if err := c.park(t); err != nil {
			t.Error(err)
		}
	}
	ask(t, client, to, 100, []byte("afterwards"))
}

// TestTaskThatWaitsBehindOthers sends requests together, and the task of the last one waits. The responses of the others must be sent although
// the connection holds back the responses of successive tasks to post them together.
func TestTaskThatWaitsBehindOthers(t *testing.T) {
	for range 20 {
		release := make(chan struct{})
		server, client := serve(t, func(tag uint32) {
			if tag == 11 {
				<-release
			}
		}), openEndpoint(t, Config{})
		to := lookup(t, client, server)
		ask(t, client, to, 1, nil)
		c := client.connections()[0]
		c.cork() // so that all requests leave at once
		var calls []*call
		for tag := uint32(2); tag < 12; tag++ {
			answer := newCall()
			client.RecvExpected(&answer.op, to, tag, make([]byte, 100))
			client.SendRequest(&newCall().op, to, tag, request(client, nil))
			calls = append(calls, answer)
		}
		c.uncork()
		last := len(calls) - 1
		for i, answer := range calls[:last] {
			if err := answer.park(t); err != nil {
				t.Fatalf("request %d before a task that waits: %v", i, err)
			}
		}
		close(release)
		if err := calls[last].park(t); err != nil {
			t.Error(err)
		}
	}
}

// TestFlushSoon checks that a request is not sent at once if another one is under way and a goroutine polls, and that it is sent when that
// goroutine stops polling.
func TestFlushSoon(t *testing.T) {
	server, client := serve(t, func(uint32) {}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	c := client.connections()[0]
	c.polling.Lock() // so that no other goroutine polls and calls flushLater
	c.beginDeferring()
	first := start(t, client, to, 2)
	second, sent := newCall(), newCall()
	client.RecvExpected(&second.op, to, 3, make([]byte, 100))
	client.SendRequest(&sent.op, to, 3, request(client, nil))
	c.mu.Lock()
	deferring := c.deferring
	c.mu.Unlock()
	if later := c.later.Load(); deferring == 1 && !later {
		t.Error("the second request has left at once")
	}
	c.endDeferring()
	if err := sent.park(t); err != nil {
		t.Error(err)
	}
	c.polling.Unlock()
	for _, answer := range []*call{first, second} {
		if err := answer.park(t); err != nil {
			t.Error(err)
		}
	}
}

// TestSignaledPackets checks that a device with exact statuses completes the last packet of each batch, that the others complete one packet of several,
// that these completions free the slots of all packets before them, and that the connection then counts as one without packets under way.
func TestSignaledPackets(t *testing.T) {
	for name, without := range map[string]verbs.Caps{"exact statuses": 0, "others": verbs.CapExactStatus} {
		t.Run(name, func(t *testing.T) {
			dev := verbs.NewDevice(memdev.Open(memdev.Config{Without: without}))
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			})
			server, client := openServer(t, Config{Device: dev}), openEndpoint(t, Config{Device: dev})
			to := lookup(t, client, server)
			ask(t, client, to, 1, nil)
			c := client.connections()[0]
			least, most := c.shape.slots, 0
			for tag := uint32(2); tag < uint32(4*c.shape.slots); tag++ {
				ask(t, client, to, tag, nil)
				c.mu.Lock()
				least, most = min(least, len(c.free)), max(most, c.silent)
				c.mu.Unlock()
			}
			if exact := without == 0; exact && most > 0 || !exact && (most != c.shape.signal-1 || c.shape.signal < 2) {
				t.Errorf("%d packets without a completion; one of %d is signaled", most, c.shape.signal)
			}
			if least < c.shape.slots/2 {
				t.Errorf("%d of %d slots were free", least, c.shape.slots)
			}
			eventually(t, "all packets are sent", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.sentLocked()
			})
		})
	}
}

// TestTaskThatEndsItsGoroutine checks that a connection serves further requests after tasks that call runtime.Goexit.
func TestTaskThatEndsItsGoroutine(t *testing.T) {
	exited := make(chan struct{}, 10)
	server, client := serve(t, func(tag uint32) {
		if tag > 1 && tag < 10 {
			exited <- struct{}{}
			runtime.Goexit()
		}
	}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	ask(t, client, to, 1, nil)
	for tag := uint32(2); tag < 10; tag++ {
		answer := start(t, client, to, tag)
		<-exited
		client.Cancel(&answer.op)
		answer.want(t, na.Canceled)
		ask(t, client, to, 10+tag, nil)
	}
}

// TestCloseDuringTask closes an endpoint while a task waits on the goroutine of a connection. Close must return when its context ends, and the
// connection must have ended by then.
func TestCloseDuringTask(t *testing.T) {
	release, begun := make(chan struct{}), make(chan struct{})
	server, client := serve(t, func(uint32) {
		close(begun)
		<-release
	}), openEndpoint(t, Config{})
	to := lookup(t, client, server)
	answer := start(t, client, to, 1)
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Close(ctx); na.KindOf(err) != na.Closed {
		t.Errorf("Close while a task runs: %v", err)
	}
	answer.want(t, na.Unreachable)
	if n := len(server.connections()); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	close(release)
}
