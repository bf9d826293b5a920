package oob_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

// Two sides exchange a line each over a socket. Settings that must be the same are compared.
func ExampleExchange() {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() {
		_, err := oob.Exchange(context.Background(), b, oob.QPInfo{QPN: 0x11, Settings: map[string]string{"size": "4096"}})
		done <- err
	}()
	peer, err := oob.Exchange(context.Background(), a, oob.QPInfo{QPN: 0x22, Settings: map[string]string{"size": "64"}})
	fmt.Printf("queue pair %#x\n%v\n", peer.QPN, err)
	fmt.Println(<-done)
	// Output:
	// queue pair 0x11
	// the two sides are set up differently: size is "64" here, "4096" there
	// the two sides are set up differently: size is "4096" here, "64" there
}

// The line begins like the message of ibv_rc_pingpong.
func ExampleQPInfo_AppendText() {
	in := oob.QPInfo{LID: 1, QPN: 0x84, PSN: 0x3c6bd2, Region: verbs.Region{RemoteAddr: verbs.RemoteAddr{Addr: 0x1000, RKey: 7}, Size: 64}}
	line, err := in.AppendText(nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", line)
	// Output: 0001:000084:3c6bd2:00000000000000000000000000000000 mr=0000000000001000:00000007:0000000000000040
}
