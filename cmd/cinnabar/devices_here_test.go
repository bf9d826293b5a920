package main

import (
	"runtime"
	"testing"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/verbs/rdmacore"
)

// TestDevicesOfThisMachine lists the devices of the machine that runs the test: the software device is always there, and
// where the machine has no others, the error about an unknown name gives the reason.
// parity: V01
func TestDevicesOfThisMachine(t *testing.T) {
	clitest.WantRun(t, 0, []string{"devices", "-l"}, " found:\n\t"+cli.SoftwareDevice+"\n")
	clitest.WantRun(t, 0, []string{"devices", "-d", cli.SoftwareDevice, "-v"}, "hca_id:\t"+cli.SoftwareDevice+"\n", "node_guid:", "PORT_ACTIVE")
	text := []string{"device 'none0' wasn't found; there is " + cli.SoftwareDevice}
	if _, err := rdmacore.Devices(); err != nil {
		text = append(text, cli.OneLine(err))
	}
	clitest.WantRun(t, cli.ExitFailure, []string{"devices", "-d", "none0"}, text...)
}

// TestVersion prints the versions of the program, of Go, and of Mercury's headers.
// parity: H04
func TestVersion(t *testing.T) {
	if cinnabar.MercuryProtocol != 5 { // that of Mercury 2.4.1
		t.Errorf("protocol %d", cinnabar.MercuryProtocol)
	}
	clitest.WantRun(t, 0, []string{"--version"}, "cinnabar version ", " "+runtime.Version()+" ", runtime.GOOS+"/"+runtime.GOARCH, "Mercury protocol 5\n")
}
