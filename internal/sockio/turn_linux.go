package sockio

import (
	"encoding/binary"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
	"cinnabar/internal/rawcall"
)

// turn is an eventfd in Go's poller. A wait makes it readable and parks until the poller reports it, together with all
// connections that are readable by then.
type turn struct {
	mu invariants.Mutex // held during a wait
	// file is set by open and closed by close; both descriptor and raw are its own.
	file *os.File
	raw  syscall.RawConn
	// +checklocks:mu
	begun bool // step has written
}

func (t *turn) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	t.file = os.NewFile(uintptr(fd), "eventfd")
	if t.raw, err = t.file.SyscallConn(); err != nil {
		_ = t.file.Close() // the error at hand is the one to report
		return err
	}
	return nil
}

func (t *turn) wait(limit time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file.SetReadDeadline(time.Now().Add(limit)) != nil {
		return // closed
	}
	t.begun = false
	_ = t.raw.Read(t.step) // an error is the deadline or Close, which end the wait too
	runtime.Gosched()      // because the scheduler may run this goroutine before others of the same poll
}

// step makes the eventfd readable in the first call of a wait, and reads it in the second, after the poller has reported it.
//
// +checklocksignore: wait holds mu while the poller calls it
func (t *turn) step(fd uintptr) bool {
	var buf [8]byte
	if t.begun {
		_, _ = rawcall.Read(int(fd), buf[:]) // if the read fails, the next wait ends early
		return true
	}
	t.begun = true
	binary.NativeEndian.PutUint64(buf[:], 1)
	_, err := rawcall.Write(int(fd), buf[:])
	return err != nil
}

func (t *turn) close() error { return t.file.Close() }
