//go:build unix

package ofitcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"cinnabar/internal/na"
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

// listens returns an error if ln is a socket that does not listen, such as one that net.FileListener has made of a connection.
func listens(ln *net.TCPListener) error {
	on, err := option(ln, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err == nil && on == 0 {
		err = &na.Error{Kind: na.Invalid, Op: "listen", Err: fmt.Errorf("the listener at %v is a socket that does not listen", ln.Addr())}
	}
	return err
}

// onlyIPv6 returns an error if ln, which listens at [::], takes connections over IPv4 too, because an endpoint has peers of one family.
func onlyIPv6(ln *net.TCPListener) error {
	only, err := option(ln, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY)
	if err == nil && only == 0 {
		err = &na.Error{Kind: na.Invalid, Op: "listen", Err: fmt.Errorf("the listener at %v takes IPv4 too, and an engine has one family; let it listen at 0.0.0.0 or at one address, or make it IPv6 alone (BindIPv6Only=ipv6-only of systemd)", ln.Addr())}
	}
	return err
}

// option returns an option of a socket.
func option(ln *net.TCPListener, level, name int) (value int, err error) {
	raw, err := ln.SyscallConn()
	if err != nil {
		return 0, &na.Error{Kind: na.Invalid, Op: "listen", Err: err}
	}
	var optErr error
	err = raw.Control(func(fd uintptr) { value, optErr = syscall.GetsockoptInt(int(fd), level, name) })
	if err = errors.Join(err, os.NewSyscallError("getsockopt", optErr)); err != nil {
		return 0, &na.Error{Kind: na.Invalid, Op: "listen", Err: err}
	}
	return value, nil
}
