//go:build linux

package rdmacore_test

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/verbstest"
)

// TestBadRemoved deletes the device under a transfer, with a waiter of every
// kind. All are told; everything can be closed; and then the kernel lets go of it.
// parity(vm): V35
func TestBadRemoved(t *testing.T) {
	if inChild() != "" {
		removedHere(t)
		return
	}
	l := newLink(t)
	c := newChild(t, l.device, l.env()...)
	c.await("writing")
	del := exec.CommandContext(soon(t), "rdma", "link", "delete", l.device)
	if err := del.Start(); err != nil {
		t.Fatal(err)
	}
	c.finish()
	if err := del.Wait(); err != nil { // it waits for the last user
		t.Errorf("rdma link delete: %v", err)
	}
}

// removedHere is what the process does whose device is deleted.
func removedHere(t *testing.T) {
	dev := badDevice(t, inChild())
	p := verbstest.NewPair(t, dev, verbstest.PairConfig{})
	l := listenOn(t, dev, anyPort)
	idle := spareSide(t, dev)
	ctx := soon(t)
	var wg sync.WaitGroup
	wait := func(what string, class error, f func() error) {
		wg.Go(func() {
			if err := f(); !errors.Is(err, class) || ctx.Err() != nil {
				t.Errorf("%s: %v, want %v", what, err, class)
			} else {
				t.Logf("%s: %v", what, err)
			}
		})
	}
	wait("an idle completion queue", verbs.ErrDeviceRemoved, func() error {
		_, err := idle.cq.Wait(ctx, make([]verbs.WC, 1))
		return err
	})
	wait("a listener", verbs.ErrDeviceRemoved, func() error { _, err := l.Accept(ctx); return err })
	wait("the device's events", verbs.ErrDeviceRemoved, func() error {
		ev, err := nextEvent(t, dev, verbs.EventDeviceFatal)
		return errors.Join(err, ev.Err)
	})
	wait("a transfer", nil, func() error {
		err := writerOf(p).run(ctx, func() { say("writing") })
		if _, ok := errors.AsType[*verbs.StatusError](err); !ok && !errors.Is(err, verbs.ErrDeviceRemoved) {
			return err
		}
		t.Logf("a transfer: %v", err)
		return nil
	})
	for _, s := range []*verbstest.Side{p.Active, p.Passive} {
		wait("a connection", verbs.ErrDeviceRemoved, func() error { s.AwaitEnd(); return s.Conn.Err() })
	}
	wg.Wait()
	refusedByRemoved(ctx, t, dev, idle)
}

// refusedByRemoved calls what needs the device.
func refusedByRemoved(ctx context.Context, t *testing.T, dev *verbs.Device, s *side) {
	for what, call := range map[string]func() error{
		"AllocPD":  func() error { _, err := dev.AllocPD(); return err },
		"CreateCQ": func() error { _, err := dev.CreateCQ(1); return err },
		"AllocMR":  func() error { _, err := s.qp.PD().AllocMR(4096, 0); return err },
		"CreateQP": func() error { _, err := s.qp.PD().CreateQP(verbs.QPConfig{SendCQ: s.cq}); return err },
		"Listen":   func() error { _, err := verbs.Listen(dev, anyPort); return err },
		"Dial":     func() error { _, err := verbs.Dial(ctx, s.qp, anyPort, verbs.ConnParam{}); return err },
		"PostRecv": func() error {
			_, err := s.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{s.mr.SGE(0, 8)}}})
			return err
		},
		"Wait": func() error { _, err := s.cq.Wait(ctx, make([]verbs.WC, 1)); return err },
	} {
		if err := call(); !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("%s: %v, want ErrDeviceRemoved", what, err)
		}
	}
}

// TestBadRemovedIdle deletes a device that has no connection.
// parity(vm): V35
func TestBadRemovedIdle(t *testing.T) {
	if inChild() == "" {
		l := newLink(t)
		c := newChild(t, l.device, l.env()...)
		c.await("waiting")
		del := exec.CommandContext(soon(t), "rdma", "link", "delete", l.device)
		if err := del.Start(); err != nil {
			t.Fatal(err)
		}
		c.finish()
		if err := del.Wait(); err != nil {
			t.Errorf("rdma link delete: %v", err)
		}
		return
	}
	dev := badDevice(t, inChild())
	say("waiting")
	ev, err := nextEvent(t, dev, verbs.EventDeviceFatal)
	wantError(t, errors.Join(err, ev.Err), verbs.ErrDeviceRemoved, inChild(), "close its objects")
}
