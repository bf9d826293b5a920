//go:build !unix

package xfer

// openAtOnce is empty, because this system has no flag that makes the opening of a FIFO return at once.
const openAtOnce = 0
