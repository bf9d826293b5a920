package rstream_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"

	"cinnabar/verbs/iwarp"
	"cinnabar/verbs/rstream"
)

// A stream over a queue pair is a net.Conn.
func Example() {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	l, err := rstream.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() { // a server that returns what it reads
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			log.Print(err)
			return
		}
		defer c.Close()
		if _, err := io.Copy(c, c); err != nil {
			log.Print(err)
		}
	}()

	c, err := rstream.Dial(context.Background(), dev, netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "echo"); err != nil {
		log.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil { // the peer's Read returns io.EOF
		log.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	fmt.Printf("%s %v\n", answer, err)
	<-served
	// Output: echo <nil>
}
