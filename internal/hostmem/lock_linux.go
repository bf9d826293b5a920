package hostmem

import "golang.org/x/sys/unix"

// lockPages locks the pages of s.
func lockPages(s span) error {
	_, _, errno := unix.Syscall(unix.SYS_MLOCK, uintptr(s.start), uintptr(s.end-s.start), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// unlockPages unlocks the pages of s.
func unlockPages(s span) error {
	_, _, errno := unix.Syscall(unix.SYS_MUNLOCK, uintptr(s.start), uintptr(s.end-s.start), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// LockLimit returns the number of bytes that this process may lock (RLIMIT_MEMLOCK): cur is in force, and an unprivileged process may
// raise it to max; [Unlimited] means no limit. The limit does not bind a process with CAP_IPC_LOCK. ok is false if the system has no
// such limit or does not report it.
func LockLimit() (cur, max uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, 0, false
	}
	return r.Cur, r.Max, true
}
