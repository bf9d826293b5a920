//go:build !unix

package ofitcp

import (
	"net"
	"net/netip"
	"os"
)

// reserve finds a free port of the address, or checks that the one in it is free. It cannot keep others from taking the port.
func reserve(a netip.AddrPort) (*os.File, netip.AddrPort, error) {
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
	if err != nil {
		return nil, a, err
	}
	if t, ok := ln.Addr().(*net.TCPAddr); ok {
		a = netip.AddrPortFrom(a.Addr(), uint16(t.Port))
	}
	return nil, a, ln.Close()
}
