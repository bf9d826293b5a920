//go:build !(rdma && linux && cgo)

package rdmacore_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"cinnabar/verbs/rdmacore"
)

// A program built without the tag says what it would take.
func TestAbsent(t *testing.T) {
	list, err := rdmacore.Devices()
	if len(list) != 0 {
		t.Errorf("got devices %v from a build without them", list)
	}
	_, openErr := rdmacore.Open("rxe0")
	want := "-tags rdma"
	if runtime.GOOS != "linux" {
		want = "was built for " + runtime.GOOS
	}
	for _, err := range []error{err, openErr} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want ErrUnsupported that says %q", err, want)
		}
	}
}
