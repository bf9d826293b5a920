package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rdmacm"
	"cinnabar/verbs/rdmacore"
)

// patience bounds the whole conversation.
const patience = 4 * time.Minute

// options are the command line.
type options struct {
	server, client bool
	addr           netip.AddrPort
	count, seed    uint64
	bad, device    string
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "mixedpeer:", err)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := run(ctx, o, os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "mixedpeer: FAILED:", err)
		cancel()
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, "mixedpeer: ok")
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("mixedpeer", flag.ContinueOnError)
	f.BoolVar(&o.server, "s", false, "serve one client")
	f.BoolVar(&o.client, "c", false, "connect to a server")
	host := f.String("a", "", "address to listen on, or to connect to")
	port := f.Uint("p", 7200, "port")
	f.Uint64Var(&o.count, "n", 10000, "messages; the client says")
	f.Uint64Var(&o.seed, "r", 1, "seed; the client says")
	f.StringVar(&o.bad, "b", "", "violate the server's rights instead: write-key, read-key, write-range, send-long")
	f.StringVar(&o.device, "device", "", "a real device; a card needs the build tag rdma")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.server == o.client {
		return o, errors.New("exactly one of -s and -c is needed")
	}
	ip, err := netip.ParseAddr(*host)
	if err != nil {
		return o, fmt.Errorf("-a: %w", err)
	}
	if *port > 65535 {
		return o, fmt.Errorf("-p %d is no port", *port)
	}
	o.addr = netip.AddrPortFrom(ip, uint16(*port))
	_, err = badNumber(o.bad)
	return o, err
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
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
	if o.client {
		return call(ctx, dev, o, out)
	}
	l, err := rdmacm.ListenEndpoints(dev, o.addr, endpointConfig)
	if err != nil {
		return err
	}
	return serve(ctx, dev, l, out)
}

// serve is the server, for one client of l, which it closes.
func serve(ctx context.Context, dev *verbs.Device, l *rdmacm.EndpointListener, out io.Writer) (err error) {
	ep, err := l.GetRequest(ctx)
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	s, err := newSide(ep)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.expectControl(); err != nil {
		return err
	}
	if err := ep.Accept(ctx, param); err != nil {
		return err
	}
	hello, err := s.recvControl(ctx, kindHello)
	if err != nil {
		return err
	}
	c := newConversation(s, hello.seed, hello.number, out)
	if hello.bad != 0 {
		if err := s.endure(ctx, c); err != nil {
			return err
		}
		return s.tellEnd(ctx, dev, c)
	}
	if err := c.run(ctx, false); err != nil {
		return err
	}
	select { // the client ends it
	case <-ep.Conn().Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := ep.Conn().Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return fmt.Errorf("the connection ended badly: %w", err)
	}
	return nil
}

// call is the client.
func call(ctx context.Context, dev *verbs.Device, o options, out io.Writer) (err error) {
	ep, err := rdmacm.NewEndpoint(dev, endpointConfig)
	if err != nil {
		return err
	}
	s, err := newSide(ep)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.expectControl(); err != nil {
		return err
	}
	if err := ep.Connect(ctx, o.addr, param); err != nil {
		return err
	}
	c := newConversation(s, o.seed, o.count, out)
	bad, err := badNumber(o.bad)
	if err != nil {
		return err
	}
	if err := s.sendControl(ctx, control{kind: kindHello, bad: bad, number: o.count, seed: o.seed}); err != nil {
		return err
	}
	if bad != 0 {
		if err := s.violate(ctx, o.bad, c); err != nil {
			return err
		}
		return s.tellEnd(ctx, dev, c)
	}
	if err := c.run(ctx, true); err != nil {
		return err
	}
	return ep.Disconnect(ctx)
}
