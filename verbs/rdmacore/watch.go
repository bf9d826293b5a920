//go:build rdma && linux && cgo

package rdmacore

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher reads a library's event descriptor by Go's poller.
type watcher struct {
	file *os.File
	done chan struct{}
}

// watch makes fd non-blocking and calls next from one goroutine whenever there is
// something to read, until next fails with EAGAIN, and again. Any other failure
// ends it: the device is gone. The descriptor stays its owner's; the poller gets
// a duplicate.
func watch(fd int, next func() error) (*watcher, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watcher{file: os.NewFile(uintptr(dup), "rdma events"), done: make(chan struct{})}
	conn, err := w.file.SyscallConn()
	if err != nil {
		_ = w.file.Close() // err is the news
		return nil, err
	}
	go func() {
		defer close(w.done)
		var failed error
		for failed == nil {
			readErr := conn.Read(func(uintptr) bool {
				for failed == nil {
					if failed = next(); errors.Is(failed, syscall.EAGAIN) {
						failed = nil
						return false // wait for more
					}
				}
				return true
			})
			if readErr != nil {
				return // closed
			}
		}
	}()
	return w, nil
}

// close ends the goroutine and waits for it.
func (w *watcher) close() {
	_ = w.file.Close() // a duplicate: nothing is lost with it
	<-w.done
}
