package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"cinnabar"
	"cinnabar/verbs/auto"
)

const (
	patience = 2 * time.Minute // of a client, for all that it does
	// dialRetry bounds the repeated dialing of an address without a listener.
	dialRetry = time.Second
)

// options are the command line.
type options struct {
	address, device, to string
	kill, die, ask      string // a phase; at most one is not empty
	cross               bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := program(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "FAILED:", err)
		os.Exit(1)
	}
}

// program is one process. It prints to out.
func program(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	s, err := newSide(ctx, &o)
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(out, "ready", s.e.Addr()); err == nil {
		if o.to == "" {
			<-ctx.Done()
		} else {
			limited, cancel := context.WithTimeout(ctx, patience)
			err = s.client(limited, &o, out)
			cancel()
		}
	}
	if err = errors.Join(err, s.close()); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "ok")
	return err
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("enginepeer", flag.ContinueOnError)
	f.StringVar(&o.address, "address", "", "address to listen on: ofi+verbs://10.9.0.1:7000")
	f.StringVar(&o.device, "device", "", "a real device; a card needs the build tag rdma")
	f.StringVar(&o.to, "to", "", "address of the server; without it the program is the server")
	f.StringVar(&o.kill, "kill", "", "the phase in which the server kills itself")
	f.StringVar(&o.die, "die", "", "the phase in which this process kills itself")
	f.StringVar(&o.ask, "ask", "", "the phase of an earlier client with -die")
	f.BoolVar(&o.cross, "cross", false, "connect from both sides at once, again and again")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	n := 0
	for _, phase := range []string{o.kill, o.die, o.ask} {
		if phase == "" {
			continue
		}
		n++
		if !slices.Contains(phases, phase) {
			return o, fmt.Errorf("%q is no phase; these are %s", phase, strings.Join(phases, ", "))
		}
	}
	if o.cross {
		n++
	}
	switch {
	case n > 1:
		return o, errors.New("-kill, -die, -ask and -cross exclude each other")
	case n == 1 && o.to == "":
		return o, errors.New("-kill, -die, -ask and -cross need -to")
	case o.address == "":
		return o, errors.New("-address is missing")
	}
	return o, nil
}

// side is an engine with its device, and the procedures of both sides.
type side struct {
	e        *cinnabar.Engine
	dev      *auto.Device
	anyPort  string      // address to listen on, with any port
	noted    chan uint32 // numbers of one-way requests
	verdicts verdicts
}

func newSide(ctx context.Context, o *options) (*side, error) {
	s := &side{noted: make(chan uint32, notes), anyPort: o.address[:cutPort(o.address)]}
	s.verdicts.init()
	var err error
	if o.device == "" {
		s.dev, err = auto.Software(nil)
	} else {
		s.dev, err = auto.Open(cutHost(o.address) + "://" + o.device)
	}
	if err != nil {
		return nil, err
	}
	s.e, err = cinnabar.Listen(ctx, o.address, &cinnabar.Config{Device: s.dev, DialRetry: dialRetry})
	if err != nil {
		return nil, errors.Join(err, s.dev.Close())
	}
	if err := s.serve(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// cutPort returns the number of bytes of an address before its port.
func cutPort(address string) int {
	if i := strings.LastIndexByte(address, ':'); i > strings.Index(address, "://") {
		return i
	}
	return len(address)
}

// cutHost returns the protocol of an address.
func cutHost(address string) string {
	protocol, _, _ := strings.Cut(address, "://")
	return protocol
}

func (s *side) close() error { return errors.Join(s.e.Close(), s.dev.Close()) }

// client runs the conversation, or the part that the options name.
func (s *side) client(ctx context.Context, o *options, out io.Writer) error {
	server, err := s.e.Lookup(o.to)
	if err != nil {
		return err
	}
	switch {
	case o.kill != "":
		return s.kill(ctx, server, o.kill, out)
	case o.die != "":
		// The server calls doom back, so this call never ends.
		_, err := avenge.Call(ctx, server, phaseIn{o.die})
		return fmt.Errorf("the server did not kill this process: %w", err)
	case o.ask != "":
		v, err := verdictOf.Call(ctx, server, phaseIn{o.ask})
		if err == nil && v.Text != "" {
			err = errors.New("the server says: " + v.Text)
		}
		return err
	case o.cross:
		return s.cross(ctx, server, out)
	}
	return s.converse(ctx, server, out)
}
