//go:build linux

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// sixth makes a network interface with an address of IPv6 that is nobody else's, and returns the names of both. Mercury
// has no use for ::1: libfabric's tcp provider leaves out the loopback interface when it looks for addresses of IPv6.
func sixth(t *testing.T) (iface, addr string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network interface can be made by root only")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("a network interface needs the program ip (Debian: iproute2)")
	}
	id := os.Getpid() % 10_000
	iface, addr = fmt.Sprintf("six%d", id), fmt.Sprintf("fd6e:c1:%x::1", id) // RFC 4193: for networks of one's own
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", iface).Run() }) // there may be none
	for _, args := range []string{
		fmt.Sprintf("link add %s type veth peer name %sb", iface, iface),
		fmt.Sprintf("addr add %s/64 dev %s nodad", addr, iface),
		fmt.Sprintf("link set %s up", iface),
		fmt.Sprintf("link set %sb up", iface),
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("no interface of IPv6 can be made here: ip %s: %v: %s", args, err, out)
		}
	}
	return iface, addr
}

// TestIPv6 has a C client call a Go server over IPv6, whose requests begin with other bytes than those of IPv4, and the
// server read and write its memory.
//
// There is no other role to test. Mercury 2.4.1 takes no request over IPv6, from Go or C: it forgets the address family
// when it reads the sender's address (na_ofi_raw_addr_deserialize), and its progress fails.
func TestIPv6(t *testing.T) {
	path := hgPeer.executable(t)
	iface, addr := sixth(t)
	s := listenAt(t, "ofi+tcp://["+addr+"]", mercury, nil).serveMercury(t)
	client := ready(startOn(t, iface, path, "--ipv6", "--init", "ofi+tcp://"+iface))
	client.aim(s.Addr())
	answered := slices.DeleteFunc(slices.Clone(mercurySteps), func(s step) bool { return strings.HasPrefix(s.command, "callback") })
	runSteps(client, answered, moveSteps, boundSteps)
	client.stop()
}
