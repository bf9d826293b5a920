package hostquota

import "golang.org/x/sys/unix"

// physicalMemory returns bytes; 0: not known.
func physicalMemory() int64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return int64(s.Totalram) * int64(s.Unit)
}
