package sm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// confined is a process without CAP_SYS_PTRACE. It calls a server, then takes a request of a client of C's kind, and tells
// of both what it knows of their memory, without a transfer.
func (p *player) confined(target string) error {
	from := make(chan *Addr, 1)
	h := &echo{}
	p.cfg.Listen, p.cfg.Handler = true, handlerFunc(func(m *na.Message) na.Task {
		a, _ := m.From.(*Addr)
		from <- a
		return h.Request(m)
	})
	e, err := p.open()
	if err != nil {
		return err
	}
	h.ep.Store(e)
	to, err := e.Lookup(target)
	if err != nil {
		return err
	}
	send := newSignal()
	e.SendRequest(&send.op, to, 1, []byte("x"))
	<-send.ch
	server, _ := to.(*Addr)
	tell := func(a *Addr) { p.say(fmt.Sprint("relayed ", a.relayed.Load(), ", ", a.attach.Load() != nil)) }
	tell(server)
	p.say("ready " + e.own.String())
	tell(<-from)
	return errors.Join(send.op.Err, e.Close(context.Background()))
}

// TestProbeOnConnect has a process that the kernel does not let reach this one's memory connect to it, and be connected to: it knows
// so before any transfer, and whether the peer will copy instead.
// parity: H126 D17
func TestProbeOnConnect(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // against a process of the same user without rights
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }()
	server, _ := serve(t, Config{})
	var c *child
	started := make(chan struct{})
	go func() {
		defer close(started)
		runtime.LockOSThread()                                             // and never unlocked: the thread ends with its rights
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0) // only who has rights can drop them
		c = start(t, "confined", targetEnv+"="+server.own.String())
	}()
	await(t, "the start of the other process", started)
	if c == nil {
		t.FailNow()
	}
	if got := c.expect("relayed "); got == "false, false" {
		t.Skip("the kernel lets a process without CAP_SYS_PTRACE reach one that is not dumpable")
	} else if got != "true, true" {
		t.Errorf("of a server of this package it knows %q", got)
	}
	c.tell("")
	c.expect("ready ")
	raw := mapRawAt(t, &server.cfg, identity{int32(c.cmd.Process.Pid), 0}).claim()
	raw.announce()
	raw.request(1, []byte("x"))
	c.tell("")
	if got := c.expect("relayed "); got != "false, true" {
		t.Errorf("of a client of C's kind it knows %q", got)
	}
	raw.release()
	c.tell("")
}
