package hostmem

import "golang.org/x/sys/unix"

func discardPages(b []byte) bool { return unix.Madvise(b, unix.MADV_DONTNEED) == nil }
