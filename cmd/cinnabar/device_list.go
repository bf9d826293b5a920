package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// softwareDevice is the name of the device that every machine has.
const softwareDevice = "cinnabar0"

// deviceFlag adds --device to a command. The rule is the same for all: without it the software device is used, whatever
// the machine has, so that what a command does depends on its line alone.
func deviceFlag(f *pflag.FlagSet, to *string) {
	f.StringVar(to, "device", "", "RDMA device, one of those that cinnabar devices lists (default "+softwareDevice+", the software device)")
}

// aliasDevice gives a command that names its device by --ib-dev, as rdma-core's do, --device too.
func aliasDevice(f *pflag.FlagSet) {
	if of := f.Lookup("ib-dev"); of != nil && f.Lookup("device") == nil {
		f.AddFlag(&pflag.Flag{Name: "device", Usage: "the same as --ib-dev", Value: of.Value})
	}
}

// deviceEntry is a device that can be opened.
type deviceEntry struct {
	name string
	open func() (*verbs.Device, error)
}

// deviceList is what there is on this machine. The software device needs
// neither hardware nor rights, so the list is never empty; the machine's own
// devices come behind it, in builds that reach them.
func deviceList() []deviceEntry {
	list := []deviceEntry{{
		name: softwareDevice,
		open: func() (*verbs.Device, error) { return iwarp.Open(iwarp.Config{Name: softwareDevice}) },
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
func openDevice(name string) (*verbs.Device, error) {
	chosen, err := chooseDevices(deviceList(), name)
	if err != nil {
		return nil, whyMissing(err)
	}
	d, err := chosen[0].open()
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", chosen[0].name, err)
	}
	return d, nil
}
