//go:build !linux

package rdmacore_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"cinnabar/verbs/rdmacore"
)

// TestAbsent checks that the errors of a program for another system than Linux name the system.
func TestAbsent(t *testing.T) {
	list, err := rdmacore.Devices()
	if len(list) != 0 {
		t.Errorf("got devices %v from a build without them", list)
	}
	_, openErr := rdmacore.Open("rxe0")
	want := "was built for " + runtime.GOOS
	for _, err := range []error{err, openErr} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want ErrUnsupported that says %q", err, want)
		}
	}
}
