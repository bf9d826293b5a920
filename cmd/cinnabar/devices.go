package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cinnabar/verbs"
)

// devicesOptions are the options of ibv_devinfo, and one for ibv_devices.
type devicesOptions struct {
	device  string // -d
	port    int    // -i; 0: all
	list    bool   // -l
	verbose bool   // -v
	table   bool   // --table
	json    bool
}

func newDevices(s streams) *cobra.Command {
	o := &devicesOptions{}
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "Describe the RDMA devices, as ibv_devinfo and ibv_devices do",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("ib-port") && o.port < 1 {
				return usagef("invalid ib-port %d: ports are numbered from 1", o.port)
			}
			return runDevices(o, deviceList(cmd.Context()), s.out)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	deviceFlagFor(f, &o.device, "only this device (default all)")
	ibDevFlag(f)
	f.IntVarP(&o.port, "ib-port", "i", 0, "only this port of the device (default all)")
	f.BoolVarP(&o.list, "list", "l", false, "print only the names")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print all attributes")
	f.BoolVar(&o.table, "table", false, "print names and node GUIDs, as ibv_devices does")
	jsonFlag(f, &o.json)
	return cmd
}

// runDevices prints what the options ask for. Without a device it says why.
func runDevices(o *devicesOptions, list []deviceEntry, w io.Writer) error {
	if o.json && (o.list || o.table) {
		return usagef("--json with --list or --table: choose one")
	}
	if o.list {
		names := make([]string, len(list))
		for n, e := range list {
			names[n] = e.name
		}
		return writeDeviceList(w, names)
	}
	chosen, err := chooseDevices(list, o.device)
	if err != nil {
		return whyMissing(err)
	}
	if o.table {
		return tabulate(chosen, w)
	}
	if o.json {
		return listJSON(chosen, o, w)
	}
	var failed []error
	for _, e := range chosen {
		failed = append(failed, printDevice(e, o, w))
	}
	return errors.Join(failed...)
}

// tabulate prints the table of ibv_devices.
func tabulate(list []deviceEntry, w io.Writer) error {
	attrs := make([]*verbs.DeviceAttr, len(list))
	for n, e := range list {
		a, err := queryDevice(e)
		if err != nil {
			return err
		}
		attrs[n] = a
	}
	return writeDeviceTable(w, attrs)
}

// noPort is the error about a port that the device does not have.
func noPort(e deviceEntry, o *devicesOptions, a *verbs.DeviceAttr) error {
	return usagef("device %s has no port %d; it has %d", e.name, o.port, len(a.Ports))
}

// printDevice prints one device in ibv_devinfo's layout.
func printDevice(e deviceEntry, o *devicesOptions, w io.Writer) error {
	a, err := queryDevice(e)
	if err != nil {
		return err
	}
	if o.port > len(a.Ports) {
		return noPort(e, o, a)
	}
	return writeDevinfo(w, a, o.port, o.verbose)
}

// listJSON prints an array of devices.
func listJSON(list []deviceEntry, o *devicesOptions, w io.Writer) error {
	all := []deviceJSON{}
	for _, e := range list {
		a, err := queryDevice(e)
		if err != nil {
			return err
		}
		if o.port > len(a.Ports) {
			return noPort(e, o, a)
		}
		all = append(all, describeDevice(a, o.port))
	}
	return writeIndented(w, all)
}

// queryDevice opens a device for as long as it takes to ask for its attributes.
func queryDevice(e deviceEntry) (*verbs.DeviceAttr, error) {
	d, err := e.open()
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", e.name, err)
	}
	defer shut(d)
	a, err := d.Query()
	if err != nil {
		return nil, fmt.Errorf("query device %s: %w", e.name, err)
	}
	return &a, nil
}
