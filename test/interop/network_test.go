//go:build linux

package interop

import (
	"slices"
	"testing"
)

// network is what both sides of the tests talk over, and busy whether the programs in C poll for it rather than wait in
// the kernel. Tests that are about na+sm change them for the time of others.
var (
	network = tcp
	busy    bool
)

const (
	tcp          = "ofi+tcp://127.0.0.1"
	sharedMemory = "na+sm"
)

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
	if busy && p == hgPeer {
		options = append([]string{"--busy"}, options...)
	}
	return options
}
