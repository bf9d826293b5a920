package xfer

import (
	"time"

	"cinnabar/verbs"
)

// Limits of senders and receivers, and the values that a zero stands for. The
// default buffers of one side are 4 MiB together: with much more they do not stay in
// the processor's caches between network and file, with less the digest holds up the rest.
const (
	defaultChunk     = 512 << 10
	defaultBuffers   = 8
	basicChunk       = 10 << 20 // of the paper's C program
	minChunk         = 4 << 10
	maxChunk         = 1 << 30
	maxBuffers       = 1024
	defaultMaxChunk  = 64 << 20
	defaultMaxWindow = 64
	defaultTimeout   = 30 * time.Second
	// The defaults of a receiver's limits, where the machine allows so much.
	mostConnections = 64
	mostMemory      = 1 << 30
	// transferFiles is how many descriptors a transfer takes: the socket, those that the device adds, the file, and one
	// for a moment when the file gets its name. A batch of small files of a tree takes up to 12 more for a moment.
	transferFiles = 4
	// openTimeout bounds the time from a request to the name of its file, if Timeout does not: a sender that sends
	// nothing must not keep a place for long.
	openTimeout = 5 * time.Second
	// workingEvery is the time between two looks at the work of a file, and so between two messages about it.
	workingEvery = 500 * time.Millisecond
	// disconnectLimit bounds the end of a connection after the result of its transfer.
	disconnectLimit = 2 * time.Second
)

// maxShare is how many transfers at once a receiver's memory is enough for at
// least, if it is to serve so many: no single one gets more than that part of it.
const maxShare = 4

// checkRange refuses a number that is neither 0 nor from low to high.
func checkRange(what string, v, low, high int64, unit string) error {
	if v != 0 && (v < low || v > high) {
		return failf(CodeTooLarge, "%s is %d; %d to %d %s are possible", what, v, low, high, unit)
	}
	return nil
}

// or returns v, or def in the place of zero.
func or[T int | int64 | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// messageLimit returns the longest message of the device's ports in bytes.
func messageLimit(attr *verbs.DeviceAttr) int64 {
	limit := int64(maxChunk)
	for _, p := range attr.Ports {
		if p.MaxMsgSize > 0 && p.MaxMsgSize < uint64(limit) {
			limit = int64(p.MaxMsgSize)
		}
	}
	return limit
}
