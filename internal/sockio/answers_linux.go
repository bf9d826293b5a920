package sockio

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// answersTick is the interval between two readings of the time of the last segment from the peer.
const answersTick = 5 * time.Millisecond

// tcpEstablished is the state of a connection that is open in both directions (TCP_ESTABLISHED).
const tcpEstablished = 1

// answers is [Conn.Answers].
func (d *direct) answers(within time.Duration, stop <-chan struct{}) (bool, error) {
	open, silence, err := d.silence()
	if err != nil || !open || silence < within {
		return open && err == nil, d.unlessClosed(err)
	}
	restore, err := d.hastenKeepAlive()
	if err != nil {
		return false, d.unlessClosed(err)
	}
	defer restore()
	tick := time.NewTicker(answersTick)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < within; {
		select {
		case <-tick.C:
		case <-stop:
			return true, nil
		}
		open, silence, err := d.silence()
		if err != nil || !open || silence < within {
			return open && err == nil, d.unlessClosed(err)
		}
	}
	return false, nil
}

// unlessClosed returns err, or nil if this process has closed the connection, because the peer of a closed connection counts as not
// answering.
func (d *direct) unlessClosed(err error) error {
	if d.closed.Load() { // meanwhile, perhaps because the probe was answered by a reset
		return nil
	}
	return err
}

// silence reports whether the connection is open in both directions, and how long ago the peer's last segment came.
func (d *direct) silence() (open bool, ago time.Duration, err error) {
	err = d.control(func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		open = info.State == tcpEstablished
		ago = time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
		return nil
	})
	return open, ago, err
}

// keepAliveOptions are those that hastenKeepAlive changes, in the order in which they are set. The time before the first
// probe is set last because the kernel then arms its timer, at once if the connection has been silent for that long.
var keepAliveOptions = [...]struct{ level, name int }{
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
}

// hastenKeepAlive makes the kernel send a keep-alive probe at once if the connection has been silent for a second, and returns a
// function that restores the options.
func (d *direct) hastenKeepAlive() (restore func(), err error) {
	var old [len(keepAliveOptions)]int
	set := func(values [len(keepAliveOptions)]int) error {
		return d.control(func(fd int) error {
			for i, o := range keepAliveOptions {
				if err := unix.SetsockoptInt(fd, o.level, o.name, values[i]); err != nil {
					return os.NewSyscallError("setsockopt", err)
				}
			}
			return nil
		})
	}
	err = d.control(func(fd int) (err error) {
		for i, o := range keepAliveOptions {
			if old[i], err = unix.GetsockoptInt(fd, o.level, o.name); err != nil {
				return os.NewSyscallError("getsockopt", err)
			}
		}
		return nil
	})
	if err == nil {
		err = set([...]int{1, 1, 1})
	}
	return func() { _ = set(old) }, err // a closed connection needs no options
}
