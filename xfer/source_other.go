//go:build !unix

package xfer

// openAtOnce is for systems whose open waits for the other end of a FIFO.
const openAtOnce = 0
