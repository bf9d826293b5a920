//go:build !unix

package ofitcp

import (
	"net"
	"net/netip"
	"os"
)

// reserve finds a free port of address a, or checks that a's port is free. On this system it cannot reserve the port, so another
// process may take it.
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

// listens does not check ln: on this system net.FileListener, which could make one of another socket, is not supported.
func listens(*net.TCPListener) error { return nil }

// onlyIPv6 cannot find on this system whether ln takes IPv4 too.
func onlyIPv6(*net.TCPListener) error { return nil }
