package sm

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// HG_Cleanup of C's Mercury, which its servers for measurements call when they start, over whatever network, removes all
// regions and sockets under the names that C gives them, those of living servers too. An endpoint therefore has a second
// name for each of its two files, which is not of that kind, and gives them their first one back from it. Who has the
// files open does not notice.

func (cfg *Config) spareObject(uri string) string {
	return filepath.Join(cfg.ShmDir, "."+cfg.Prefix+"-"+uri)
}

func (cfg *Config) spareSocket(uri string) string {
	return filepath.Join(cfg.SocketDir, "."+cfg.Prefix+"-"+uri)
}

// keepSpare gives a file of this endpoint's its second name, and returns what it is known by: nil if it is gone already.
// Without a second name, which some file systems do not allow, a file that is removed stays so.
func keepSpare(path, spare string) os.FileInfo {
	_ = os.Remove(spare) // the first name is this endpoint's, so nobody's
	_ = os.Link(path, spare)
	st, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	return st
}

// removeSame removes a file if it is still the one that st says.
func removeSame(path string, st os.FileInfo) {
	if now, err := os.Lstat(path); err == nil && st != nil && os.SameFile(now, st) {
		_ = os.Remove(path) // what cannot be removed is reclaimed by the next endpoint that opens
	}
}

// restoreDelay is how soon after a file was removed it is restored: whoever removes files does not find it there again
// while he is at it.
const restoreDelay = 10 * time.Millisecond

// restore gives the endpoint's files their names back.
func (e *Endpoint) restore() {
	uri := e.own.uri
	region := giveBack(e.cfg.spareObject(uri), e.cfg.objectPath(uri))
	if err := os.Mkdir(e.cfg.socketDir(uri), 0o775); err != nil && !errors.Is(err, fs.ErrExist) {
		e.cfg.Logger.Warn("the folder of the endpoint's socket cannot be made again", keyError, err)
		return
	}
	socket := giveBack(e.cfg.spareSocket(uri), e.cfg.socketPath(uri))
	if (region || socket) && e.mayLog(e.who) {
		e.cfg.Logger.Warn("another program has removed the endpoint's files, perhaps by HG_Cleanup; they are restored", keyPeer, e.own.String())
	}
}

// giveBack gives a file its first name back, and reports whether it had to. A name that is taken stays as it is.
func giveBack(spare, path string) bool { return os.Link(spare, path) == nil }

// openNotify asks the kernel to tell when somebody opens the endpoint's region, cuts it off, removes it, or removes the socket. It may
// refuse: then clients that never sleep are found by looking now and then.
func (e *Endpoint) openNotify() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	// The count of a file's names is one of its attributes.
	_, err = unix.InotifyAddWatch(fd, e.cfg.objectPath(e.own.uri), unix.IN_OPEN|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_MODIFY)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, e.cfg.socketPath(e.own.uri), unix.IN_ATTRIB|unix.IN_MOVE_SELF)
	}
	if err == nil {
		err = e.poll.add(fd, unix.EPOLLIN, eventNotify, 0)
	}
	if err != nil {
		closeAll(fd)
		return
	}
	e.notify = fd
}

// readNotify takes note of what has happened to the files.
func (e *Endpoint) readNotify() {
	var b [1024]byte
	for {
		n, err := unix.Read(e.notify, b[:])
		if n <= 0 || err != nil {
			return
		}
		mask := notifyMask(b[:n])
		if mask&unix.IN_OPEN != 0 {
			e.care.opened()
		}
		if mask&unix.IN_MODIFY != 0 {
			e.mend()
		}
		if mask&^(unix.IN_OPEN|unix.IN_IGNORED|unix.IN_MODIFY) != 0 && e.care.restore.IsZero() {
			e.care.restore = time.Now().Add(restoreDelay)
		}
	}
}

// notifyMask is the union of what the events in b are about.
func notifyMask(b []byte) (mask uint32) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask |= binary.NativeEndian.Uint32(b[4:])
		n := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		b = b[min(n, len(b)):]
	}
	return mask
}
