//go:build linux

package interop

import (
	"slices"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/verbs/auto"
)

// network is what both sides of the tests talk over, and busy whether the programs in C poll for it rather than wait in
// the kernel. Tests that are about na+sm change them for the time of others.
var (
	network = tcp
	busy    bool
	sharing bool // both sides have shared memory beside the network (auto_sm)
)

const (
	tcp          = "ofi+tcp://127.0.0.1"
	sharedMemory = "na+sm"
	verbsScheme  = "ofi+verbs"
)

// configured returns cfg for an engine on the network: over ofi+verbs it has the device of the network's address, which the end of the
// test closes.
func configured(t *testing.T, cfg *cinnabar.Config) *cinnabar.Config {
	t.Helper()
	verbs := strings.HasPrefix(network, verbsScheme)
	if !verbs && !sharing {
		return cfg
	}
	var c cinnabar.Config
	if cfg != nil {
		c = *cfg
	}
	c.AutoSM = sharing
	if !verbs {
		return &c
	}
	dev, err := auto.Open(network)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
	c.Device = dev
	return &c
}

// apart puts the engines of a test on another address than the loopback address that recorded programs had. An engine at that address may by chance
// get the port of the recorded program, and it refuses a peer with its own address.
func apart(t *testing.T) {
	t.Helper()
	network = "ofi+tcp://127.0.0.2"
	t.Cleanup(func() { network = tcp })
}

// over runs f as a subtest over another network.
func over(t *testing.T, name, addr string, poll bool, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		network, busy = addr, poll
		defer func() { network, busy = tcp, false }()
		f(t)
	})
}

// networkOptions adds to a peer program's options what has it use the network.
func networkOptions(p *program, options []string) []string {
	options = slices.Clone(options)
	if network != tcp && !slices.Contains(options, "--init") {
		options = append([]string{"--init", network}, options...)
	}
	if sharing && p == hgPeer {
		options = append([]string{"--auto-sm"}, options...)
	}
	if busy && p == hgPeer {
		options = append([]string{"--busy"}, options...)
	}
	return options
}
