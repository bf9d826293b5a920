package hostquota

import "golang.org/x/sys/unix"

// physicalMemory returns bytes; 0: not known.
func physicalMemory() int64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return int64(n)
}
