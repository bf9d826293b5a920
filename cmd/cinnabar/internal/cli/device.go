package cli

import (
	"context"
	"fmt"
	"strings"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// SoftwareDevice is the name of the device that every machine has.
const SoftwareDevice = "cinnabar0"

// Device is a device that can be opened.
type Device struct {
	Name string
	Open func() (*verbs.Device, error)
}

// Devices returns the devices of this machine. The software device needs
// neither hardware nor rights, so the list is never empty; the machine's own
// devices come behind it, in builds that reach them. The software device logs
// as the command of ctx does, and leaves MPA's CRC out between processes of one host.
func Devices(ctx context.Context) []Device {
	list := []Device{{
		Name: SoftwareDevice,
		Open: func() (*verbs.Device, error) {
			return iwarp.Open(softwareConfig(ctx))
		},
	}}
	found, _ := rdmacore.Devices() // the error is dropped, because opening a device by name returns it
	for _, d := range found {
		list = append(list, Device{Name: d.Name, Open: func() (*verbs.Device, error) { return rdmacore.Open(d.Name) }})
	}
	return list
}

// softwareConfig returns the configuration of the software device.
func softwareConfig(ctx context.Context) iwarp.Config {
	return iwarp.Config{Name: SoftwareDevice, NoLocalCRC: true, Logger: LoggerOf(ctx)}
}

// ChooseDevices returns the device of that name, or all if name is empty.
func ChooseDevices(list []Device, name string) ([]Device, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("no RDMA devices found: this build has no software device and the system lists no hardware")
	}
	if name == "" {
		return list, nil
	}
	names := make([]string, len(list))
	for n, e := range list {
		if e.Name == name {
			return list[n : n+1], nil
		}
		names[n] = e.Name
	}
	return nil, fmt.Errorf("device '%s' wasn't found; there is %s", name, strings.Join(names, ", "))
}

// WhyMissing adds to the error about a name the reason why the machine's own devices are not usable, if there is one.
func WhyMissing(err error) error {
	if _, why := rdmacore.Devices(); why != nil {
		return fmt.Errorf("%w; %w", err, why)
	}
	return err
}

// OpenDevice opens the device of that name, or the first if name is empty.
func OpenDevice(ctx context.Context, name string) (*verbs.Device, error) {
	chosen, err := ChooseDevices(Devices(ctx), name)
	if err != nil {
		return nil, WhyMissing(err)
	}
	d, err := chosen[0].Open()
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", chosen[0].Name, err)
	}
	return d, nil
}
