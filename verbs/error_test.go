package verbs

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestError(t *testing.T) {
	err := error(&Error{Op: "post send", Kind: ErrQueueFull, Detail: "128 of 128", Err: io.EOF})
	if got, want := err.Error(), "post send: queue full: 128 of 128: EOF"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, target := range []error{ErrQueueFull, io.EOF} {
		if !errors.Is(err, target) {
			t.Errorf("errors.Is(%v) is false", target)
		}
	}
	if errors.Is(err, ErrBusy) {
		t.Error("errors.Is(ErrBusy) is true")
	}
	if !errors.Is(Unsupported("create queue pair", "type %v", UC), errors.ErrUnsupported) {
		t.Error("Unsupported does not match errors.ErrUnsupported")
	}
}

// Every status has a text, and every failure becomes an error that carries the
// text and the number and matches its status.
// parity: S07 D35
func TestStatusError(t *testing.T) {
	for s := StatusSuccess; int(s) < NumWCStatus; s++ {
		wc := WC{ID: 7, Status: s, QPNum: 0x12, Vendor: 3}
		err := wc.Err()
		if s == StatusSuccess {
			if err != nil {
				t.Errorf("success: %v", err)
			}
			continue
		}
		if !errors.Is(err, s) || !strings.Contains(err.Error(), s.String()) || !strings.Contains(err.Error(), "request 7 ") {
			t.Errorf("%v: got %v", s, err)
		}
		if errors.Is(err, StatusSuccess) {
			t.Errorf("%v matches success", s)
		}
	}
}

func TestRejectedError(t *testing.T) {
	err := error(&RejectedError{PrivateData: []byte("no"), Reason: "busy"})
	if got, want := err.Error(), "connection rejected by the peer: busy (2 bytes of private data)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
