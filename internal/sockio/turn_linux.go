package sockio

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// turn is an eventfd in Go's poller. A wait makes it readable and parks until the poller reports that: with everything
// else that is readable by then.
type turn struct {
	mu sync.Mutex // held during a wait
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
	_ = t.raw.Read(t.step) // ends by the deadline or by close otherwise
	runtime.Gosched()      // the poller readies the goroutines of one look last come, first served
}

// step makes the eventfd readable when it is called first, and reads it when the poller has seen that.
//
// +checklocksignore: wait holds mu while the poller calls it
func (t *turn) step(fd uintptr) bool {
	var buf [8]byte
	if t.begun {
		_, _ = unix.Read(int(fd), buf[:]) // a count that stays only ends the next wait early
		return true
	}
	t.begun = true
	binary.NativeEndian.PutUint64(buf[:], 1)
	_, err := unix.Write(int(fd), buf[:])
	return err != nil
}

func (t *turn) close() error { return t.file.Close() }
