package doctor

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"cinnabar/internal/hostmem"
)

// system has the functions by which the probes read the machine. Tests replace its fields to provoke faults.
type system struct {
	root string // the directory that has proc, sys, dev and tmp

	limit      func(resource) (limits, bool)
	lock       func([]byte) error // as hostmem.Lock
	procs      func() int         // GOMAXPROCS
	now        func() time.Time
	resolution func() (time.Duration, bool) // of the monotonic clock
	cost       func() time.Duration         // of reading the clock

	interfaces func() ([]networkInterface, error)
	listen     func(ctx context.Context, address string) (net.Listener, error) // TCP
	dial       func(ctx context.Context, address string) (net.Conn, error)     // TCP
	hostname   func() (string, error)
	resolve    func(ctx context.Context, name string) ([]netip.Addr, error)

	devices   func() ([]deviceOpener, error) // RDMA devices of the machine, not the software device
	addresses []string                       // arguments of the command
}

// limits are those of one resource of this process. hostmem.Unlimited stands for no limit.
type limits struct{ soft, hard uint64 }

// resource is a resource that the system limits for each process or user.
type resource int

const (
	resourceMemlock resource = iota
	resourceFiles
	resourceProcesses
)

// networkInterface is a network interface with its addresses.
type networkInterface struct {
	net.Interface
	addrs []netip.Addr
}

// thisSystem returns the machine as it is.
func thisSystem() *system {
	var d net.Dialer
	var l net.ListenConfig
	return &system{
		root:       "/",
		limit:      limitOf,
		lock:       hostmem.Lock,
		procs:      func() int { return runtime.GOMAXPROCS(0) },
		now:        time.Now,
		resolution: clockResolution,
		cost:       clockCost,
		interfaces: listInterfaces,
		listen:     func(ctx context.Context, address string) (net.Listener, error) { return l.Listen(ctx, "tcp", address) },
		dial:       func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) },
		hostname:   os.Hostname,
		resolve: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
		devices: machineDevices,
	}
}

// Bounds of what the probes read.
const (
	maxFile  = 256 << 10 // bytes of a file
	maxNames = 10_000    // of a directory
)

// path returns the path of a file of this system.
func (s *system) path(name string) string { return filepath.Join(s.root, name) }

// read returns the text of a file below /proc, /sys or /etc, without white space at its ends. It returns at most maxFile bytes.
func (s *system) read(name string) (string, error) {
	f, err := os.Open(s.path(name))
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	err = errors.Join(err, f.Close())
	return strings.TrimSpace(string(b)), err
}

// word returns the text of a file, or "" if it cannot be read.
func (s *system) word(name string) string {
	text, err := s.read(name)
	if err != nil {
		return ""
	}
	return text
}

// number returns the number in a file.
func (s *system) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(s.word(name), 10, 64)
	return n, err == nil
}

// exists reports whether there is a file of that name.
func (s *system) exists(name string) bool {
	_, err := os.Stat(s.path(name))
	return err == nil
}

// names returns the names in a directory, at most maxNames.
func (s *system) names(name string) ([]string, error) {
	f, err := os.Open(s.path(name))
	if err != nil {
		return nil, err
	}
	list, err := f.Readdirnames(maxNames)
	if errors.Is(err, io.EOF) {
		err = nil // the directory is empty
	}
	return list, errors.Join(err, f.Close())
}

// field returns the value of a line "NAME: VALUE" of a file such as /proc/self/status.
func field(text, name string) (string, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// kib returns the bytes of a value in kB of a line "NAME: VALUE kB" of /proc/meminfo.
func kib(text, name string) (int64, bool) {
	value, ok := field(text, name)
	n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 50)
	return n << 10, ok && err == nil && n >= 0
}

// maxInterfaces bounds the network interfaces that the probes look at.
const maxInterfaces = 256

func listInterfaces() ([]networkInterface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	found := make([]networkInterface, 0, len(list))
	for _, i := range list[:min(len(list), maxInterfaces)] {
		n := networkInterface{Interface: i}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface was removed meanwhile
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			at := p.Addr().Unmap()
			if at.Is6() && at.IsLinkLocalUnicast() {
				at = at.WithZone(i.Name)
			}
			n.addrs = append(n.addrs, at)
		}
		found = append(found, n)
	}
	return found, nil
}
