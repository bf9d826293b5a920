package cinnabar_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"cinnabar"
)

// initialize makes an engine that serves and one that only calls, and ends both.
func initialize(ctx context.Context) error {
	server, err := cinnabar.Listen("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	protocol, _, _ := strings.Cut(server.Addr(), ":") // behind it are the host and a port that was free
	fmt.Println("server:", protocol, "listening:", server.Listening())

	client, err := cinnabar.Open("ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer client.Close()
	fmt.Println("client listening:", client.Listening())

	if err := server.Shutdown(ctx); err != nil { // a real server does this when it is told to
		return err
	}
	<-server.Done() // what its main function waits for
	fmt.Println("server ended:", server.Err())
	return nil
}

// Tutorial 1, initializing: an engine is a process's presence on a network. [cinnabar.Listen] makes one for a server,
// [cinnabar.Open] one for a client. Nobody has to make progress or to say how many threads there are.
// parity: G96
func Example_tutorial01() {
	if err := initialize(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// server: ofi+tcp listening: true
	// client listening: false
	// server ended: <nil>
}
