package cli

import (
	"errors"
	"strings"
	"testing"

	"cinnabar"
)

// TestNoDevice checks that the error of an engine on ofi+verbs without an RDMA device names the option of the device in software.
func TestNoDevice(t *testing.T) {
	for _, name := range []string{"", "nosuch"} {
		release, err := (&RPCDevice{name: name}).Open(t.Context(), "ofi+verbs://127.0.0.1", &cinnabar.Config{})
		if err == nil { // this machine has a device with that address
			if err = release(); err != nil {
				t.Error(err)
			}
			continue
		}
		if errors.Is(err, errors.ErrUnsupported) && !strings.Contains(err.Error(), "--device software") {
			t.Errorf("--device %q: %v", name, err)
		}
	}
}
