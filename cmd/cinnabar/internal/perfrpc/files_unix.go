//go:build unix

package perfrpc

import "golang.org/x/sys/unix"

// openFiles returns the limit of open files of this process, and false if the system does not say. Go's runtime has raised the limit as far
// as the process may.
func openFiles() (limit int, known bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0, false
	}
	return int(min(l.Cur, 1<<30)), true
}
