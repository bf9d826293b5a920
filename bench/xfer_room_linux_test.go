package bench

import "golang.org/x/sys/unix"

// memoryRoom reports whether dir is on a tmpfs with room for n bytes.
func memoryRoom(dir string, n int64) bool {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false
	}
	return int64(s.Type) == unix.TMPFS_MAGIC && s.Bavail*uint64(s.Bsize) >= uint64(n) //nolint:unconvert // Type has 32 bits on some systems
}
