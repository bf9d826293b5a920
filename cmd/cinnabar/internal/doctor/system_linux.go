package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// resources are the names of Linux.
var resources = map[resource]int{
	resourceMemlock: unix.RLIMIT_MEMLOCK, resourceFiles: unix.RLIMIT_NOFILE, resourceProcesses: unix.RLIMIT_NPROC,
}

func limitOf(r resource) (limits, bool) {
	var l unix.Rlimit
	if unix.Getrlimit(resources[r], &l) != nil {
		return limits{}, false
	}
	return limits{l.Cur, l.Max}, true
}

func clockResolution() (time.Duration, bool) {
	var t unix.Timespec
	if unix.ClockGetres(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}

// space is that of a file system.
type space struct {
	tmpfs       bool
	total, free uint64 // bytes; free is for this user
}

func spaceOf(path string) (space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return space{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(max(st.Bsize, 0))
	return space{st.Type == unix.TMPFS_MAGIC, st.Blocks * block, st.Bavail * block}, nil
}

// reserve makes a file in dir and reserves n bytes for it. It removes the name first, so that a process that is killed leaves no bytes behind.
func reserve(dir string, n int64) error {
	f, err := os.CreateTemp(dir, ".cinnabar-doctor-")
	if err != nil {
		return err
	}
	if err := os.Remove(f.Name()); err != nil {
		return errors.Join(err, f.Close())
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, n)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // the file system cannot reserve; making the file has succeeded
	}
	return errors.Join(err, f.Close())
}

// accessible returns an error unless this user may open the file for reading and writing. It opens nothing, because opening a device
// may act upon it.
func accessible(path string) error {
	if err := unix.Access(path, unix.R_OK|unix.W_OK); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

// readRemote and writeRemote copy memory from and to another process. They move all of b, or fail.
func readRemote(pid int, b []byte, at uint64) error {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	return moved("process_vm_readv", n, len(b), err)
}

func writeRemote(pid int, b []byte, at uint64) error {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	return moved("process_vm_writev", n, len(b), err)
}

func moved(call string, n, want int, err error) error {
	if err == nil && n != want {
		err = fmt.Errorf("%d of %d bytes", n, want)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}

// permitAttach permits every process of this user to access this one where Yama's scope is 1, or takes the permission back. Kernels
// without Yama refuse the call, and need none.
func permitAttach(on bool) {
	var pid uintptr
	if on {
		pid = unix.PR_SET_PTRACER_ANY
	}
	_ = unix.Prctl(unix.PR_SET_PTRACER, pid, 0, 0, 0)
}

// executable is the path of the own program. It works also where this user may not enter the program's directory.
func executable() (string, error) { return "/proc/self/exe", nil }
