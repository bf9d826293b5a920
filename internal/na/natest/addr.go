package natest

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
)

const scheme = "natest://"

// addr is how one endpoint knows a peer. Another endpoint may use it, but then Done still speaks of the first one's
// connections.
type addr struct {
	ep   *Endpoint // the endpoint that has made it
	port uint16

	account    *hostquota.Account // of port, which is a host of its own
	annotation atomic.Value
}

func (a *addr) String() string { return scheme + strconv.Itoa(int(a.port)) }

// Equal implements [na.Addr].
func (a *addr) Equal(other na.Addr) bool {
	b, ok := other.(*addr)
	return ok && a.ep.net == b.ep.net && a.port == b.port
}

// Done implements [na.Addr].
func (a *addr) Done() <-chan struct{} {
	n := a.ep.net
	n.mu.Lock()
	defer n.mu.Unlock()
	return a.ep.last[a.port]
}

// Annotation implements [na.Annotated].
func (a *addr) Annotation() *atomic.Value { return &a.annotation }

// Account implements [na.Addr].
func (a *addr) Account() *hostquota.Account { return a.account }

// addrLocked returns the one addr that stands for a port, so that addresses cost no allocation each. The network's lock
// is held.
func (ep *Endpoint) addrLocked(port uint16) *addr {
	a := ep.addrs[port]
	if a == nil {
		a = &addr{ep: ep, port: port, account: ep.net.cfg.Quota.Account(hostquota.ProcessHost(0, int32(port)))}
		ep.addrs[port] = a
	}
	return a
}

func (ep *Endpoint) addrOf(port uint16) *addr {
	ep.net.mu.Lock()
	defer ep.net.mu.Unlock()
	return ep.addrLocked(port)
}

// Lookup implements [na.Endpoint].
func (ep *Endpoint) Lookup(s string) (na.Addr, error) {
	digits, ok := strings.CutPrefix(s, scheme)
	port, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil {
		return nil, &na.Error{Kind: na.Invalid, Op: "look up " + strconv.Quote(s), Err: err}
	}
	return ep.addrOf(uint16(port)), nil
}

// addrSize is the length of an address in binary form: a word with 16, and a struct sockaddr_in.
const addrSize = 24

// AppendAddr implements [na.Endpoint].
func (ep *Endpoint) AppendAddr(b []byte, a na.Addr) []byte {
	b = binary.LittleEndian.AppendUint64(b, addrSize-8)
	b = append(b, 2, 0)
	b = binary.BigEndian.AppendUint16(b, a.(*addr).port)
	return append(b, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
}

// ParseAddr implements [na.Endpoint].
func (ep *Endpoint) ParseAddr(b []byte) (na.Addr, error) {
	if len(b) != addrSize || binary.LittleEndian.Uint64(b) != addrSize-8 || b[8] != 2 {
		return nil, &na.Error{Kind: na.Invalid, Op: "parse address", Err: fmt.Errorf("% x", b)}
	}
	return ep.addrOf(binary.BigEndian.Uint16(b[10:])), nil
}
