package sm

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// openSocket makes the datagram socket, by which clients send commands and a server receives them.
func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// makeSocketDir makes the directory of the endpoint's socket, or takes an existing one of this user, and opens it. A directory of
// another user would let that user replace the socket by another one.
func (e *Endpoint) makeSocketDir() (int, error) {
	path := e.cfg.socketDir(e.own.uri)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return -1, err
	}
	fd, err := openPath(unix.AT_FDCWD, path, unix.O_DIRECTORY)
	if err != nil {
		return -1, foreignAt(path, err)
	}
	f, err := shm.FileOf(fd)
	switch own := uint32(os.Geteuid()); {
	case err != nil:
	case f.UID != own: // root's too, because this user could not remove the socket from it
		err = &foreignError{path, f, own}
	case f.Mode&sharedWrite != 0: // a program with another umask has left it
		err = os.Chmod(pathOf(fd), 0o700)
	}
	if err != nil {
		closeAll(fd)
		return -1, err
	}
	return fd, nil
}

// bindSocket binds the endpoint's socket to its path, so that peers can send commands. The kernel adds the sender's credentials to
// each command.
func (e *Endpoint) bindSocket() (err error) {
	if e.sockDir, err = e.makeSocketDir(); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(e.sock, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Fchmod(e.sock, 0o600); err != nil { // the mode of the file that bind will make
		return os.NewSyscallError("fchmod", err)
	}
	// Bound by the descriptor of the directory that was checked, even if another directory has its name by now.
	path, place := e.cfg.socketPath(e.own.uri), &unix.SockaddrUnix{Name: pathOf(e.sockDir) + "/" + sockName}
	err = unix.Bind(e.sock, place)
	if errors.Is(err, unix.EADDRINUSE) { // no other endpoint has the name, because this one has the region
		if refused, _ := probeSocket(place.Name); refused && unix.Unlinkat(e.sockDir, sockName, 0) == nil {
			err = unix.Bind(e.sock, place)
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
	cut   bool // the kernel has dropped descriptors, because the message or this process had no room for them
	fds   []int
}

// controlSize has room for the credentials of a sender and more descriptors than a valid command has.
const controlSize = 256

// receiveDatagram receives one datagram; ok is false if none has come. The caller closes its descriptors.
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
	for rest := control[:cn]; len(rest) > 0; {
		var head unix.Cmsghdr
		var data []byte
		if head, data, rest, err = unix.ParseOneSocketControlMessage(rest); err != nil {
			return d, true, violated(causeDatagram, "a datagram with unreadable control data: %v", err)
		}
		d.control(head, data)
	}
	if d.cut = flags&unix.MSG_CTRUNC != 0; d.cut {
		d.close()
	}
	if n != commandSize || flags&unix.MSG_TRUNC != 0 {
		return d, true, errDatagram
	}
	d.cmd = command(binary.LittleEndian.Uint64(b[:]))
	return d, true, nil
}

// errDatagram is the error of a datagram that is not a command.
var errDatagram = violated(causeDatagram, "a datagram is not a command: a command has %d bytes, and 2 descriptors or none", commandSize)

// control records the descriptors or the credentials of one control message.
func (d *datagram) control(head unix.Cmsghdr, data []byte) {
	switch {
	case head.Level != unix.SOL_SOCKET:
	case head.Type == unix.SCM_RIGHTS:
		for ; len(data) >= 4; data = data[4:] {
			d.fds = append(d.fds, int(int32(binary.NativeEndian.Uint32(data))))
		}
	case head.Type == unix.SCM_CREDENTIALS && len(data) >= unix.SizeofUcred:
		d.pid, d.uid, d.creds = int32(binary.NativeEndian.Uint32(data)), binary.NativeEndian.Uint32(data[4:]), true
	}
}

// close closes the descriptors that are left.
func (d *datagram) close() {
	closeAll(d.fds...)
	d.fds = nil
}

// closeAll closes descriptors. Their errors are ignored, because no data written to them can be lost.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// isEventfd reports whether fd, which a peer has sent, is an eventfd. It also makes fd non-blocking, but the peer can undo that,
// because the flag belongs to the open file: see [shm.Doorbell].
func isEventfd(fd int) bool {
	var b [64]byte
	n, err := unix.Readlink("/proc/self/fd/"+itoa(fd), b[:])
	if err != nil || !strings.HasPrefix(string(b[:n]), "anon_inode:[eventfd") {
		return false
	}
	return unix.SetNonblock(fd, true) == nil
}

// datagramOf returns the bytes of a command, and the control data with the descriptors of the doorbells, if there are any.
func datagramOf(cmd command, doorbells []int) (b, control []byte) {
	b = binary.LittleEndian.AppendUint64(nil, uint64(cmd))
	if len(doorbells) > 0 {
		control = unix.UnixRights(doorbells...)
	}
	return b, control
}

// sendCommand sends a command to the socket at path. Its error is EAGAIN if the socket has no room.
func (e *Endpoint) sendCommand(path string, cmd command, doorbells ...int) error {
	b, control := datagramOf(cmd, doorbells)
	_, err := unix.SendmsgN(e.sock, b, control, &unix.SockaddrUnix{Name: path}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

// errSocketFull is the error if a server's socket had no room within the time limit of an attempt.
var errSocketFull = errors.New("its socket had no room for another command")

// awaitRoom sends a command like sendCommand, and waits up to limit for room in the socket at path. It connects a socket, because
// the kernel wakes a sender with a connected socket as soon as the server has read a command: such a sender comes before others
// that repeat their attempts.
func awaitRoom(path string, limit time.Duration, cmd command, doorbells ...int) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // a command that was sent is in the server's socket
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	b, control := datagramOf(cmd, doorbells)
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		_, sent = unix.SendmsgN(int(fd), b, control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return !errors.Is(sent, unix.EAGAIN)
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSocketFull
	}
	return errors.Join(err, sent)
}
