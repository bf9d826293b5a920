package sockio_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"

	"cinnabar/internal/sockio"
)

// A guard reads whatever arrives until the peer is done.
func ExampleConn_WaitRead() {
	client, server := loopback()
	_, _ = io.WriteString(client, "red mercury ore")
	_ = client.Close()

	conn, err := sockio.New(server)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	head, tail := make([]byte, 4), make([]byte, 64)
	err = conn.WaitRead(func() bool {
		for {
			switch n, err := conn.TryReadv([][]byte{head, tail}); {
			case errors.Is(err, sockio.ErrWouldBlock):
				return false // parked until there is more
			case err != nil:
				fmt.Println(err)
				return true
			default:
				fmt.Printf("%q %q\n", head, tail[:n-len(head)])
			}
		}
	})
	fmt.Println(err)
	// Output:
	// "red " "mercury ore"
	// EOF
	// <nil>
}

// loopback returns the two ends of a connection.
func loopback() (client, server *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}
