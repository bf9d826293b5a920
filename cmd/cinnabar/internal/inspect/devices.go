package inspect

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cinnabar/cmd/cinnabar/internal/cli"
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

// NewDevices returns the command devices.
func NewDevices(s cli.Streams) *cobra.Command {
	o := &devicesOptions{}
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "Describe the RDMA devices, as ibv_devinfo and ibv_devices do",
		Long: `devices describes the RDMA devices of this machine and the software device, which every
machine has. Without options it prints the most important attributes of each device and port.`,
		Example: "  cinnabar devices\n  cinnabar devices --list\n  cinnabar devices -v --device cinnabar0",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("ib-port") && o.port < 1 {
				return cli.Usagef("invalid ib-port %d: ports are numbered from 1", o.port)
			}
			return runDevices(o, cli.Devices(cmd.Context()), s.Out)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	cli.DeviceFlagFor(f, &o.device, "only this device (default all)")
	cli.IBDevFlag(f)
	f.IntVarP(&o.port, "ib-port", "i", 0, "only this port of the device (default all)")
	f.BoolVarP(&o.list, "list", "l", false, "print only the names")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print all attributes")
	f.BoolVar(&o.table, "table", false, "print names and node GUIDs, as ibv_devices does")
	cli.JSONFlag(f, &o.json)
	return cmd
}

// runDevices prints the lists that the options ask for. Without a device it returns an error with the reason.
func runDevices(o *devicesOptions, list []cli.Device, w io.Writer) error {
	if o.json && (o.list || o.table) {
		return cli.Usagef("--json with --list or --table: choose one")
	}
	if o.list {
		names := make([]string, len(list))
		for n, e := range list {
			names[n] = e.Name
		}
		return writeDeviceList(w, names)
	}
	chosen, err := cli.ChooseDevices(list, o.device)
	if err != nil {
		return cli.WhyMissing(err)
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
func tabulate(list []cli.Device, w io.Writer) error {
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
func noPort(e cli.Device, o *devicesOptions, a *verbs.DeviceAttr) error {
	return cli.Usagef("device %s has no port %d; it has %d", e.Name, o.port, len(a.Ports))
}

// printDevice prints one device in ibv_devinfo's layout.
func printDevice(e cli.Device, o *devicesOptions, w io.Writer) error {
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
func listJSON(list []cli.Device, o *devicesOptions, w io.Writer) error {
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
	return cli.WriteJSON(w, all)
}

// queryDevice opens a device for as long as it takes to ask for its attributes.
func queryDevice(e cli.Device) (*verbs.DeviceAttr, error) {
	d, err := e.Open()
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", e.Name, err)
	}
	defer cli.Shut(d)
	a, err := d.Query()
	if err != nil {
		return nil, fmt.Errorf("query device %s: %w", e.Name, err)
	}
	return &a, nil
}
