package wire

import (
	"fmt"

	"cinnabar/codes"
)

// Error describes a malformed message of a peer, or one with a wrong checksum.
type Error struct {
	Code   codes.Code
	Answer bool // the peer waits for a response, and the form of its request is known
	text   string
}

func (e *Error) Error() string { return e.text }

func malformed(format string, args ...any) *Error {
	return &Error{Code: codes.ProtocolError, text: fmt.Sprintf(format, args...)}
}

func corrupt(what string, got, want any) *Error {
	return &Error{Code: codes.ChecksumError, text: fmt.Sprintf("checksum of the %s is %#x, computed %#x", what, got, want)}
}

// mismatch returns the error of a message of form peer in a process of mode own. The text names the field of the root package's Config.
func mismatch(peer Form, own ChecksumMode) *Error {
	remedy := "set Config.Checksums to WithChecksums or ChecksumsAuto"
	if own == Checksums {
		remedy = "set Config.Checksums to NoChecksums or ChecksumsAuto"
	}
	return &Error{
		Code: codes.ProtoNoSupport, Answer: true,
		text: fmt.Sprintf("peer's Mercury is %s, this process speaks the other layout: %s", peer, remedy),
	}
}
