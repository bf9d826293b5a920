package sockio

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// HasTypeOfService reports whether [SetTypeOfService] works on this system.
const HasTypeOfService = true

// SetTypeOfService sets the octet of the type of service in the IPv4 headers of the packets that the socket sends, or of the traffic class
// in their IPv6 headers if isIPv6 is true. On a TCP socket the kernel ignores the lower two bits of octet, because it sets them itself for congestion
// notification (ECN).
func SetTypeOfService(c syscall.RawConn, isIPv6 bool, octet uint8) error {
	level, option := unix.IPPROTO_IP, unix.IP_TOS
	if isIPv6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	return setsockopt(c, level, option, int(octet))
}

// SetReuseAddr lets the socket have a local address that other sockets with the same option have, as long as their peers differ. It is called before
// the socket is bound.
func SetReuseAddr(c syscall.RawConn) error {
	return setsockopt(c, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
}

func setsockopt(c syscall.RawConn, level, option, value int) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }); cerr != nil {
		return cerr
	}
	return os.NewSyscallError("setsockopt", err)
}
