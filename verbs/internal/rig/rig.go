// Package rig has helpers for the tests of verbs, verbs/rdmacm and verbs/oob: devices in memory, a device with completions
// and events that the test makes ([FakeDevice]), one side of a connection ([Side]), and checks.
package rig

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest/memdev"
)

// Loopback is the address to listen at, with a port that the system picks.
var Loopback = netip.MustParseAddrPort("127.0.0.1:0")

// Must returns v or ends the test.
func Must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// WantErr checks that err matches target and that its text contains all texts.
func WantErr(t *testing.T, err, target error, texts ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got %v, want an error that matches %v", err, target)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("got %q, want it to say %q", err, s)
		}
	}
}

// CloseAll closes the objects that a test made, in order, when the test ends.
func CloseAll(t *testing.T, objects ...interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		for _, c := range objects {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Context returns a context that ends long after any healthy test.
func Context(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// MemDevice opens a device in memory that really moves data. It is closed when the
// test ends.
func MemDevice(t *testing.T) *verbs.Device {
	t.Helper()
	dev := verbs.NewDevice(memdev.Open(memdev.Config{}))
	CloseAll(t, dev)
	return dev
}

// LogLines is a slog handler that hands the messages to a channel.
type LogLines struct {
	slog.Handler
	Lines chan string
}

// NewLogLines makes a handler with room for 16 messages.
func NewLogLines() LogLines {
	return LogLines{Handler: slog.DiscardHandler, Lines: make(chan string, 16)}
}

// Enabled reports true.
func (l LogLines) Enabled(context.Context, slog.Level) bool { return true }

// Handle sends the message to the channel.
func (l LogLines) Handle(_ context.Context, r slog.Record) error {
	l.Lines <- r.Message
	return nil
}

// Side is one end of a connection with the objects that it needs.
type Side struct {
	PD *verbs.PD
	CQ *verbs.CQ
	QP *verbs.QP
}

// NewSide makes a queue pair on dev. It is closed when the test ends.
func NewSide(t *testing.T, dev *verbs.Device) Side {
	t.Helper()
	s := Side{PD: Must(dev.AllocPD())(t), CQ: Must(dev.CreateCQ(64))(t)}
	s.QP = Must(s.PD.CreateQP(verbs.QPConfig{SendCQ: s.CQ}))(t)
	CloseAll(t, s.QP, s.CQ, s.PD)
	return s
}

// Connect connects two queue pairs of dev.
func Connect(t *testing.T, dev *verbs.Device, active, passive *verbs.QP, ap, pp verbs.ConnParam) (ac, pc *verbs.Conn) {
	t.Helper()
	ctx := Context(t)
	l := Must(verbs.Listen(dev, Loopback))(t)
	defer func() { _ = l.Close() }() // an error would lose nothing: the connection is made, or the test has failed
	dialled := make(chan error, 1)
	go func() {
		c, err := verbs.Dial(ctx, active, l.Addr(), ap)
		ac = c
		dialled <- err
	}()
	r := Must(l.Accept(ctx))(t)
	pc = Must(r.Accept(ctx, passive, pp))(t)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	return ac, pc
}

// WaitOne takes one successful completion.
func WaitOne(ctx context.Context, t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	wc := make([]verbs.WC, 1)
	if _, err := cq.Wait(ctx, wc); err != nil {
		t.Fatal(err)
	}
	if err := wc[0].Err(); err != nil {
		t.Fatal(err)
	}
	return wc[0]
}
