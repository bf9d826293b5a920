package sm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cinnabar/internal/hostquota"
	"cinnabar/internal/na"
	"cinnabar/internal/shm"
)

// Lookup implements [na.Endpoint]. It opens no file, because Resolve finds the process of an endpoint with a name.
func (e *Endpoint) Lookup(s string) (na.Addr, error) {
	uri, ident, err := parseTarget(s, hostID)
	switch {
	case na.KindOf(err) != 0:
		return nil, err
	case err != nil:
		return nil, &na.Error{Kind: na.Invalid, Op: "lookup", Addr: s, Err: err}
	case ident != (identity{}) || uri == e.own.uri:
		return e.addrOf(ident, uri), nil
	}
	return &named{ep: e, name: uri}, nil
}

// named is the address of the endpoint that has a name at the time of Resolve, in any process. It implements [na.Named].
type named struct {
	ep   *Endpoint
	name string

	found atomic.Pointer[Addr] // the result of the latest Resolve; nil: none has succeeded
}

var _ na.Named = (*named)(nil)

// String implements [na.Addr].
func (n *named) String() string { return scheme + n.name }

// Equal implements [na.Addr].
func (n *named) Equal(other na.Addr) bool {
	if o, ok := other.(*named); ok {
		return n.name == o.name && n.ep == o.ep
	}
	a := n.Reached()
	return a != nil && a.Equal(other)
}

// Done implements [na.Addr].
func (n *named) Done() <-chan struct{} {
	if a := n.found.Load(); a != nil {
		return a.Done()
	}
	return nil
}

// Account implements [na.Addr]. Before the first Resolve it returns the account of the zero Host.
func (n *named) Account() *hostquota.Account {
	if a := n.found.Load(); a != nil {
		return a.Account()
	}
	return n.ep.cfg.Quota.Account(hostquota.Host{})
}

// Reached implements [na.Named].
func (n *named) Reached() na.Addr {
	a := n.found.Load()
	if a == nil {
		return nil
	}
	done := a.Done()
	if done == nil { // there was no connection yet, and another process may have taken the name
		return nil
	}
	select {
	case <-done:
		return nil
	default:
		return a
	}
}

// Resolve implements [na.Named]. It reads the process from the endpoint's region, and changes nothing there.
func (n *named) Resolve(ctx context.Context) (na.Addr, error) {
	if a := n.Reached(); a != nil {
		return a, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ident, err := n.ep.ownerOf(n.name)
	if err != nil {
		return nil, &na.Error{Kind: na.Unreachable, Op: "look up", Addr: n.String(), Err: err}
	}
	a := n.ep.addrOf(ident, n.name)
	n.found.Store(a) // so that it, and its connection, stay while n is held
	return a, nil
}

// ownerOf returns the identity in the region of the endpoint with a name.
func (e *Endpoint) ownerOf(name string) (identity, error) {
	path := filepath.Join(e.cfg.ShmDir, e.cfg.Prefix+"-"+name)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, fmt.Errorf("no endpoint %q listens: there is no %s", name, path)
	}
	if err != nil {
		return identity{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	st, err := shm.FileOf(int(f.Fd()))
	if err == nil {
		err = checkFile(path, st, sharedWrite)
	}
	if err != nil {
		return identity{}, err
	}
	var b [serializedLen]byte // a region begins as a serialized address
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return identity{}, fmt.Errorf("%s is no region: %w", path, err)
	}
	ident, err := parseSerialized(b[:])
	if err != nil {
		return identity{}, fmt.Errorf("%s is no region: %w", path, err)
	}
	return ident, nil
}

// AppendAddr implements [na.Endpoint]. The name of an endpoint that has one is not part of it.
func (e *Endpoint) AppendAddr(b []byte, a na.Addr) []byte {
	p, ok := a.(*Addr)
	if !ok {
		return b
	}
	return appendSerialized(b, p.ident)
}

// ParseAddr implements [na.Endpoint].
func (e *Endpoint) ParseAddr(b []byte) (na.Addr, error) {
	ident, err := parseSerialized(b)
	if err != nil {
		return nil, &na.Error{Kind: na.Protocol, Op: "read address", Err: err}
	}
	if ident == e.ident {
		return e.own, nil
	}
	return e.addrOf(ident, ident.uri()), nil
}

// Register implements [na.Endpoint].
func (e *Endpoint) Register(mem []byte, access na.Access) (na.Memory, error) {
	if len(mem) == 0 {
		return nil, &na.Error{Kind: na.Invalid, Op: "register memory", Err: errors.New("0 bytes; there must be 1 at least")}
	}
	return e.RegisterSegments([][]byte{mem}, access)
}

// MaxSegments implements [na.SegmentRegistrar].
func (e *Endpoint) MaxSegments() int { return maxSegments }

// RegisterSegments implements [na.SegmentRegistrar].
func (e *Endpoint) RegisterSegments(segs [][]byte, access na.Access) (na.Memory, error) {
	if len(segs) == 0 || len(segs) > maxSegments {
		return nil, &na.Error{Kind: na.Invalid, Op: "register memory", Err: fmt.Errorf("%d segments; one handle has 1 to %d: register further ones by handles of their own", len(segs), maxSegments)}
	}
	m, err := e.mem.register(segs, access)
	if err != nil {
		return nil, err
	}
	ownMemories.add(e.ident, &e.mem)
	e.mem.relay.listen(e)
	return m, nil
}

// Alloc returns size bytes of zeroed memory outside the Go heap that peers can map. A peer that gets from or puts to it after it is
// registered copies without a system call from the second time on. free frees it; the caller must not use it afterwards.
func (e *Endpoint) Alloc(size int) (mem []byte, free func() error, err error) {
	a, err := e.mem.arenas.alloc(size)
	if err != nil {
		return nil, nil, err
	}
	return a.mem, func() error { return e.mem.freeArena(a) }, nil
}

// ParseHandle implements [na.Endpoint].
func (e *Endpoint) ParseHandle(b []byte) (na.RemoteMemory, error) {
	r, err := parseHandle(b)
	if err != nil {
		return nil, &na.Error{Kind: na.Protocol, Op: "read memory handle", Err: err}
	}
	return r, nil
}

// Get implements [na.Endpoint].
func (e *Endpoint) Get(op *na.Op, from na.Addr, frags []na.Fragment) {
	e.transfer(op, from, frags, false)
}

// Put implements [na.Endpoint]. It completes when the bytes are in the peer's memory.
func (e *Endpoint) Put(op *na.Op, to na.Addr, frags []na.Fragment) { e.transfer(op, to, frags, true) }

func (e *Endpoint) transfer(op *na.Op, a na.Addr, frags []na.Fragment, put bool) {
	op.Begin()
	t, _ := pooledTransfers.Get().(*transfer)
	t.op, t.put = op, put
	p, ok := a.(*Addr)
	if !ok || p.ep != e {
		t.finish(&na.Error{Kind: na.Invalid, Err: fmt.Errorf("address %v is not one of this endpoint's", a)})
		return
	}
	t.to = p
	total, err := na.CheckFragments(frags, put, sizeOf)
	if err != nil || total == 0 {
		t.finish(err)
		return
	}
	if p.inProcess(e.ident.pid) {
		if err := checkOwn(p.ident, frags, needed(put)); err != nil {
			t.finish(err)
			return
		}
	}
	t.at.frags, t.total = frags, total
	e.transfers.start(t)
}

// HostID returns the part of combined addresses that identifies this host, as C's build without NA_SM_USE_UUID writes it.
func HostID() string { return hostID() }

// hostID returns the number that identifies this host in combined addresses, as gethostid of the C library does: the contents of a
// file that hardly any host has, or else a number made of the address of the host's name. A name server has resolveLimit to answer;
// without an address the number is 0, as in C.
var hostID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/etc/hostid")
	if err == nil && len(b) >= 4 {
		return formatHostID(binary.NativeEndian.Uint32(b))
	}
	return formatHostID(addressID(ownAddress()))
})

func formatHostID(id uint32) string { return strconv.FormatInt(int64(int32(id)), 10) }

// addressID returns the number made of an IPv4 address: the native word with its halves exchanged.
func addressID(ip net.IP) uint32 {
	ip = ip.To4()
	if ip == nil {
		return 0
	}
	n := binary.NativeEndian.Uint32(ip)
	return n<<16 | n>>16
}

// resolveLimit bounds the search for the address of the host's name.
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
