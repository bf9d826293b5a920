//go:build !linux

package rdmacore

import (
	"runtime"

	"cinnabar/verbs"
)

// Devices returns an error that matches errors.ErrUnsupported, because this package reaches RDMA devices on Linux only.
func Devices() ([]Info, error) { return nil, absent("list RDMA devices") }

// Open returns an error that matches errors.ErrUnsupported, because this package reaches RDMA devices on Linux only.
func Open(string) (*verbs.Device, error) { return nil, absent("open RDMA device") }

func absent(op string) error {
	return verbs.Unsupported(op, "package rdmacore reaches RDMA devices on Linux only; this program was built for %s", runtime.GOOS)
}
