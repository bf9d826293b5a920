package sm

import (
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
	to := &Addr{ep: user, who: identity{1, 0}, uri: "1-0"}
	r, err := user.ParseHandle(rawHandle(1, 8, 3, 0x1000, 8))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its rights
		dropPtrace()
		probed <- probe(1)
		tr := &transfer{op: new(na.Op), to: to, frags: []na.Fragment{{Remote: r, Local: make([]byte, 8)}}, total: 8}
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
	to := &Addr{ep: user, who: identity{gone, 0}, uri: identity{gone, 0}.uri()}
	to.relayed.Store(true)
	r, err := user.ParseHandle(rawHandle(1, 8, 3, 0x1000, 8))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, user, to, na.Fragment{Remote: r, Local: make([]byte, 8)}); na.KindOf(err) != na.Unreachable {
		t.Errorf("without a relay: %v; want kind %v", err, na.Unreachable)
	}
}
