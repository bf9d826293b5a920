//go:build unix

package hostquota

import "golang.org/x/sys/unix"

// openFiles returns the limit of open descriptors; 0: not known.
func openFiles() int64 {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return int64(min(l.Cur, 1<<30))
}
