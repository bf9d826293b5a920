package sm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// TestAttachRefused reaches for a process that the kernel does not let this one reach.
// parity: D17
func TestAttachRefused(t *testing.T) {
	probed, moved := make(chan error, 1), make(chan error, 1)
	user := memoryEnd(t)
	to := &Addr{ep: user, ident: identity{1, 0}, uri: "1-0"}
	r, err := user.ParseHandle(rawHandle(1, 8, 3, 0x1000, 8))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its rights
		dropPtrace()
		probed <- probe(1)
		tr := &transfer{op: new(na.Op), to: to, at: cursor{frags: []na.Fragment{{Remote: r, Local: make([]byte, 8)}}}, total: 8}
		moved <- tr.run(inlineBytes)
	}()
	probeErr, moveErr := await(t, "the probe", probed), await(t, "the transfer", moved)
	if probeErr == nil {
		t.Skipf("process 1 can be reached by a process of user %d without CAP_SYS_PTRACE: a container of its own", os.Getuid())
	}
	if !refused(probeErr) { // a filter of system calls may answer before the kernel
		t.Errorf("probe: %v, want %v", probeErr, unix.EPERM)
	}
	if na.KindOf(moveErr) != na.Denied || !attachRefused(moveErr) {
		t.Errorf("transfer: %v; want an AttachError of kind %v", moveErr, na.Denied)
	}
}

// dropPtrace takes CAP_SYS_PTRACE from the calling thread. Without rights there is nothing to take.
func dropPtrace() {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&head, &data[0]) == nil {
		data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
		data[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
		_ = unix.Capset(&head, &data[0]) // the test finds out
	}
}

// TestAttachRefusedByName: without the kernel and without a relay, the error of a transfer says what would help.
// parity: D17
func TestAttachRefusedByName(t *testing.T) {
	user := memoryEnd(t)
	gone := deadProcess(t)
	to := &Addr{ep: user, ident: identity{gone, 0}, uri: identity{gone, 0}.uri()}
	to.relayed.Store(true)
	r, err := user.ParseHandle(rawHandle(1, 8, 3, 0x1000, 8))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); na.KindOf(err) != na.Unreachable {
		t.Errorf("without a relay: %v; want kind %v", err, na.Unreachable)
	}
}

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
	c.Send("")
	c.expect("ready ")
	raw := mapRawAt(t, &server.cfg, identity{int32(c.Pid()), 0}).claim()
	raw.announce()
	raw.request(1, []byte("x"))
	c.Send("")
	if got := c.expect("relayed "); got != "false, true" {
		t.Errorf("of a client of C's kind it knows %q", got)
	}
	raw.release()
	c.Send("")
}
