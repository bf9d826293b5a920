//go:build linux

package interop

import (
	"strings"
	"testing"
)

// TestManySegmentsOfC has a client in C lend memory of 1,025 and of 20,000 segments, whose handle does not fit into a
// request.
// parity(peer): H70
func TestManySegmentsOfC(t *testing.T) {
	s := listen(t, mercury, nil).serveMercury(t)
	client := startPeer(t, hgPeer)
	client.aim(s.Addr())
	for _, segments := range []string{"1025", "20000"} {
		client.check("pull total=100003 segments="+segments, "ret=0 moved=0 count=100003 ok=1")
		client.check("push total=100003 segments="+segments, "ret=0 moved=0 count=100003 ok=1")
	}
	client.stop()
}

// TestTwoAddressesFromC has a client in C call a server in Go at two addresses of it, in turn.
// parity(peer): H47
func TestTwoAddressesFromC(t *testing.T) {
	s := listenAt(t, "ofi+tcp://0.0.0.0", mercury, nil)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.Addr(), scheme), ":")
	client := startPeer(t, hgPeer)
	for range 3 {
		for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
			client.aim(scheme + ip + ":" + port)
			client.check("sum a=40 b=2", "ret=0 value=42")
			client.check("pull total=20000", "ret=0 moved=0 count=20000 ok=1")
		}
	}
	client.stop()
}
