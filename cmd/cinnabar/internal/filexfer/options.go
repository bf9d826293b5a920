// Package filexfer has the commands send and recv, which transfer files.
package filexfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// The defaults that send and recv share. The port is that of the paper's program.
const (
	defaultPort    = "12345"
	defaultTimeout = 30 * time.Second // without progress
)

// options are the options that both ends have.
type options struct {
	timeout      time.Duration
	json         bool
	limit        limitOption
	device       string
	socket       *net.TCPListener // that systemd has opened for recv; nil: none
	security     cli.Security
	meeting      *meeting // of a one-time code; nil: none
	host         string   // the receiver as the user has named it; empty for a receiver
	stop         func()   // set by openDevice
	noImmediates bool     // a device that lacks write with immediate, for tests and comparisons
}

// register adds the options to a command.
func (o *options) register(f *pflag.FlagSet, s cli.Streams) {
	cli.TimeoutFlag(f, &o.timeout, defaultTimeout, "end a transfer after this time without progress")
	cli.JSONFlag(f, &o.json)
	f.StringVar(&o.limit.text, "limit", "", "bytes per second of all transfers together, such as 100MB/s (default no limit)")
	cli.DeviceFlag(f, &o.device)
	o.security.RegisterDevice(f, s)
	f.BoolVar(&o.noImmediates, "no-immediates", false, "use a device without immediate data")
	if err := f.MarkHidden("no-immediates"); err != nil {
		panic(err) // the flag was added above
	}
}

// check refuses values that no transfer can have.
func (o *options) check() error {
	if o.timeout <= 0 {
		return cli.Usagef("invalid --timeout %v: it must be positive, such as 30s", o.timeout)
	}
	if err := o.limit.parse(o.timeout); err != nil {
		return err
	}
	if o.noImmediates && o.device != "" && o.device != cli.SoftwareDevice {
		return cli.Usagef("--no-immediates is for %s, not for --device %s", cli.SoftwareDevice, o.device)
	}
	return nil
}

// openDevice opens the device that the options ask for. The caller calls stop after it has closed the device.
func (o *options) openDevice(ctx context.Context) (dev *verbs.Device, err error) {
	name := o.device
	if o.noImmediates || o.socket != nil {
		name = cli.SoftwareDevice
	}
	dev, o.stop, err = o.security.OpenDevice(ctx, name, o.host, func(cfg *iwarp.Config) {
		cfg.NoImmediates, cfg.Listener = o.noImmediates, o.socket
		o.meeting.apply(cfg)
	})
	return dev, err
}

// hostPort reads HOST, HOST:PORT, :PORT, ADDR6, [ADDR6] or [ADDR6]:PORT; a port
// that is not given is defaultPort, a host that is not given is "".
func hostPort(text string) (host, port string, err error) {
	if _, err := netip.ParseAddr(text); err == nil {
		return text, defaultPort, nil
	}
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		text += ":" + defaultPort
	}
	if !strings.Contains(text, ":") {
		return text, defaultPort, nil
	}
	if host, port, err = net.SplitHostPort(text); err != nil {
		return "", "", fmt.Errorf("%w; an address is HOST, HOST:PORT or [IPV6]:PORT", err)
	}
	if port == "" {
		return "", "", fmt.Errorf("address %q: no port behind the colon", text)
	}
	return host, port, nil
}

// listenAddrs are the addresses that HOST:PORT stands for, IPv4 first. An empty host is the loopback address. Of [::]
// one listener takes both families where the system can.
func listenAddrs(ctx context.Context, text string) ([]netip.AddrPort, error) {
	host, port, err := hostPort(text)
	if err != nil {
		return nil, cli.Usagef("invalid --listen: %w", err)
	}
	if host == "" {
		host = cli.ListenHost
	}
	if _, err := strconv.ParseUint(host, 10, 16); err == nil {
		return nil, cli.Usagef("--listen %s names no host; write :%s for that port", text, host)
	}
	addrs, err := verbs.Resolve(ctx, net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", text, err)
	}
	return ipv4First(addrs), nil
}

// ipv4First returns addrs with those of IPv4 before the others.
func ipv4First(addrs []netip.AddrPort) []netip.AddrPort {
	var four, six []netip.AddrPort
	for _, a := range addrs {
		if a.Addr().Unmap().Is4() {
			four = append(four, a)
		} else {
			six = append(six, a)
		}
	}
	return append(four, six...)
}

// onSocket returns the address of the socket that systemd has opened for recv, and keeps the socket for openDevice. It returns the addresses
// of --listen without such a socket. Both must be given alike if both are.
func (o *recvOptions) onSocket(ctx context.Context) ([]netip.AddrPort, error) {
	sockets, err := cli.Sockets(1)
	if err != nil || len(sockets) == 0 {
		if err != nil {
			return nil, err
		}
		return listenAddrs(ctx, o.listen)
	}
	l, ok := sockets[0].(*net.TCPListener)
	switch {
	case !ok:
		err = fmt.Errorf("the service manager has opened a socket at %v, which is not one of TCP; change the socket unit", sockets[0].Addr())
	case o.device != "" && o.device != cli.SoftwareDevice:
		err = cli.Usagef("--device %s was given with a socket of the service manager; only %s takes it", o.device, cli.SoftwareDevice)
	case o.listenGiven && o.listen != l.Addr().String():
		err = cli.Usagef("--listen %s was given with a socket of the service manager at %v; leave it out", o.listen, l.Addr())
	}
	if err != nil {
		cli.Shut(sockets[0])
		return nil, err
	}
	o.socket = l
	return []netip.AddrPort{addrOf(l)}, nil
}

// listenAny listens at the first address that the system has.
func listenAny(dev *verbs.Device, addrs []netip.AddrPort) (*verbs.Listener, error) {
	var errs []error
	for _, a := range addrs {
		l, err := verbs.Listen(dev, a)
		if err == nil {
			return l, nil
		}
		errs = append(errs, fmt.Errorf("listen on %s: %w", a, err))
		if !errors.Is(err, syscall.EAFNOSUPPORT) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break // in use or forbidden: the user has not asked for another family alone
		}
	}
	return nil, errors.Join(errs...)
}

// binarySize is a number with a bare letter, as dd and perftest have it.
var binarySize = regexp.MustCompile(`^[0-9.]+ ?[kKmMgG]$`)

// parseChunk reads a size as cli.ParseSize does, but a bare k, m or g is 2^10, 2^20 or 2^30:
// buffers are counted in powers of two.
func parseChunk(option, text string, least, most int64) (int64, error) {
	if binarySize.MatchString(text) {
		n, err := cli.ParseSize(option, text+"iB", least, most)
		if err != nil {
			return 0, cli.Usagef("invalid %s %q: %s to %s", option, text, cli.SizeText(least), cli.SizeText(most))
		}
		return n, nil
	}
	return cli.ParseSize(option, text, least, most)
}
