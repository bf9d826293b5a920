//go:build linux

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// namespaceEnv is set in the process that runs TestIPv6 in a network namespace of its own.
const namespaceEnv = "CINNABAR_IPV6_NAMESPACE"

// inNamespace runs the test again in a process with a network namespace of its own, which goes with it.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a network namespace can be made by root only")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), namespaceEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	switch {
	case len(out) == 0 && err != nil:
		t.Skipf("no network namespace can be made here: %v", err)
	case err != nil:
		t.Fatalf("in its namespace: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("in its namespace: %s", out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("in its namespace nothing was tested:\n%s", out)
	}
}

// sixth makes a network interface with an address of IPv6 in this namespace, and returns the names of both. Mercury
// has no use for ::1: libfabric's tcp provider leaves out the loopback interface when it looks for addresses of IPv6.
func sixth(t *testing.T) (iface, addr string) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("a network interface needs the program ip (Debian: iproute2)")
	}
	iface, addr = "six0", "fd6e:c1::1" // RFC 4193: for networks of one's own
	for _, args := range []string{
		"link set lo up",
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
// parity(peer): H18
func TestIPv6(t *testing.T) {
	if os.Getenv(namespaceEnv) == "" {
		inNamespace(t)
		return
	}
	path := hgPeer.executable(t)
	iface, addr := sixth(t)
	s := listenAt(t, "ofi+tcp://["+addr+"]", mercury, nil).serveMercury(t)
	client := ready(startOn(t, iface, path, "--ipv6", "--init", "ofi+tcp://"+iface))
	client.aim(s.Addr())
	answered := slices.DeleteFunc(slices.Clone(mercurySteps), func(s step) bool { return strings.HasPrefix(s.command, "callback") })
	runSteps(client, answered, moveSteps, boundSteps)
	client.stop()
}
