// Command 08_flow_control sends to a receiver that is not ready, and to one that gives credits. It is lesson 8 of the course.
package main

import (
	"context"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// ConfirmWrites gives sends the exact statuses that they have on InfiniBand.
func main() { lab.Run(iwarp.Config{ConfirmWrites: true}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	message := verbs.SendWR{Op: verbs.OpSend} // without bytes, and without a completion at the sender

	// 1. The receiver is not ready, and the message waits: RNRRetry 7, the default, is for ever.
	client, server := l.Pair(ctx)
	lab.Check(client.Send(message))
	lab.Check(server.Receive(1, nil))
	fmt.Printf("patient:   request %d is done (%s)\n", lab.Must(server.Wait(ctx)).ID, verbs.WCRecv)

	// 2. The receiver is not ready, and the connection has no patience.
	client, _, err := l.Connect(ctx, verbs.ConnParam{RNRRetry: -1})
	lab.Check(err)
	signaled := message
	signaled.Flags = verbs.Signaled
	lab.Check(client.Send(signaled))
	fmt.Printf("impatient: %s\n", lab.Must(client.Next(ctx)).Status)

	// 3. Credits: the sender never has more messages on their way than the receiver has receives.
	client, server = l.Pair(ctx)
	credits := 2
	for id := range credits {
		lab.Check(server.Receive(uint64(id), nil))
		lab.Check(client.Receive(uint64(id), nil))
	}
	for i := 1; i <= 4; i++ {
		if credits == 0 {
			wc := lab.Must(server.Wait(ctx)) // the receiver takes a message, posts its receive again, and sends a credit
			lab.Check(server.Receive(wc.ID, nil))
			lab.Check(server.Send(message))
			wc = lab.Must(client.Wait(ctx))
			lab.Check(client.Receive(wc.ID, nil))
			credits++
			fmt.Println("credits:   the sender gets one")
		}
		lab.Check(client.Send(message))
		credits--
		fmt.Printf("credits:   message %d leaves, %d left\n", i, credits)
	}
}
