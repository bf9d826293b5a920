package iwarp_test

import (
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// socketOf returns a descriptor of this process for the TCP socket with the two addresses.
func socketOf(t *testing.T, local, remote netip.AddrPort) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		own, err := unix.Getsockname(fd)
		if err != nil || addrPort(own) != local {
			continue
		}
		if peer, err := unix.Getpeername(fd); err == nil && addrPort(peer) == remote {
			return fd
		}
	}
	t.Fatalf("no socket from %v to %v", local, remote)
	return -1
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// TestTypeOfService reads the type of service back from the sockets of both sides: each side has its own, and the kernel keeps the two bits of congestion
// notification.
// parity: V55 N12
func TestTypeOfService(t *testing.T) {
	for _, tc := range []struct {
		listen        string
		level, option int
	}{
		{"127.0.0.1:0", unix.IPPROTO_IP, unix.IP_TOS},
		{"[::1]:0", unix.IPPROTO_IPV6, unix.IPV6_TCLASS},
	} {
		t.Run(tc.listen, func(t *testing.T) {
			a, b := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
			connectAt(t, tc.listen, a, b, verbs.ConnParam{TypeOfService: 0x48}, verbs.ConnParam{TypeOfService: 0x20})
			for _, c := range []struct {
				conn *verbs.Conn
				want int
			}{{a.conn, 0x48}, {b.conn, 0x20}} {
				got, err := unix.GetsockoptInt(socketOf(t, c.conn.LocalAddr(), c.conn.RemoteAddr()), tc.level, tc.option)
				if err != nil || got&^3 != c.want {
					t.Errorf("socket from %v: type of service %#x, %v; want %#x", c.conn.LocalAddr(), got, err, c.want)
				}
			}
		})
	}
}

// TestSourceOfManyAddresses dials from an address that the routes would not choose: all of 127.0.0.0/8 belongs to the host.
// parity: V55 N12
func TestSourceOfManyAddresses(t *testing.T) {
	a, b := newSide(t, iwarp.Config{}, nil), newSide(t, iwarp.Config{}, nil)
	from := netip.MustParseAddr("127.0.0.2")
	connect(t, a, b, verbs.ConnParam{Source: netip.AddrPortFrom(from, 0)}, verbs.ConnParam{})
	if got := b.conn.RemoteAddr(); got.Addr() != from || got != a.conn.LocalAddr() {
		t.Errorf("the passive side sees %v, and the active side has %v; want both at %v", got, a.conn.LocalAddr(), from)
	}
}
