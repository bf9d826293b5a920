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

// batch holds the arguments of one system call: pieces of memory of this process and of the peer, of the same total length.
type batch struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
	bytes  uint64

	localEnd uint64 // the address behind the last local piece

	relayed bool     // the relay moves it instead of the kernel, and
	slices  [][]byte // these are the local pieces
}

var batches = sync.Pool{New: func() any {
	return &batch{local: make([]unix.Iovec, 0, maxPieces), remote: make([]unix.RemoteIovec, 0, maxPieces)}
}}

// reset empties b, so that it keeps no memory of this process alive.
func (b *batch) reset() {
	clear(b.local)
	clear(b.slices)
	b.local, b.remote, b.slices, b.bytes, b.localEnd = b.local[:0], b.remote[:0], b.slices[:0], 0, 0
}

// free returns b to the pool.
func (b *batch) free() {
	b.reset()
	b.relayed = false
	batches.Put(b)
}

// add adds a pair of pieces of the same length: local, which is not empty, and the peer's memory at addr. A piece that continues the
// last one on its side becomes part of it. A peer's pieces stay apart if the peer's relay moves them, because the relay must find each
// in one registered segment, and neighbouring pieces may be of different segments. It returns false if b has no room.
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

// move makes the kernel copy the memory of b from process pid to this one or, for a put, the other way. It returns the number of bytes
// that were copied, which may be less than b.bytes without an error.
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

// refused reports whether err means that the kernel denies access to all memory of a peer, not only at one address. Filters of system
// calls return ENOSYS rather than EPERM.
func refused(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) }

// AttachError is the refusal of the kernel to let this process access the memory of another (cross-memory attach: process_vm_readv and
// process_vm_writev). Its text includes the remedy. It is in the chain of the error of a transfer.
type AttachError struct {
	PID   int    // the other process
	Scope string // the value of kernel.yama.ptrace_scope, "" if this kernel does not have it
	Err   error  // the error of the system call
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

// Unwrap returns the error of the system call.
func (e *AttachError) Unwrap() error { return e.Err }

// remedy returns the text that names the remedy. The kernel describes the settings of Yama in Documentation/admin-guide/LSM/Yama.rst.
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

// allowAttach permits every process of this user to access this process's memory where the scope of Yama is 1; without Yama they may
// too. It holds for the process, whichever thread calls it. Kernels without Yama refuse the call, which changes nothing.
var allowAttach = sync.OnceFunc(func() {
	_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0)
})

// accessError returns the error of a transfer that failed with err at addr of process pid.
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

// probeMemory tests at the time of connecting whether the kernel lets this process access the peer's memory, because a wrong setting
// should appear in the log then and not with the first failing transfer. Without access the relays of peers of this package move
// memory, from the first transfer on. Messages need no permission.
func (c *conn) probeMemory() {
	e, a := c.ep, c.addr
	if c.pid == e.ident.pid {
		return
	}
	err := probe(c.pid)
	if !refused(err) {
		if a.attach.Swap(nil) != nil { // the settings have changed
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

// noRelay returns the error of a transfer to a peer that has no relay either.
func (t *transfer) noRelay(err error) error {
	if t.refused != nil {
		return t.refused
	}
	if why := t.to.attach.Load(); why != nil {
		return &na.Error{Kind: na.Denied, Err: why}
	}
	return &na.Error{Kind: na.Unreachable, Err: &noRelayError{err}}
}

// Available returns nil if an endpoint can listen on this host, as far as that is known without opening one, and the cause otherwise.
func Available() error {
	for _, dir := range []string{defaultShm, defaultSocket} {
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("no files can be made in %s: %w", dir, err)
		}
	}
	return nil
}

// Attach returns the cause if the kernel lets this process access the memory of no other process, for example because of a filter of
// system calls, and nil otherwise. Whether it permits access to a certain process shows with a transfer.
func Attach() error {
	if err := probe(int32(os.Getpid())); err != nil {
		return newAttachError(int32(os.Getpid()), err)
	}
	return nil
}
