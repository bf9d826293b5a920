package mpa

import (
	"fmt"
	"strconv"
)

// Layer and error type of every MPA error in an RDMAP Terminate message (RFC 5040 section 4.8, RFC 6581
// section 8).
const (
	TerminateLayer = 0x2 // LLP
	TerminateType  = 0x0 // MPA
)

// Code is an MPA error code (RFC 5044 section 8, RFC 6581 section 8; the IANA registry of RFC 6580 section
// 3.3). It is the error code of a Terminate message where Terminates says so.
type Code uint8

const (
	// CodeNone marks a mistake of the local caller, which the peer has no part in.
	CodeNone Code = 0
	// CodeConnectionLost: TCP was closed, reset or timed out.
	CodeConnectionLost Code = 1
	// CodeCRC: the CRC of an FPDU is not that of its contents.
	CodeCRC Code = 2
	// CodeFPDUStart: marker and ULPDU_Length disagree on where an FPDU starts. Without markers, a
	// ULPDU_Length that no ULPDU can have is reported by this code: the stream is out of step.
	CodeFPDUStart Code = 3
	// CodeInvalidFrame: the request or reply frame is malformed or not acceptable.
	CodeInvalidFrame Code = 4
	// CodeLocalCatastrophic: an error in enhanced set-up that has no code of its own.
	CodeLocalCatastrophic Code = 5
	// CodeInsufficientIRD: the responder would send more reads at once than the initiator can serve.
	CodeInsufficientIRD Code = 6
	// CodeNoMatchingRTR: no connection model or RTR kind that both ends support.
	CodeNoMatchingRTR Code = 7
)

var codeText = [...]string{
	CodeNone:              "none",
	CodeConnectionLost:    "connection lost",
	CodeCRC:               "CRC mismatch",
	CodeFPDUStart:         "FPDU start mismatch",
	CodeInvalidFrame:      "invalid request or reply frame",
	CodeLocalCatastrophic: "local catastrophic error",
	CodeInsufficientIRD:   "insufficient IRD resources",
	CodeNoMatchingRTR:     "no matching RTR option",
}

// String returns the meaning of c in words.
func (c Code) String() string {
	if int(c) < len(codeText) {
		return codeText[c]
	}
	return "MPA error code " + strconv.Itoa(int(c))
}

// Terminates reports whether an end that has found c sends a Terminate message with TerminateLayer,
// TerminateType and c. After the other codes the connection is closed at once: it is lost (1), it never
// was one (4: RFC 5044 section 8), or the peer has made no error (0).
func (c Code) Terminates() bool {
	switch c {
	case CodeCRC, CodeFPDUStart, CodeLocalCatastrophic, CodeInsufficientIRD, CodeNoMatchingRTR:
		return true
	case CodeNone, CodeConnectionLost, CodeInvalidFrame:
	}
	return false
}

// Values of Error.Op.
const (
	opParse   = "parse frame"
	opAppend  = "append frame"
	opRequest = "request"
	opRespond = "respond"
	opFinish  = "finish set-up"
	opRead    = "read FPDU"
)

// Error is an error in the peer's octets, or in the parameters of the caller.
type Error struct {
	Op      string // the operation
	Field   string // the field: its name in the RFC, or in Go for parameters of the caller
	Problem string // the error, with the value and the limit
	Remedy  string // advice to the user
	Code    Code   // for a Terminate message, if it Terminates
}

// Error returns the operation, the field, the problem and the remedy.
func (e *Error) Error() string {
	return fmt.Sprintf("mpa %s: %s: %s; %s", e.Op, e.Field, e.Problem, e.Remedy)
}

// RejectedError is returned by Finish when the peer refused the connection with a reply frame.
type RejectedError struct {
	// PrivateData is the user's part of the peer's private data. The holder owns it.
	PrivateData []byte
	// Revision is the peer's. If it is below the requested one, it is the highest that the peer can use.
	Revision uint8
	// PeerIRD and PeerORD are those of the peer's reply (RFC 6581 section 9.1: the initiator's user gets
	// them from a rejection too). They are 0 when the reply had no set-up data.
	PeerIRD, PeerORD uint16
}

// Error says that the peer refused, and whether it did so naming another revision.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("mpa %s: the peer rejected the connection (revision %d, %d octets of private data)",
		opFinish, e.Revision, len(e.PrivateData))
}

// localError reports a mistake of the caller.
func localError(op, field, problem, remedy string) *Error {
	return &Error{Op: op, Field: field, Problem: problem, Remedy: remedy, Code: CodeNone}
}

// depthError reports an IRD or ORD of the caller's that the wire has no room for.
func depthError(op, field string, got uint16) *Error {
	return localError(op, field, fmt.Sprintf("depth %d needs more than 14 bits", got),
		fmt.Sprintf("use at most %d, or %d for no negotiation", MaxDepth, NoNegotiation))
}
