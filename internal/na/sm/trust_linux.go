package sm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cinnabar/internal/shm"
)

// An endpoint trusts the files of its own user and of root, because these can reach its memory in any case. Every user may
// create files in /tmp and /dev/shm, and the names of endpoints can be guessed, so the owner of each region, socket and
// directory is compared before it is used. Files are opened first, without following links, and checked and used by their
// descriptors afterwards, so that renaming them between check and use changes nothing.

// Rights that a trusted file must not grant.
const (
	othersWrite = 0o002
	sharedWrite = 0o022 // of the group and others
)

// foreignError is the error of a file that belongs to another user, or that other users can write to.
type foreignError struct {
	path string
	file shm.File
	own  uint32 // the effective user of this process
}

func (e *foreignError) Error() string {
	if e.file.UID == e.own && !trustedUser(e.own) {
		return fmt.Sprintf("%s belongs to uid %d, which stands for all users that have no number in this user namespace: run this process as a user that has one", e.path, e.own)
	}
	if !trustedUser(e.file.UID) {
		return fmt.Sprintf("%s belongs to uid %d, and this process runs as uid %d: only files of the same user or root are trusted; use another name, or have uid %d or root remove it",
			e.path, e.file.UID, e.own, e.file.UID)
	}
	return fmt.Sprintf("%s of uid %d has mode %#o, so that other users can change it: remove their right with chmod go-w", e.path, e.file.UID, e.file.Mode&0o7777)
}

// trustedUser reports whether this process uses files and commands of a user. It uses those of its own user and of root.
func trustedUser(uid uint32) bool { return userMap().trusts(uid, uint32(os.Geteuid())) }

// users describes how this process's user namespace numbers users.
type users struct {
	overflow uint32 // the uid that stands for all users without a number in this namespace
	all      bool   // every user has a number
}

var userMap = sync.OnceValue(readUsers)

// readUsers reads the uid map of the user namespace. If it cannot be read, readUsers assumes that some users have no number.
func readUsers() users {
	u := users{overflow: 65534} // DEFAULT_OVERFLOWUID
	if b, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			u.overflow = uint32(n)
		}
	}
	b, err := os.ReadFile("/proc/self/uid_map")
	u.all = err == nil && slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
	return u
}

// trusts reports whether a process of user own trusts user uid. It does not trust the overflow uid, even if that is own, because all
// users without a number in this namespace have it.
func (u users) trusts(uid, own uint32) bool {
	return uid == 0 || uid == own && (u.all || uid != u.overflow)
}

// checkFile returns an error unless a file belongs to a trusted user and grants none of the rights in forbidden.
func checkFile(path string, f shm.File, forbidden uint32) error {
	if trustedUser(f.UID) && f.Mode&forbidden == 0 {
		return nil
	}
	return &foreignError{path, f, uint32(os.Geteuid())}
}

// isForeign reports whether err is a foreignError.
func isForeign(err error) bool {
	_, ok := errors.AsType[*foreignError](err)
	return ok
}

// foreignAt returns an error that names the owner of the file at path if that is another user; else it returns err.
func foreignAt(path string, err error) error {
	if f, statErr := lstat(path); statErr == nil {
		if foreign := checkFile(path, f, 0); foreign != nil {
			return foreign
		}
	}
	return err
}

// lstat returns the description of the file at path. It does not follow a link.
func lstat(path string) (shm.File, error) {
	fd, err := openPath(unix.AT_FDCWD, path, 0)
	if err != nil {
		return shm.File{}, err
	}
	defer closeAll(fd)
	return shm.FileOf(fd)
}

// openPath opens the file at path, below the directory dir, only for its description and for new names (O_PATH). It does not follow a
// link.
func openPath(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

// pathOf returns a path of the file of a descriptor that stays valid if the file is renamed.
func pathOf(fd int) string { return "/proc/self/fd/" + itoa(fd) }

// sockName is the name of a socket in its directory.
const sockName = "sock"

// openSocketDir opens the directory of an endpoint's socket, which must belong to a trusted user and must not be writable for all.
func openSocketDir(cfg *Config, uri string) (int, error) {
	path := cfg.socketDir(uri)
	fd, err := openPath(unix.AT_FDCWD, path, unix.O_DIRECTORY)
	if err != nil {
		return -1, foreignAt(path, err) // for example because it is a link of another user
	}
	f, err := shm.FileOf(fd)
	if err == nil {
		// The group may have the right to write, because C makes directories with that right under umask 002. The socket itself is
		// checked too, and a user cannot make one that belongs to another user.
		err = checkFile(path, f, othersWrite)
	}
	if err != nil {
		closeAll(fd)
		return -1, err
	}
	return fd, nil
}

// openServerSocket opens the socket of a server for sending to it by [pathOf]. It returns -1 without an error if the server has none.
func openServerSocket(cfg *Config, uri string) (int, error) {
	dir, err := openSocketDir(cfg, uri)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	defer closeAll(dir)
	fd, err := openSocketIn(dir, cfg.socketPath(uri), sockName)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	return fd, err
}

// openSocketIn opens a socket, which must belong to a trusted user. path names it in errors.
func openSocketIn(dir int, path, name string) (int, error) {
	fd, err := openPath(dir, name, 0)
	if err != nil {
		return -1, err
	}
	f, err := shm.FileOf(fd)
	switch {
	case err != nil:
	case f.Mode&unix.S_IFMT != unix.S_IFSOCK:
		err = fmt.Errorf("%s is not a socket", path)
	default:
		err = checkFile(path, f, 0) // the right to write to a socket is the right to send to it
	}
	if err != nil {
		closeAll(fd)
		return -1, err
	}
	return fd, nil
}

// linkSame gives another name to the file at path, if that is still the file that want describes. It compares and links by one
// descriptor, so that both are the same file.
func linkSame(path string, want shm.File, dir int, name string) error {
	fd, err := openPath(unix.AT_FDCWD, path, 0)
	if err != nil {
		return err
	}
	defer closeAll(fd)
	f, err := shm.FileOf(fd)
	switch {
	case err != nil:
		return err
	case !f.Same(want):
		return foreignAt(path, fmt.Errorf("%s is not this endpoint's file any more", path))
	}
	if err := unix.Linkat(unix.AT_FDCWD, pathOf(fd), dir, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.LinkError{Op: "link", Old: path, New: name, Err: err}
	}
	return nil
}

// checkProcess returns an error if process pid runs as a user that is not trusted, or has another start time than started; 0: not
// known. It is necessary because the system gives the numbers of ended processes to new ones, also to those of other users.
func checkProcess(pid int32, started uint64) error {
	number := strconv.Itoa(int(pid))
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+number, &st); err == nil && !trustedUser(st.Uid) { // else the process is hidden, or has ended
		return fmt.Errorf("process %d runs as uid %d, and this one as uid %d", pid, st.Uid, os.Geteuid())
	}
	if now := startTime(number); started != 0 && now != 0 && now != started {
		return fmt.Errorf("%w: the number %d now belongs to another process", errDied, pid)
	}
	return nil
}
