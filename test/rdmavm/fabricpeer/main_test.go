package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cinnabar/internal/na/ofiverbs"
	"cinnabar/verbs/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both lets a server and a client converse and returns their errors.
func both(t *testing.T, server, client options) (served, called error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client.connect = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	a, b := net.Pipe()
	done := make(chan error, 1)
	side := func(o options, c net.Conn) error {
		e, err := ofiverbs.Open(ctx, ofiverbs.Config{Device: dev, Address: "ofi+verbs://127.0.0.1", MaxRequest: maxSize, MaxResponse: maxSize})
		if err != nil {
			return errors.Join(err, c.Close())
		}
		return errors.Join(converse(ctx, o, e, c), c.Close(), e.Close(ctx))
	}
	go func() { done <- side(server, a) }()
	called = side(client, b)
	served = <-done
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	return served, called
}

// TestConversation lets the program converse with itself.
func TestConversation(t *testing.T) {
	for _, o := range []options{{size: 1, count: 100}, {size: 64, count: 1}, {size: maxSize, count: 10}} {
		o.corrupt = -1
		if served, called := both(t, o, o); served != nil || called != nil {
			t.Errorf("%d bytes: the server ends with %v, the client with %v", o.size, served, called)
		}
	}
}

// TestWrongByte has either side send one wrong byte, which the other names.
func TestWrongByte(t *testing.T) {
	good, bad := options{size: 1000, count: 10, corrupt: -1}, options{size: 1000, count: 10, corrupt: 7}
	_, called := both(t, bad, good)
	served, _ := both(t, good, bad)
	for side, err := range map[string]error{"server": served, "client": called} {
		if !errors.Is(err, errWrong) || !strings.Contains(err.Error(), "message 7: wrong bytes: byte 500 ") {
			t.Errorf("the %s ends with %v, want an error about byte 500 of message 7", side, err)
		}
	}
}

// TestOtherSize has a client that sends longer messages than the server expects.
func TestOtherSize(t *testing.T) {
	served, _ := both(t, options{size: 10, count: 1, corrupt: -1}, options{size: 11, count: 1, corrupt: -1})
	if !errors.Is(served, errWrong) {
		t.Errorf("the server ends with %v, want an error about the size", served)
	}
}

// TestOptions checks the limits of the command line.
func TestOptions(t *testing.T) {
	for _, args := range []string{"", "-address ::1", "-address 127.0.0.1 -size 0", "-address 127.0.0.1 -size 16385", "-address 127.0.0.1 -count 0",
		"-address 127.0.0.1 -connect nobody", "-address 127.0.0.1 -control 65536"} {
		if o, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%q is accepted as %+v", args, o)
		}
	}
	if o, err := parse(strings.Fields("-address 127.0.0.1 -size 16384")); err != nil || o.connect.IsValid() || o.size != maxSize {
		t.Errorf("%+v, %v", o, err)
	}
}
