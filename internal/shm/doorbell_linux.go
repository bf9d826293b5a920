package shm

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Doorbell adds to an eventfd that another process has open too, and never waits for that process.
//
// A write to an eventfd with a full count waits, unless O_NONBLOCK is set; and that flag belongs to the open file, which both
// processes share, so the other process can clear it at any time. Therefore a Doorbell does not write. It makes the kernel add 1 at the
// end of an asynchronous operation that does nothing (IOCB_FLAG_RESFD of io_submit), which neither waits nor looks at the flag. If the
// kernel has no asynchronous operations, or refuses one, a goroutine writes, so that only that goroutine waits; each Doorbell has one at
// most.
//
// Ring and Close must not be called at the same time.
type Doorbell struct {
	fd int
	cb iocb

	// The following are used where the kernel has no asynchronous operations, or refuses one.
	pending atomic.Uint64 // to be added by the goroutine
	mu      sync.Mutex
	writing bool // +checklocks:mu
	closed  bool // +checklocks:mu
}

// NewDoorbell returns a Doorbell for an eventfd, which [Doorbell.Close] closes.
func NewDoorbell(fd int) *Doorbell {
	b := &Doorbell{fd: fd}
	if ops := operations(); ops != nil {
		b.cb = iocb{opcode: opWrite, fd: ops.null, flags: flagResFD, resFD: uint32(fd)}
	}
	return b
}

// FD returns the descriptor, so that the caller can send it to another process.
func (b *Doorbell) FD() int { return b.fd }

// Ring adds n to the count. It does nothing if the count is full, because a full count wakes the other process too.
func (b *Doorbell) Ring(n int) {
	if b.cb.flags == 0 {
		b.write(uint64(n))
		return
	}
	ops := operations()
	for i := range n {
		if !ops.submit(&b.cb) {
			b.write(uint64(n - i)) // a token that is lost would leave the other process asleep
			return
		}
	}
}

// Close closes the descriptor.
func (b *Doorbell) Close() {
	b.mu.Lock()
	b.closed = true
	writing := b.writing
	b.mu.Unlock()
	if !writing {
		closeFD(b.fd)
		return
	}
	b.release()
}

// aio is the context of this process's asynchronous operations.
type aio struct {
	ctx   uintptr
	null  uint32 // /dev/null, open for writing
	count atomic.Uint32
	mu    sync.Mutex
	// +checklocks:mu
	events [reapEvery]ioEvent
}

const (
	// maxOperations is how many events may be unreaped. The kernel counts them for all processes of the machine together
	// (fs.aio-max-nr, 65,536 by default) and refuses further contexts, those of databases too, so one process takes few.
	maxOperations = 64
	reapEvery     = 32 // operations after which events are reaped
	submitTries   = 64
)

// operations returns the context, nil if the kernel has none to give.
var operations = sync.OnceValue(newAIO)

func newAIO() *aio {
	null, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	ctx, err := ioSetup(maxOperations)
	if err != nil {
		closeFD(null)
		return nil
	}
	return &aio{ctx: ctx, null: uint32(null)}
}

// submit runs an operation, which is complete when it returns, and reports whether the kernel took it.
func (o *aio) submit(cb *iocb) bool {
	if o.count.Add(1)%reapEvery == 0 {
		o.reap()
	}
	for range submitTries {
		err := ioSubmit(o.ctx, cb)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err == nil
		}
		o.reap()
		runtime.Gosched()
	}
	return false
}

func (o *aio) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	ioReap(o.ctx, o.events[:])
}

// write makes the goroutine add n.
func (b *Doorbell) write(n uint64) {
	b.pending.Add(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.writing && !b.closed {
		b.writing = true
		go b.work()
	}
}

// work writes until nothing is pending. Its write waits for as long as the other process leaves the count full.
func (b *Doorbell) work() {
	for {
		if n := b.pending.Swap(0); n > 0 {
			var v [8]byte
			binary.NativeEndian.PutUint64(v[:], n)
			_, _ = unix.Write(b.fd, v[:]) // a count that is full wakes the other process in any case
		}
		if b.idle() {
			return
		}
	}
}

// idle ends the goroutine if there is nothing to do.
func (b *Doorbell) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending.Load() > 0 && !b.closed {
		return false
	}
	b.writing = false
	if b.closed {
		closeFD(b.fd)
	}
	return true
}

// releaseTries is how often Close makes room in a count that is full.
const releaseTries = 16

// release lets a goroutine end that waits in its write. The other process can make it wait again, but not once it has
// ended; until then the goroutine and the descriptor are left to it.
func (b *Doorbell) release() {
	for range releaseTries {
		_ = unix.SetNonblock(b.fd, true)
		var v [8]byte
		_, _ = unix.Preadv2(b.fd, [][]byte{v[:]}, -1, unix.RWF_NOWAIT) // never waits, with or without O_NONBLOCK
		runtime.Gosched()
		b.mu.Lock()
		done := !b.writing
		b.mu.Unlock()
		if done {
			return
		}
	}
}
