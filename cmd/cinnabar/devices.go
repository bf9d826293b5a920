package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cinnabar/verbs"
)

// Exit codes of ibv_devinfo besides 0 and 1: its main returns -1, which a
// shell sees as 255, where it finds no device or does not understand.
const (
	exitNoDevice = 255
	exitNoPort   = 4
	exitNoQuery  = 2
)

// devicesOptions are the options of ibv_devinfo, and one for ibv_devices.
type devicesOptions struct {
	device  string // -d
	port    int    // -i; 0: all
	list    bool   // -l
	verbose bool   // -v
	table   bool   // --table
}

func newDevices(s streams) *cobra.Command {
	o := &devicesOptions{}
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "Describe the RDMA devices, as ibv_devinfo and ibv_devices do",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("ib-port") && o.port < 1 {
				return &exitError{exitFailure, fmt.Errorf("invalid ib-port %d: ports are numbered from 1", o.port)}
			}
			return runDevices(o, deviceList(), s.out)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.device, "ib-dev", "d", "", "only this device (default all)")
	f.IntVarP(&o.port, "ib-port", "i", 0, "only this port of the device (default all)")
	f.BoolVarP(&o.list, "list", "l", false, "print only the names")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print all attributes")
	f.BoolVar(&o.table, "table", false, "print names and node GUIDs, as ibv_devices does")
	return cmd
}

// runDevices prints what the options ask for. Without a device it says why.
func runDevices(o *devicesOptions, list []deviceEntry, w io.Writer) error {
	if o.list {
		names := make([]string, len(list))
		for n, e := range list {
			names[n] = e.name
		}
		return writeDeviceList(w, names)
	}
	chosen, err := chooseDevices(list, o.device)
	if err != nil {
		return &exitError{exitNoDevice, whyMissing(err)}
	}
	if o.table {
		return tabulate(chosen, w)
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

// printDevice prints one device in ibv_devinfo's layout.
func printDevice(e deviceEntry, o *devicesOptions, w io.Writer) error {
	a, err := queryDevice(e)
	if err != nil {
		return err
	}
	if o.port > len(a.Ports) {
		return &exitError{exitNoPort, fmt.Errorf("device %s has no port %d; it has %d", e.name, o.port, len(a.Ports))}
	}
	return writeDevinfo(w, a, o.port, o.verbose)
}

// queryDevice opens a device for as long as it takes to ask for its attributes.
func queryDevice(e deviceEntry) (*verbs.DeviceAttr, error) {
	d, err := e.open()
	if err != nil {
		return nil, &exitError{exitFailure, fmt.Errorf("open device %s: %w", e.name, err)}
	}
	defer shut(d)
	a, err := d.Query()
	if err != nil {
		return nil, &exitError{exitNoQuery, fmt.Errorf("query device %s: %w", e.name, err)}
	}
	return &a, nil
}
