package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacm"
)

// loopback is any port of it.
var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both runs server and client against each other and returns what they print.
func both(t *testing.T, o options) (server, client string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := rdmacm.ListenEndpoints(dev, loopback, endpointConfig)
	if err != nil {
		t.Fatal(err)
	}
	o.addr = l.Addr()
	var served, called bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- serve(ctx, dev, l, &served) }()
	o.client = true
	err = run(ctx, o, &called)
	if err := errors.Join(err, <-done, dev.Close()); err != nil {
		t.Fatalf("%v\nserver:\n%sclient:\n%s", err, &served, &called)
	}
	return served.String(), called.String()
}

// TestConversation lets the program talk to itself.
func TestConversation(t *testing.T) {
	for _, count := range []uint64{0, 1, 100, 101} {
		server, client := both(t, options{count: count, seed: count})
		if server != client {
			t.Errorf("%d messages: the server says\n%sthe client\n%s", count, server, client)
		}
	}
}

// TestBadCases has both sides name the cause of the end, and the same.
func TestBadCases(t *testing.T) {
	for name, cause := range map[string]string{
		"write-key": "(layer 1, type 1, code 0)", "read-key": "(layer 0, type 1, code 0)",
		"write-range": "(layer 1, type 1, code 1)", "send-long": "(layer 1, type 2, code 5)",
	} {
		t.Run(name, func(t *testing.T) {
			server, client := both(t, options{bad: name})
			if !strings.Contains(server, "end: connection terminated by this side") || !strings.Contains(server, cause) {
				t.Errorf("the server says\n%swant its own Terminate %s", server, cause)
			}
			if !strings.Contains(client, "end: connection terminated by the peer") || !strings.Contains(client, cause) {
				t.Errorf("the client says\n%swant the peer's Terminate %s", client, cause)
			}
		})
	}
}

// TestChecker finds a wrong byte, and one behind the message.
func TestChecker(t *testing.T) {
	m := message{op: 1, size: 1003, number: 7}
	good := make([]byte, stride)
	fill(1, m, good[:m.size])
	mark(m, good)
	c := newChecker(1)
	if err := c.check(m, good); err != nil {
		t.Error(err)
	}
	for _, i := range []int{0, 500, m.size - 1, m.size, m.size + guard - 1} {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if c.check(m, bad) == nil {
			t.Errorf("byte %d is wrong, and that is not found", i)
		}
	}
	if m.number++; c.check(m, good) == nil {
		t.Error("another message is taken for this one")
	}
}

// TestTurns draws every operation, no size and the largest.
func TestTurns(t *testing.T) {
	g := newTurns(1, 20000)
	var seen [len(ops)]bool
	var empty, largest bool
	for turn := g.draw(); turn != nil; turn = g.draw() {
		for _, m := range turn {
			seen[m.op] = true
			empty = empty || m.size == 0
			largest = largest || m.size > maxSize*9/10
		}
	}
	if g.drawn != 20000 || !seen[0] || !seen[1] || !seen[2] || !empty || !largest {
		t.Errorf("%d messages, operations %v, an empty one %t, a large one %t", g.drawn, seen, empty, largest)
	}
}
