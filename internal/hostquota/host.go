package hostquota

import (
	"context"
	"fmt"
	"net/netip"
)

// Host is the origin that resources are counted for. The zero Host is this process itself, which has no limits.
type Host struct {
	net netip.Prefix // of a remote host; not valid for a process
	uid uint32       // of a process of this host
	pid int32        // likewise; 0: no process
}

// networkBits is the length of the IPv6 prefix that counts as one host, because a host can give itself any address of
// its network.
const networkBits = 64

// HostOf returns the host of a network address: the IPv4 address, also where it is mapped into IPv6, or the IPv6 network
// of 64 bits. The zero Addr gives the zero Host.
func HostOf(a netip.Addr) Host {
	a = a.Unmap().WithZone("")
	if !a.IsValid() {
		return Host{}
	}
	bits := a.BitLen()
	if a.Is6() {
		bits = networkBits
	}
	p, _ := a.Prefix(bits) // bits fit the address
	return Host{net: p}
}

// ProcessHost returns the host that stands for a process of this machine, which reaches it through shared memory.
func ProcessHost(uid uint32, pid int32) Host { return Host{uid: uid, pid: pid} }

// ContextKey is the key under which the context of a request's handler has the Host of the caller.
type ContextKey struct{}

// FromContext returns the host of the caller of a handler; ctx is the handler's. Other contexts give the zero Host.
func FromContext(ctx context.Context) Host {
	h, _ := ctx.Value(ContextKey{}).(Host)
	return h
}

// IsZero reports whether h is this process itself.
func (h Host) IsZero() bool { return h == Host{} }

// String returns the host as logs and errors name it: "192.0.2.7", "2001:db8::/64", "process 42 of uid 1000".
func (h Host) String() string {
	switch {
	case h.net.IsValid() && h.net.IsSingleIP():
		return h.net.Addr().String()
	case h.net.IsValid():
		return h.net.String()
	case h.pid != 0:
		return fmt.Sprintf("process %d of uid %d", h.pid, h.uid)
	}
	return "this process"
}
