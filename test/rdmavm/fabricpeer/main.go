package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"cinnabar/internal/na/ofiverbs"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacore"
)

// patience bounds the whole conversation.
const patience = time.Minute

// options are the command line.
type options struct {
	address, connect netip.Addr // connect is invalid on a server
	control          uint
	device           string
	size, count      int
	corrupt          int // the number of the message with a wrong byte; negative: none
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "fabricpeer:", err)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := run(ctx, o); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "fabricpeer: FAILED:", err) // the exit status is the verdict
		cancel()
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, "fabricpeer: ok") // the exit status is the verdict
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("fabricpeer", flag.ContinueOnError)
	address := f.String("address", "", "IPv4 address to listen on")
	connect := f.String("connect", "", "IPv4 address of the server; without it the program is the server")
	f.UintVar(&o.control, "control", 47592, "TCP port of the server's control connection")
	f.StringVar(&o.device, "device", "", "a real device; a card needs the build tag rdma")
	f.IntVar(&o.size, "size", 64, "bytes of a message")
	f.IntVar(&o.count, "count", 10, "messages of each side")
	f.IntVar(&o.corrupt, "corrupt", -1, "number of the message to send with a wrong byte, from 0 on")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.address, err = netip.ParseAddr(*address); err != nil || !o.address.Is4() {
		return o, fmt.Errorf("-address %q is no IPv4 address", *address)
	}
	if *connect != "" {
		if o.connect, err = netip.ParseAddr(*connect); err != nil || !o.connect.Is4() {
			return o, fmt.Errorf("-connect %q is no IPv4 address", *connect)
		}
	}
	switch {
	case o.control > 65535:
		return o, fmt.Errorf("-control %d is no port", o.control)
	case o.size < 1 || o.size > maxSize:
		return o, fmt.Errorf("-size %d; it is from 1 to %d", o.size, maxSize)
	case o.count < 1:
		return o, fmt.Errorf("-count %d; it is 1 at least", o.count)
	}
	return o, nil
}

// run opens the device, the endpoint and the control connection, and converses.
func run(ctx context.Context, o options) (err error) {
	var dev *verbs.Device
	if o.device == "" {
		dev, err = iwarp.Open(iwarp.Config{})
	} else {
		dev, err = rdmacore.Open(o.device)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	e, err := ofiverbs.Open(ctx, ofiverbs.Config{
		Device: dev, Address: "ofi+verbs://" + o.address.String(), MaxRequest: maxSize, MaxResponse: maxSize,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(context.WithoutCancel(ctx))) }()
	c, err := control(ctx, o)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // reads and writes end with ctx
	defer stop()
	defer func() { err = errors.Join(err, c.Close()) }()
	return converse(ctx, o, e, c)
}

// control connects to the server, or waits for the client.
func control(ctx context.Context, o options) (net.Conn, error) {
	if o.connect.IsValid() {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", netip.AddrPortFrom(o.connect, uint16(o.control)).String())
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(o.address, uint16(o.control)).String())
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(os.Stdout, "fabricpeer: listening on", l.Addr()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	c, err := l.Accept()
	if stop() {
		err = errors.Join(err, l.Close())
	}
	return c, err
}
