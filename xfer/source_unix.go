//go:build unix

package xfer

import "syscall"

// openAtOnce has open(2) not wait for the other end of a FIFO that has come in a
// file's place. It changes nothing for regular files.
const openAtOnce = syscall.O_NONBLOCK
