// Package rdma opens RDMA devices for the examples that can use ofi+verbs.
package rdma

import (
	"io"
	"log/slog"
	"strings"

	"cinnabar/verbs/auto"
)

// Software is the value of -device for the software device.
const Software = "software"

// Usage is the help text of -device.
const Usage = "RDMA device for an address of ofi+verbs: its name, or " + Software

// Open opens the RDMA device for an engine at address: the software device if name is [Software], the first device that fits address if name
// is empty, and otherwise the device with that name. If address is not one of ofi+verbs, Open returns nil, because the engine needs no device;
// the field Device of cinnabar.Config accepts that nil, and so does Close. For the software device Open writes a warning to stderr, because
// programs in C cannot reach that device.
func Open(address, name string, stderr io.Writer) (*auto.Device, error) {
	protocol, _, _ := strings.Cut(address, ":")
	if !strings.HasPrefix(strings.TrimPrefix(protocol, "ofi+"), "verbs") {
		return nil, nil //nolint:nilnil // a nil Device is no device
	}
	switch name {
	case "":
		return auto.Open(address)
	case Software:
		return auto.Software(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	}
	return auto.Open("ofi+verbs://" + name)
}
