// Command daemon serves one or both services of the composition example, until a client ends it.
//
//	daemon ADDRESS SERVICE[,SERVICE]
//
// ADDRESS is where to listen, such as ofi+tcp://127.0.0.1:0. Service data-xfer writes into the memory of the process that a call
// names; service delegator asks a data-xfer elsewhere, or in the same process, to write into its caller's memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"cinnabar"
	"cinnabar/examples/margo"
)

func main() { os.Exit(margo.Main(run)) }

func run(ctx context.Context, stdout io.Writer) error {
	if len(os.Args) != 3 {
		return errors.New("usage: daemon ADDRESS data-xfer,delegator")
	}
	engine, err := cinnabar.Listen(ctx, os.Args[1], nil)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // Wait has returned its error already
	if err := serve(engine, strings.Split(os.Args[2], ",")); err != nil {
		return err
	}
	return margo.Wait(ctx, engine, stdout)
}

// serve registers the services twice: as a provider, as Margo's daemon does, and for calls to no provider in particular, which
// Margo's benchmark makes.
func serve(engine *cinnabar.Engine, services []string) error {
	if err := margo.ServeShutdown(engine); err != nil {
		return err
	}
	provider, err := engine.NewProvider(margo.ProviderID, "")
	if err != nil {
		return err
	}
	for _, on := range []cinnabar.Registrar{engine, provider} {
		for _, s := range services {
			if err := register(on, engine, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func register(on cinnabar.Registrar, engine *cinnabar.Engine, service string) error {
	switch service {
	case "data-xfer":
		memory, err := engine.Alloc(cinnabar.ReadOnly, margo.ReadSize)
		if err != nil {
			return err
		}
		return margo.HandleRead(on, engine, memory) // closed with the engine
	case "delegator":
		return margo.HandleDelegate(on, engine)
	}
	return fmt.Errorf("there is no service %q; there are data-xfer and delegator", service)
}
