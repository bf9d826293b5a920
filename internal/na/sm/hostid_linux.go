package sm

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// hostID is the number that tells hosts apart in combined addresses, as gethostid of the C library returns it: a file
// that hardly any host has, else made of the address of the host's name. The latter may ask a name server, which is
// given little time; a name without address makes 0, as in C.
var hostID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/etc/hostid")
	if err == nil && len(b) >= 4 {
		return formatHostID(binary.NativeEndian.Uint32(b))
	}
	return formatHostID(addressID(ownAddress()))
})

func formatHostID(id uint32) string { return strconv.FormatInt(int64(int32(id)), 10) }

// addressID is the number made of an IPv4 address: as the processor reads it, with its halves exchanged.
func addressID(ip net.IP) uint32 {
	ip = ip.To4()
	if ip == nil {
		return 0
	}
	n := binary.NativeEndian.Uint32(ip)
	return n<<16 | n>>16
}

// resolveLimit is how long finding the address of the host's own name may take.
const resolveLimit = 2 * time.Second

func ownAddress() net.IP {
	name, err := os.Hostname()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveLimit)
	defer cancel()
	ips, err := net.DefaultResolver.LookupIP(ctx, "ip4", name)
	if err != nil || len(ips) == 0 {
		return nil
	}
	return ips[0]
}
