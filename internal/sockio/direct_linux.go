package sockio

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"cinnabar/internal/invariants"
)

// Direct is true where TryReadv and TryWritev act on the socket itself, and
// false where they copy from and to a staging buffer.
const Direct = true

// socket is the implementation behind Conn.
type socket = direct

// direct does system calls on a descriptor of its own, which Go's poller does not know. The poller's epoll set would wake a thread of
// the scheduler for every segment that arrives, even while a goroutine spins on the socket and none waits.
//
// A waiter has an epoll set instead, with the socket as its only member, armed for one event while a goroutine waits. Go's poller
// watches the descriptor of that set: the waiting goroutine parks on it like on any file. The readers of connections that have joined
// a [Poller] have one set together.
type direct struct {
	file *os.File // the socket; only counts references, for raw
	raw  syscall.RawConn

	rx     transfer // owned by the caller of tryReadv
	tx     transfer // owned by the caller of tryWritev
	rxW    waiter   // owned by the caller of waitRead, as is member, which it uses instead after join
	txW    waiter   // owned by the caller of waitWrite
	member member

	// reset is the first failure in either direction. The kernel reports it to one call only and then shows an end of stream to
	// readers, which must not mistake an abort for the peer's regular end.
	reset atomic.Pointer[net.OpError]

	local  net.Addr
	remote net.Addr
	closed atomic.Bool
	mu     invariants.Mutex
	// parked counts the waiters inside RawConn.
	// +checklocks:mu
	parked int
	// done is true when the descriptors have been closed, or are about to be.
	// +checklocks:mu
	done bool
}

// init moves the socket of c to a descriptor of d's and closes c.
func (d *direct) init(c *net.TCPConn) error {
	d.local, d.remote = c.LocalAddr(), c.RemoteAddr()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	dup := -1
	if cerr := raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return cerr
	}
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	_ = c.Close() // the socket lives on in the duplicate
	// Go's poller does not take a blocking descriptor; the calls have the flag MSG_DONTWAIT.
	if err := unix.SetNonblock(dup, false); err != nil {
		_ = unix.Close(dup) // the error at hand is the one to return
		return os.NewSyscallError("fcntl", err)
	}
	d.file = os.NewFile(uintptr(dup), "tcp")
	if d.raw, err = d.file.SyscallConn(); err != nil {
		_ = d.file.Close() // the error at hand is the one to return
		return err
	}
	leavePacing(dup, addrPort(d.local).Addr(), addrPort(d.remote).Addr())
	d.rx.do, d.tx.do = d.rx.receive, d.tx.send
	d.rxW.events, d.txW.events = unix.EPOLLIN|unix.EPOLLRDHUP, unix.EPOLLOUT
	return nil
}

// leavePacing changes the congestion control of a socket from BBR to Reno if the two ends of the connection are on one host. BBR paces segments
// by timers of the kernel, and the interrupts of these timers delay the next messages. Pacing gains nothing here, because a connection within
// a host has no bottleneck. Reno does not pace, and every process may choose it. The socket works with either, so an error is ignored.
func leavePacing(fd int, local, remote netip.Addr) {
	if !sameHost(local, remote) {
		return
	}
	if name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil && name == "bbr" {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	}
}

// sameHost reports whether a connection between the two addresses stays within this host.
func sameHost(local, remote netip.Addr) bool {
	return local.IsValid() && (local == remote || local.IsLoopback() && remote.IsLoopback())
}

func (d *direct) waitRead(ready func() bool) error  { return d.wait(&d.rxW, ready) }
func (d *direct) waitWrite(ready func() bool) error { return d.wait(&d.txW, ready) }
func (d *direct) join(p *Poller)                    { d.member.join(p) }
func (d *direct) doubt()                            { d.member.drained.Store(undrained) }
func (d *direct) wakeWrite()                        { d.txW.wake() }

func (d *direct) wakeRead() {
	d.member.wake()
	d.rxW.wake()
}

// wait parks on w until ready returns true or the connection is closed.
func (d *direct) wait(w *waiter, ready func() bool) error {
	if !d.enter() {
		return net.ErrClosed
	}
	defer d.leave()
	if w == &d.rxW && d.member.enter(d.raw) {
		return d.waitMember(ready)
	}
	if err := w.open(d.raw); err != nil {
		return err
	}
	for {
		if d.closed.Load() {
			return net.ErrClosed
		}
		if ready() && !d.closed.Load() {
			return w.disarm()
		}
		if err := w.park(); err != nil && !d.closed.Load() {
			return err
		}
	}
}

// stand counts as a waiter, because the descriptor must stay open during the system call: another connection may get its number.
func (d *direct) stand(on bool) {
	if d.member.stand.Load() == on || !d.enter() {
		return
	}
	defer d.leave()
	d.member.setStanding(on)
}

// enter counts a waiter, unless the connection is closed.
func (d *direct) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return false
	}
	d.parked++
	return true
}

// leave ends the count of a waiter. The last waiter that leaves a closed connection closes the descriptors.
func (d *direct) leave() {
	d.mu.Lock()
	d.parked--
	last := d.lastLocked()
	d.mu.Unlock()
	if last {
		_ = d.release() // Close has returned already
	}
}

// lastLocked reports whether the caller must close the descriptors.
//
// +checklocks:d.mu
func (d *direct) lastLocked() bool {
	if !d.closed.Load() || d.parked > 0 || d.done {
		return false
	}
	d.done = true
	return true
}

// close marks the connection closed. net.TCPConn.Close would wait for the parked waiters, and so for itself if a ready function called
// it; therefore the last waiter closes the descriptors.
func (d *direct) close() error {
	d.mu.Lock()
	if d.closed.Load() {
		d.mu.Unlock()
		return net.ErrClosed
	}
	d.closed.Store(true)
	last := d.lastLocked()
	d.mu.Unlock()
	if last {
		return d.release()
	}
	d.wakeRead()
	d.wakeWrite()
	return nil
}

// release closes the descriptors. Only a try call may still use them, and closing the file waits for it.
func (d *direct) release() error {
	d.member.leave()
	d.rxW.close()
	d.txW.close()
	return d.file.Close()
}

func (d *direct) closeWrite() error {
	return d.control(func(fd int) error { return os.NewSyscallError("shutdown", unix.Shutdown(fd, unix.SHUT_WR)) })
}

// control calls f with the socket, unless it is closed.
func (d *direct) control(f func(fd int) error) error {
	if d.closed.Load() {
		return net.ErrClosed
	}
	var failed error
	if err := d.raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

func (d *direct) mss() int {
	n := 0
	err := d.control(func(fd int) (err error) {
		n, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		return err
	})
	if err != nil {
		return 0
	}
	return n
}

func (d *direct) setUserTimeout(ms int) error {
	return d.control(func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms))
	})
}
