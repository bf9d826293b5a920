package sm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostmem"
	"cinnabar/internal/na"
)

// Limits of one process_vm_readv or process_vm_writev.
const (
	maxPieces = 1024       // of memory on either side (UIO_MAXIOV)
	maxCall   = 0x7FFFF000 // bytes; the kernel moves no more at once (MAX_RW_COUNT)
)

// batch is what one system call moves: pieces of this process's memory and pieces of the peer's that are as long
// together.
type batch struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
	bytes  uint64

	localEnd uint64 // the address behind the last local piece

	relayed bool     // the kernel is not to move it, so that
	slices  [][]byte // these are needed too: local, piece by piece
}

var batches = sync.Pool{New: func() any {
	return &batch{local: make([]unix.Iovec, 0, maxPieces), remote: make([]unix.RemoteIovec, 0, maxPieces)}
}}

// reset empties b, which lets go of the memory of this process.
func (b *batch) reset() {
	clear(b.local)
	clear(b.slices)
	b.local, b.remote, b.slices, b.bytes, b.localEnd = b.local[:0], b.remote[:0], b.slices[:0], 0, 0
}

// free gives b back.
func (b *batch) free() {
	b.reset()
	b.relayed = false
	batches.Put(b)
}

// add adds that local, which is not empty, lies at addr of the peer. Pieces that continue the last one on their side
// become part of it, except that the owner who is to move them has to find each in one piece of what it has registered:
// what only happens to lie side by side stays apart then. False: there is no room.
func (b *batch) add(local []byte, addr uint64) bool {
	at, n := hostmem.Addr(local), uint64(len(local))
	growLocal := len(b.local) > 0 && b.localEnd == at
	growRemote := false
	if k := len(b.remote); k > 0 && !b.relayed {
		last := &b.remote[k-1]
		growRemote = uint64(last.Base)+uint64(last.Len) == addr
	}
	if !growLocal && len(b.local) == maxPieces || !growRemote && len(b.remote) == maxPieces || n > maxCall-b.bytes {
		return false
	}
	if growLocal {
		b.local[len(b.local)-1].Len += n
	} else {
		b.local = append(b.local, unix.Iovec{Base: &local[0], Len: n})
	}
	if growRemote {
		b.remote[len(b.remote)-1].Len += int(n)
	} else {
		b.remote = append(b.remote, unix.RemoteIovec{Base: uintptr(addr), Len: int(n)})
	}
	if b.relayed {
		b.slices = append(b.slices, local)
	}
	b.bytes += n
	b.localEnd = at + n
	return true
}

// move has the kernel copy what b says, from process pid to this one or, for a put, the other way, and tells how many
// bytes that were. Fewer than asked for are no error: the rest was not tried.
func (b *batch) move(pid int32, put bool) (uint64, error) {
	for {
		var n int
		var err error
		if put {
			n, err = unix.ProcessVMWritev(int(pid), b.local, b.remote, 0)
		} else {
			n, err = unix.ProcessVMReadv(int(pid), b.local, b.remote, 0)
		}
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n <= 0 || uint64(n) > b.bytes:
			return 0, unix.EIO
		}
		return uint64(n), nil
	}
}

// probe finds out whether this process may reach the memory of process pid. Where nothing is mapped, which is so at
// address 0, the kernel fails an access that is permitted with EFAULT, after it has looked at the permission.
func probe(pid int32) error {
	var one [1]byte
	local := []unix.Iovec{{Base: &one[0], Len: 1}}
	_, err := unix.ProcessVMReadv(int(pid), local, []unix.RemoteIovec{{Base: 0, Len: 1}}, 0)
	if err == unix.EFAULT {
		return nil
	}
	return err
}

// refused tells whether err says that the kernel does not let this process reach a peer's memory, whatever the address.
// Filters of system calls say ENOSYS rather than EPERM.
func refused(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) }

// AttachError says that the kernel does not let this process reach the memory of another (cross-memory attach:
// process_vm_readv and process_vm_writev), and what would change that. It is in the chain of the error of a transfer.
type AttachError struct {
	PID   int    // the process that was to be reached
	Scope string // what kernel.yama.ptrace_scope is, "" if this kernel does not have it
	Err   error  // what the system call says
}

func newAttachError(pid int32, err error) *AttachError {
	e := &AttachError{PID: int(pid), Err: err}
	if b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil {
		e.Scope = strings.TrimSpace(string(b))
	}
	return e
}

func (e *AttachError) Error() string {
	return "memory of process " + strconv.Itoa(e.PID) + " cannot be reached (process_vm_readv, process_vm_writev): " + e.Err.Error() + ": " + e.remedy()
}

// Unwrap returns what the system call says.
func (e *AttachError) Unwrap() error { return e.Err }

// remedy says what to change. What Yama's settings ask for stands in the kernel's Documentation/admin-guide/LSM/Yama.rst.
func (e *AttachError) remedy() string {
	switch {
	case errors.Is(e.Err, unix.ENOSYS):
		return "a filter of system calls forbids them; let both through in the container's seccomp profile"
	case e.Scope == "1":
		return "kernel.yama.ptrace_scope is 1: the other process must allow it with prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY), as cinnabar does and C's Mercury does not; or set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
	case e.Scope == "2":
		return "kernel.yama.ptrace_scope is 2: this process needs CAP_SYS_PTRACE; or set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
	case e.Scope == "3":
		return "kernel.yama.ptrace_scope is 3, which forbids it until the next boot; set it to 0 in /etc/sysctl.d"
	case e.Scope == "":
		return "run both processes as the same user and in the same user namespace, with the same capabilities and dumpable, or give this one CAP_SYS_PTRACE; in a container, add SYS_PTRACE or let both calls through in its seccomp profile"
	}
	return "kernel.yama.ptrace_scope is " + e.Scope + ", which asks for nothing: run both processes as the same user and in the same user namespace, with the same capabilities and dumpable, or give this one CAP_SYS_PTRACE; in a container, add SYS_PTRACE or let both calls through in its seccomp profile"
}

// allowAttach tells Yama, where its scope is 1, that any process of this user may reach this one's memory, as it may
// without Yama. It holds for the process, whichever thread asks. Kernels without Yama refuse the call, rightly.
var allowAttach = sync.OnceFunc(func() {
	_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0)
})

// accessError is why a transfer failed at addr of process pid.
func accessError(pid int32, addr uint64, err error) error {
	switch {
	case refused(err):
		return &na.Error{Kind: na.Denied, Err: newAttachError(pid, err)}
	case errors.Is(err, unix.ESRCH):
		return &na.Error{Kind: na.Unreachable, Err: fmt.Errorf("process %d is gone", pid)}
	case errors.Is(err, unix.EFAULT):
		return &na.Error{Kind: na.Denied, Err: fmt.Errorf("process %d has no such memory at %#x, or this process not the memory to move it to or from", pid, addr)}
	case errors.Is(err, unix.ENOMEM):
		return &na.Error{Kind: na.Invalid, Err: fmt.Errorf("the kernel has no memory for moving that of process %d: %w", pid, err)}
	}
	return &na.Error{Kind: na.Protocol, Err: fmt.Errorf("process %d, address %#x: %w", pid, addr, err)}
}

// probeMemory finds out whether the kernel lets this process reach the peer's memory, when they connect: what is wrong with
// the settings is told then, not when the first transfer fails. Peers of this package move their memory themselves, and
// are asked to from the first transfer on. Messages need no permission.
func (c *conn) probeMemory() {
	e, a := c.ep, c.addr
	if c.pid == e.who.pid {
		return
	}
	err := probe(c.pid)
	if !refused(err) {
		if a.attach.Swap(nil) != nil { // somebody has changed the settings
			a.relayed.Store(false)
		}
		return
	}
	why := newAttachError(c.pid, err)
	a.attach.Store(why)
	if c.ext != nil {
		a.relayed.Store(true)
	}
	switch {
	case !e.mayLog(a):
	case c.ext != nil:
		e.cfg.Logger.Info("the peer copies its memory for this process, which takes longer than if the kernel did", keyPeer, a.String(), keyError, why)
	default:
		e.cfg.Logger.Warn("bulk transfers from and to the peer will fail", keyPeer, a.String(), keyError, why)
	}
}

// noRelay is why a transfer fails whose peer does not move its memory itself either.
func (t *transfer) noRelay(err error) error {
	if t.refused != nil {
		return t.refused
	}
	if why := t.to.attach.Load(); why != nil {
		return &na.Error{Kind: na.Denied, Err: why}
	}
	return &na.Error{Kind: na.Unreachable, Err: &noRelayError{err}}
}

// Available returns why no endpoint can listen on this host, nil if nothing is known to stand in its way.
func Available() error {
	for _, dir := range []string{defaultShm, defaultSocket} {
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("no files can be made in %s: %w", dir, err)
		}
	}
	return nil
}

// Attach returns why the kernel moves no memory between processes for this one, such as a filter of system calls, nil
// if nothing is known to stand in its way. Whether it does for a certain process is found out by a transfer.
func Attach() error {
	if err := probe(int32(os.Getpid())); err != nil {
		return newAttachError(int32(os.Getpid()), err)
	}
	return nil
}
