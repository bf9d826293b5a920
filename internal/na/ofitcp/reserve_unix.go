//go:build unix

package ofitcp

import (
	"net/netip"
	"os"
	"syscall"
)

// reserve binds the port of address a without listening, so that connections to it are refused and no other process gets the
// port. Port 0 stands for a free one. Close of the file frees the port.
func reserve(a netip.AddrPort) (*os.File, netip.AddrPort, error) {
	family := syscall.AF_INET
	var sa syscall.Sockaddr
	if a.Addr().Is4() {
		sa = &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	} else {
		family = syscall.AF_INET6
		sa = &syscall.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, a, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "reserved port")
	if family == syscall.AF_INET6 {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 1))
	}
	if err == nil {
		err = os.NewSyscallError("bind", syscall.Bind(fd, sa))
	}
	if err == nil {
		sa, err = syscall.Getsockname(fd)
		err = os.NewSyscallError("getsockname", err)
	}
	if err != nil {
		_ = f.Close() // reserve returns the earlier error
		return nil, a, err
	}
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		a = netip.AddrPortFrom(a.Addr(), uint16(sa.Port))
	case *syscall.SockaddrInet6:
		a = netip.AddrPortFrom(a.Addr(), uint16(sa.Port))
	}
	return f, a, nil
}
