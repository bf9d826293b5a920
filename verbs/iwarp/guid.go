package iwarp

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"os"
	"slices"
	"strings"

	"cinnabar/verbs"
)

// machineGUID returns the GUID of a device of this machine. Like the GUID of an adapter it is the same in each process and after a
// restart. It is a hash of the device's name and of the machine's identity: /etc/machine-id if it is set, otherwise the host's name
// and the hardware address of an interface. The hash hides these from peers.
func machineGUID(name string) verbs.GUID {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || !isMachineID(id) {
		host, _ := os.Hostname()    // without a name the address is the identity
		list, _ := net.Interfaces() // without an address the name is the identity
		id = hostIdentity(host, list)
	}
	sum := sha256.Sum256(append([]byte("cinnabar iwarp device "+name+"\n"), id...))
	return verbs.GUID(binary.BigEndian.Uint64(sum[:])&^(1<<56) | 1<<57) // locally administered
}

// isMachineID reports whether text is an id, 128 bits in hexadecimal, not all zero. Images of systems that have not been started
// yet have an empty file instead, or the word "uninitialized" (machine-id(5)), which is no machine's own.
func isMachineID(text []byte) bool {
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	return err == nil && len(b) == 16 && slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

// hostIdentity returns the host's name and the hardware address of its first interface that has one given by its maker, or
// else of its first with any. Interfaces that come later, such as those of virtual machines and containers, do not change it.
func hostIdentity(host string, list []net.Interface) []byte {
	list = slices.SortedFunc(slices.Values(list), func(a, b net.Interface) int { return cmp.Compare(a.Index, b.Index) })
	var address net.HardwareAddr
	for _, i := range list {
		switch a := i.HardwareAddr; {
		case len(a) == 0 || !slices.ContainsFunc(a, func(x byte) bool { return x != 0 }):
		case a[0]&2 == 0: // the bit of addresses that are locally administered
			return append([]byte(host+"\n"), a...)
		case address == nil:
			address = a
		}
	}
	return append([]byte(host+"\n"), address...)
}
