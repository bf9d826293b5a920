// Command 01 is the first tutorial, initializing: it opens an engine that serves and an engine that only calls, and ends both.
package main

import (
	"context"
	"fmt"
	"log"
	"strings"

	"cinnabar"
)

func run(ctx context.Context) error {
	// Listen opens an engine that serves. The address names no port, so the engine listens on a free one.
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close() // without effect after Shutdown
	protocol, _, _ := strings.Cut(server.Addr(), ":")
	fmt.Println("server:", protocol, "listening:", server.State(0).Listening)

	// Open makes an engine that only calls. It needs no threads and no progress loop.
	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer client.Close()
	fmt.Println("client listening:", client.State(0).Listening)

	// Shutdown ends an engine in good order. A server calls it when the process is interrupted.
	if err := server.Shutdown(ctx); err != nil {
		return err
	}
	<-server.Done() // the main function of a server waits for this channel
	fmt.Println("server ended:", server.Shutdown(ctx))
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
