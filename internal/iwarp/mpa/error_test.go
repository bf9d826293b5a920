package mpa

import (
	"strings"
	"testing"
)

// TestCodes pins the numbers that go on the wire and which of them do.
func TestCodes(t *testing.T) {
	for _, tc := range []struct {
		code       Code
		number     uint8
		terminates bool
		text       string
	}{
		{CodeNone, 0, false, "none"},
		{CodeConnectionLost, 1, false, "connection lost"},
		{CodeCRC, 2, true, "CRC mismatch"},
		{CodeFPDUStart, 3, true, "FPDU start mismatch"},
		{CodeInvalidFrame, 4, false, "invalid request or reply frame"},
		{CodeLocalCatastrophic, 5, true, "local catastrophic error"},
		{CodeInsufficientIRD, 6, true, "insufficient IRD resources"},
		{CodeNoMatchingRTR, 7, true, "no matching RTR option"},
		{Code(8), 8, false, "MPA error code 8"},
	} {
		if got := uint8(tc.code); got != tc.number {
			t.Errorf("%v = %d, want %d", tc.code, got, tc.number)
		}
		if got := tc.code.Terminates(); got != tc.terminates {
			t.Errorf("%v terminates: %t, want %t", tc.code, got, tc.terminates)
		}
		if got := tc.code.String(); got != tc.text {
			t.Errorf("code %d = %q, want %q", tc.number, got, tc.text)
		}
	}
}

// TestErrorTexts requires operation, field, value, limit and remedy.
func TestErrorTexts(t *testing.T) {
	_, _, err := ParseFrame(wire(t, keyRequest, "40010201"))
	want := "mpa parse frame: PD_Length: 513 octets of private data, the limit is 512; " +
		"close the connection: the peer's frame is malformed"
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	_, err = Request(Local{Revision: 2, IRD: 0x4000})
	want = "mpa request: IRD: depth 16384 needs more than 14 bits; use at most 16382, or 16383 for no negotiation"
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	rejected := &RejectedError{Revision: 1, PrivateData: []byte("no\n")}
	if got := rejected.Error(); !strings.Contains(got, "revision 1, 3 octets") || strings.Contains(got, "no\n") {
		t.Errorf("error %q, want revision and length of the private data, not the peer's octets", got)
	}
}

// TestErrorQuotes: octets of a hostile peer appear in a text in a form that cannot harm a terminal or a log.
func TestErrorQuotes(t *testing.T) {
	_, _, err := ParseFrame([]byte("\x1b[2J\nfake line"))
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("error %q has raw control characters", err)
	}
}

func TestRTRString(t *testing.T) {
	for r, want := range map[RTR]string{
		RTRNone: "none", RTRSend: "send", RTRWrite: "write", RTRRead: "read", RTR(9): "RTR(9)",
	} {
		if got := r.String(); got != want {
			t.Errorf("RTR %d = %q, want %q", uint8(r), got, want)
		}
	}
}
