package xfer

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"cinnabar/verbs"
)

// errPing is the refusal of a request that Ping has made.
var errPing = failf(CodeUnsupported, "the request is for no transfer")

// isPing reports whether private data is of a request that Ping has made.
func isPing(private []byte) bool {
	if !isOurs(private) {
		return false
	}
	hi, err := parseHello(private)
	return err == nil && hi.ping && !hi.fast && !hi.basic
}

// Ping makes one round trip to the receiver at addr: over the network, the device, and the goroutine that takes requests. It transfers nothing, takes
// no place of [Receiver.MaxConnections], and is no event for [Receiver.Done] and the log of a receiver that knows it; other receivers refuse it as a
// sender without a protocol. Any refusal by the receiver's program is an answer, and so is a connection, which the paper's program accepts.
// Receivers that run ServeFirst or ServeOne answer until they have their transfer. An unspecified address, such as 0.0.0.0, stands for the loopback
// address. ctx bounds the call, and so do 30 s. Ping is safe for concurrent use.
func Ping(ctx context.Context, dev *verbs.Device, addr netip.AddrPort) error {
	addr = netip.AddrPortFrom(dialable(addr.Addr()), addr.Port())
	d := &delivery{Sender: &Sender{}, dev: dev, addr: addr, log: slog.New(slog.DiscardHandler), timeout: defaultTimeout}
	if err := d.ping(ctx); err != nil {
		f := asFailure(err)
		return &Error{Op: "ping", Peer: addr, Code: f.code, Err: f.err}
	}
	return nil
}

func (d *delivery) ping(ctx context.Context) (err error) {
	if d.attr, err = d.dev.Query(); err != nil {
		return err
	}
	if d.attr.MaxPrivateData < helloLen {
		return failf(CodeUnsupported, "device %s carries %d bytes of private data, and %d are needed", d.attr.Name, d.attr.MaxPrivateData, helloLen)
	}
	l, err := newResources(d.dev, 1, false, false)
	if err != nil {
		return err
	}
	defer closeResources(l, d.log)
	err = d.dial(ctx, l, appendHello(nil, hello{ping: true}))
	if err == nil {
		l.disconnect(ctx, disconnectLimit)
	}
	if f, ok := errors.AsType[*failure](err); ok && f.remote {
		return nil
	}
	return err
}

// dialable returns a, or the loopback address of its family if a is unspecified.
func dialable(a netip.Addr) netip.Addr {
	switch a {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return a
}
