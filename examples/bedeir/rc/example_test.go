package rc_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"cinnabar/examples/bedeir/rc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// A server greets each client with a message; the client prints it and leaves.
func Example() {
	if err := greet(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// client: hello
	// client: disconnected
}

func greet() error {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	addr, served := make(chan netip.AddrPort, 1), make(chan error, 1)
	go func() { served <- serve(ctx, dev, addr) }()
	select {
	case a := <-addr:
		err = visit(ctx, dev, a.String())
		stop()
		if e := <-served; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	case err = <-served: // it could not listen
		stop()
	}
	return errors.Join(err, dev.Close())
}

// serve greets clients until ctx ends.
func serve(ctx context.Context, dev *verbs.Device, addr chan<- netip.AddrPort) error {
	var hello *verbs.MR
	lib, err := rc.Init(dev, rc.Config{
		Listening: func(a netip.AddrPort) { addr <- a },
		Connection: func(c *rc.Conn) error {
			wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{hello.SGE(0, hello.Len())}}
			_, err := c.QP().PostSend([]verbs.SendWR{wr})
			return err
		},
	})
	if err != nil {
		return err
	}
	if hello, err = lib.GetPD().RegMR([]byte("hello"), 0); err != nil {
		return errors.Join(err, lib.Close())
	}
	err = lib.ServerLoop(ctx, "127.0.0.1:0")
	return errors.Join(err, hello.Close(), lib.Close())
}

// visit prints what the server at addr says.
func visit(ctx context.Context, dev *verbs.Device, addr string) error {
	var room *verbs.MR
	lib, err := rc.Init(dev, rc.Config{
		PreConnection: func(c *rc.Conn) error {
			_, err := c.QP().PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{room.SGE(0, room.Len())}}})
			return err
		},
		Completion: func(c *rc.Conn, wc verbs.WC) error {
			fmt.Printf("client: %s\n", room.Bytes()[:wc.Len])
			return c.Disconnect()
		},
		Disconnect: func(_ *rc.Conn, err error) {
			if err == nil {
				fmt.Println("client: disconnected")
			}
		},
	})
	if err != nil {
		return err
	}
	if room, err = lib.GetPD().AllocMR(64, verbs.LocalWrite); err != nil {
		return errors.Join(err, lib.Close())
	}
	err = lib.ClientLoop(ctx, addr, nil)
	return errors.Join(err, room.Close(), lib.Close())
}
