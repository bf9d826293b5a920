//go:build linux

package rdmacore

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher reads a library's event descriptor by Go's poller.
type watcher struct {
	file *os.File
	conn syscall.RawConn
	next func() error
	once sync.Once // start, or close without start
	done chan struct{}
}

// watch makes fd non-blocking and calls next from one goroutine whenever there is
// something to read, until next fails with EAGAIN, and again. Any other failure
// ends it: the device is gone. The descriptor stays its owner's; the poller gets
// a duplicate.
func watch(fd int, next func() error) (*watcher, error) {
	w, err := newWatcher(fd, next)
	if err == nil {
		w.start()
	}
	return w, err
}

// newWatcher is watch without the goroutine, which start starts.
func newWatcher(fd int, next func() error) (*watcher, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watcher{file: os.NewFile(uintptr(dup), "rdma events"), next: next, done: make(chan struct{})}
	if w.conn, err = w.file.SyscallConn(); err != nil {
		_ = w.file.Close() // err is the news
		return nil, err
	}
	return w, nil
}

// start starts the goroutine. Further calls, and those after close, do nothing.
func (w *watcher) start() { w.once.Do(func() { go w.run() }) }

func (w *watcher) run() {
	defer close(w.done)
	var failed error
	for failed == nil {
		readErr := w.conn.Read(func(uintptr) bool {
			for failed == nil {
				if failed = w.next(); errors.Is(failed, syscall.EAGAIN) {
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
}

// close ends the goroutine and waits for it.
func (w *watcher) close() {
	w.once.Do(func() { close(w.done) }) // it has not been started
	_ = w.file.Close()                  // a duplicate: nothing is lost with it
	<-w.done
}
