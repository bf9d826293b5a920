package sm

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
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

// keepSpare gives the file at path, which is the endpoint's as f describes it, its second name. Without a second name,
// which some file systems do not allow, a file that is removed stays so. Another user's file of that name cannot be
// removed: then the endpoint has none either, and says so, because it would otherwise seem protected.
func (e *Endpoint) keepSpare(path, spare string, f shm.File) {
	_ = os.Remove(spare) // the first name is this endpoint's, so the second one has no owner
	err := linkSame(path, f, unix.AT_FDCWD, spare)
	if errors.Is(err, fs.ErrExist) {
		if err = foreignAt(spare, nil); err != nil {
			e.cfg.Logger.Warn("the endpoint's file will not be restored if another program removes it, because a file of another user has its second name", keyPeer, e.own.String(), keyError, err)
		}
	}
}

// removeSame removes a file if it is still the one that f describes.
func removeSame(path string, f shm.File) {
	if now, err := lstat(path); err == nil && f.Ino != 0 && now.Same(f) {
		_ = os.Remove(path) // what cannot be removed is reclaimed by the next endpoint that opens
	}
}

// restoreDelay is how soon after a file was removed it is restored: whoever removes files does not find it there again
// while he is at it.
const restoreDelay = 10 * time.Millisecond

// restore gives the endpoint's files their names back.
func (e *Endpoint) restore() {
	defer e.stats.restores.Add(1)
	uri := e.own.uri
	region, regionErr := giveBack(e.cfg.spareObject(uri), e.files.region, unix.AT_FDCWD, e.cfg.objectPath(uri))
	socket, socketErr := false, error(nil)
	if dir, err := e.makeSocketDir(); err != nil {
		socketErr = err
	} else {
		closeAll(e.sockDir)
		e.sockDir = dir
		socket, socketErr = giveBack(e.cfg.spareSocket(uri), e.files.socket, dir, sockName)
	}
	if !region && !socket && regionErr == nil && socketErr == nil {
		return
	}
	switch {
	case !e.mayLog(e.own):
	case regionErr != nil || socketErr != nil:
		e.cfg.Logger.Warn("another program has removed the endpoint's files, perhaps by HG_Cleanup, and they cannot be restored", keyPeer, e.own.String(), keyError, errors.Join(regionErr, socketErr))
	default:
		e.cfg.Logger.Warn("another program has removed the endpoint's files, perhaps by HG_Cleanup; they are restored", keyPeer, e.own.String())
	}
}

// giveBack gives the file f its first name back, which is name in the directory dir, and reports whether it had to. A name
// that is taken by a file of a trusted user stays as it is. The file of the second name is compared with f, because
// other users can put files of theirs there once it is free.
func giveBack(spare string, f shm.File, dir int, name string) (done bool, err error) {
	if fd, err := openPath(dir, name, 0); err == nil {
		now, err := shm.FileOf(fd)
		closeAll(fd)
		if err == nil {
			err = checkFile(name, now, 0)
		}
		return false, err
	}
	err = linkSame(spare, f, dir, name)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist): // there never was a second name, or it is removed too
		return false, nil
	}
	return err == nil, err
}

// openNotify asks the kernel to tell when somebody opens the endpoint's region, cuts it off, removes it, or removes the socket. It may
// refuse: then clients that never sleep are found by looking now and then.
func (e *Endpoint) openNotify() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	// The count of a file's names is one of its attributes.
	_, err = unix.InotifyAddWatch(fd, e.cfg.objectPath(e.own.uri), unix.IN_OPEN|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_MODIFY|unix.IN_DONT_FOLLOW)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, pathOf(e.sockDir)+"/"+sockName, unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DONT_FOLLOW)
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
			e.maintenance.opened()
		}
		if mask&unix.IN_MODIFY != 0 {
			e.mend()
		}
		if mask&^(unix.IN_OPEN|unix.IN_IGNORED|unix.IN_MODIFY) != 0 && e.maintenance.restore.IsZero() {
			e.maintenance.restore = time.Now().Add(restoreDelay)
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
