package sm

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
)

// openSocket makes the datagram socket: clients send commands with it, and a server receives them.
func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// bindSocket gives the endpoint's socket its place, from which peers' commands come. The kernel tells who sends them.
func (e *Endpoint) bindSocket() error {
	dir, path := e.cfg.socketDir(e.own.uri), e.cfg.socketPath(e.own.uri)
	if err := os.Mkdir(dir, 0o775); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.SetsockoptInt(e.sock, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	err := unix.Bind(e.sock, &unix.SockaddrUnix{Name: path})
	if errors.Is(err, unix.EADDRINUSE) { // the region is ours, so a socket without it is nobody's
		if refused, _ := probeSocket(path); refused && os.Remove(path) == nil {
			err = unix.Bind(e.sock, &unix.SockaddrUnix{Name: path})
		}
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return &na.Error{Kind: na.InUse, Op: "open", Addr: e.own.String(), Err: &os.PathError{Op: "bind", Path: path, Err: err}}
	}
	if err != nil {
		return &os.PathError{Op: "bind", Path: path, Err: err}
	}
	e.bound = true
	return e.poll.add(e.sock, unix.EPOLLIN, eventSocket, 0)
}

// datagram is a command that came through the socket.
type datagram struct {
	cmd   command
	pid   int32 // of the sender, as the kernel knows it
	uid   uint32
	creds bool
	fds   []int
}

// controlSize has room for a sender's credentials and more descriptors than anybody should send.
const controlSize = 256

// receiveDatagram takes one datagram; ok is false if none is there. Descriptors are the caller's to close.
func receiveDatagram(sock int) (d datagram, ok bool, err error) {
	var b [commandSize + 1]byte
	var control [controlSize]byte
	n, cn, flags, _, err := unix.Recvmsg(sock, b[:], control[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			err = nil
		}
		return d, false, err
	}
	list, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil {
		return d, true, violated("a datagram with unreadable control data: %v", err)
	}
	for i := range list {
		d.control(&list[i])
	}
	if n != commandSize || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return d, true, violated("a datagram of %d bytes and %d descriptors; it has %d bytes, and 2 descriptors or none", n, len(d.fds), commandSize)
	}
	d.cmd = command(binary.LittleEndian.Uint64(b[:]))
	return d, true, nil
}

func (d *datagram) control(m *unix.SocketControlMessage) {
	if fds, err := unix.ParseUnixRights(m); err == nil {
		d.fds = append(d.fds, fds...)
	}
	if c, err := unix.ParseUnixCredentials(m); err == nil {
		d.pid, d.uid, d.creds = c.Pid, c.Uid, true
	}
}

// close closes the descriptors that are left.
func (d *datagram) close() {
	closeAll(d.fds...)
	d.fds = nil
}

// closeAll closes descriptors that nothing was or will be written to that could be lost.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// isEventfd tells whether fd, which a peer has sent, is an eventfd that does not block: a write to anything else could
// keep the writer for ever.
func isEventfd(fd int) bool {
	var b [64]byte
	n, err := unix.Readlink("/proc/self/fd/"+itoa(fd), b[:])
	if err != nil || !strings.HasPrefix(string(b[:n]), "anon_inode:[eventfd") {
		return false
	}
	return unix.SetNonblock(fd, true) == nil
}

// sendCommand sends a datagram to a server's socket, with doorbells if there are any.
func (e *Endpoint) sendCommand(path string, cmd command, bells ...int) error {
	var b [commandSize]byte
	binary.LittleEndian.PutUint64(b[:], uint64(cmd))
	var control []byte
	if len(bells) > 0 {
		control = unix.UnixRights(bells...)
	}
	_, err := unix.SendmsgN(e.sock, b[:], control, &unix.SockaddrUnix{Name: path}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}
