package main

import (
	"context"
	"fmt"
	"strings"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// softwareDevice is the name of the device that every machine has.
const softwareDevice = "cinnabar0"

// deviceEntry is a device that can be opened.
type deviceEntry struct {
	name string
	open func() (*verbs.Device, error)
}

// deviceList is what there is on this machine. The software device needs
// neither hardware nor rights, so the list is never empty; the machine's own
// devices come behind it, in builds that reach them. The software device logs
// as the command of ctx does.
func deviceList(ctx context.Context) []deviceEntry {
	list := []deviceEntry{{
		name: softwareDevice,
		open: func() (*verbs.Device, error) {
			return iwarp.Open(iwarp.Config{Name: softwareDevice, Logger: loggerOf(ctx)})
		},
	}}
	found, _ := rdmacore.Devices() // who asks for one by name is told why there is none
	for _, d := range found {
		list = append(list, deviceEntry{name: d.Name, open: func() (*verbs.Device, error) { return rdmacore.Open(d.Name) }})
	}
	return list
}

// chooseDevices returns the device of that name, or all if name is empty.
func chooseDevices(list []deviceEntry, name string) ([]deviceEntry, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("no RDMA devices found: this build has no software device and the system lists no hardware")
	}
	if name == "" {
		return list, nil
	}
	names := make([]string, len(list))
	for n, e := range list {
		if e.name == name {
			return list[n : n+1], nil
		}
		names[n] = e.name
	}
	return nil, fmt.Errorf("device '%s' wasn't found; there is %s", name, strings.Join(names, ", "))
}

// whyMissing adds to the error about a name what is in the way of the machine's own devices.
func whyMissing(err error) error {
	if _, why := rdmacore.Devices(); why != nil {
		return fmt.Errorf("%w; %w", err, why)
	}
	return err
}

// openDevice opens the device of that name, or the first if name is empty.
func openDevice(ctx context.Context, name string) (*verbs.Device, error) {
	chosen, err := chooseDevices(deviceList(ctx), name)
	if err != nil {
		return nil, whyMissing(err)
	}
	d, err := chosen[0].open()
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", chosen[0].name, err)
	}
	return d, nil
}
