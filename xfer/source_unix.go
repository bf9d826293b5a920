//go:build unix

package xfer

import "syscall"

// openAtOnce makes open(2) return at once if a FIFO has replaced the file, without waiting for
// the FIFO's other end. It changes nothing for regular files.
const openAtOnce = syscall.O_NONBLOCK
