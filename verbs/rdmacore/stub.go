//go:build !(rdma && linux && cgo)

package rdmacore

import (
	"runtime"

	"cinnabar/verbs"
)

// Devices lists the RDMA devices of the machine. In this build there are none,
// and the error, which matches errors.ErrUnsupported, says why.
func Devices() ([]Info, error) { return nil, absent("list RDMA devices") }

// Open opens a device by its name. In this build it cannot, and the error, which
// matches errors.ErrUnsupported, says why.
func Open(string) (*verbs.Device, error) { return nil, absent("open RDMA device") }

func absent(op string) error {
	if runtime.GOOS != "linux" {
		return verbs.Unsupported(op, "RDMA devices are reached through Linux's rdma-core; this program was built for %s", runtime.GOOS)
	}
	return verbs.Unsupported(op, "this program was built without RDMA devices; build it with CGO_ENABLED=1 and -tags rdma, "+
		"which takes a C compiler and the packages libibverbs-dev and librdmacm-dev")
}
