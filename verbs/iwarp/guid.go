package iwarp

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"strings"

	"cinnabar/verbs/driver"
)

// machineGUID returns the GUID of a device of this machine, which is the same in each process and after a restart, as that of an
// adapter is. It is made of the device's name and what identifies the machine: /etc/machine-id where there is one, otherwise
// the host's name and the hardware addresses of its interfaces. Hashing hides these from peers.
func machineGUID(name string) driver.GUID {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(strings.TrimSpace(string(id))) == 0 {
		id = hostIdentity()
	}
	sum := sha256.Sum256(append([]byte("cinnabar iwarp device "+name+"\n"), id...))
	return driver.GUID(binary.BigEndian.Uint64(sum[:])&^(1<<56) | 1<<57) // locally administered
}

// hostIdentity returns the host's name and hardware addresses.
func hostIdentity() []byte {
	host, _ := os.Hostname()    // without a name the addresses must do
	list, _ := net.Interfaces() // without addresses the name must do
	slices.SortFunc(list, func(a, b net.Interface) int { return cmp.Compare(a.Name, b.Name) })
	id := []byte(host)
	for _, i := range list {
		id = append(append(id, '\n'), i.HardwareAddr...)
	}
	return id
}
