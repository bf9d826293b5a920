// Command client calls the greet procedure of a server.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"cinnabar"
	"cinnabar/examples/hello"
)

func main() {
	if len(os.Args) != 3 {
		fail("usage: client ADDRESS NAME")
	}
	if err := run(os.Args[1], os.Args[2], os.Stdout); err != nil {
		fail(err)
	}
}

func fail(why any) {
	_, _ = fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

func run(address, name string, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	protocol, _, _ := strings.Cut(address, "://")
	engine, err := cinnabar.Open(ctx, protocol, nil)
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	server, err := engine.Lookup(address)
	if err != nil {
		return err
	}
	out, err := hello.Greet.Call(ctx, server, hello.In{Name: name})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s (number %d)\n", out.Greeting, out.Count)
	return err
}
