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

// LockLimit returns how many bytes this process may lock (RLIMIT_MEMLOCK): cur
// is in force, max is what cur may be raised to without privilege; [Unlimited]
// means no limit. A process with CAP_IPC_LOCK is not held to it. ok is false
// where the system has no such limit or does not tell.
func LockLimit() (cur, max uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, 0, false
	}
	return r.Cur, r.Max, true
}
