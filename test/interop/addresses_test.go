//go:build linux

package interop

import (
	"fmt"
	"strings"
	"testing"
)

// TestServerAtSeveralAddressesC has clients in C call a Go server by several of its addresses in turn, and expose memory to
// it. libfabric takes the addresses for several peers and makes a connection to each.
// parity(peer): H30
func TestServerAtSeveralAddressesC(t *testing.T) {
	hgPeer.executable(t) // skips the test, and not only its parts
	for _, p := range []struct {
		program *program
		rpc     *procedures
	}{{hgPeer, mercury}, {margoPeer, margo}} {
		t.Run(p.program.name, func(t *testing.T) {
			p.program.executable(t)
			s := listenAt(t, "ofi+tcp://0.0.0.0", p.rpc, nil)
			_, port, _ := strings.Cut(strings.TrimPrefix(s.Addr(), "ofi+tcp://"), ":")
			q := startPeer(t, p.program)
			for range 3 {
				for _, ip := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
					q.aim(fmt.Sprintf("ofi+tcp://%s:%s", ip, port))
					q.check("sum a=1 b=2", "ret=0 value=3")
					q.check("pull total=100000", "ret=0 count=100000 ok=1")
					q.check("push total=100000", "ret=0 count=100000 ok=1")
				}
			}
			q.stop()
		})
	}
}
