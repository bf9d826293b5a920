// Command 01_send_receive sends a message from one queue pair to another. It is lesson 1 of the course.
package main

import (
	"context"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func main() { lab.Run(iwarp.Config{}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	client, server := l.Pair(ctx)

	// The receiver posts receives: each one names registered memory with room for one message.
	in := lab.Must(server.PD.AllocMR(64, verbs.LocalWrite))
	defer in.Close()
	lab.Must(server.QP.PostRecv([]verbs.RecvWR{
		{ID: 1, SGL: []verbs.SGE{in.SGE(0, 32)}},
		{ID: 2, SGL: []verbs.SGE{in.SGE(32, 32)}},
	}))

	// The sender posts sends: each one names registered memory that holds a message.
	out := lab.Must(client.PD.AllocMR(64, 0))
	defer out.Close()
	copy(out.Bytes(), "firstsecond")
	lab.Must(client.QP.PostSend([]verbs.SendWR{
		{ID: 11, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, 5)}},
		{ID: 12, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(5, 6)}},
	}))

	// Both sides wait for the completions of their requests.
	wc := make([]verbs.WC, 1)
	for range 2 {
		lab.Must(client.CQ.Wait(ctx, wc))
		lab.Check(wc[0].Err())
		fmt.Printf("client: request %d is done (%s)\n", wc[0].ID, wc[0].Op)
	}
	for i := range 2 {
		lab.Must(server.CQ.Wait(ctx, wc))
		lab.Check(wc[0].Err())
		fmt.Printf("server: request %d is done (%s), %d bytes: %q\n", wc[0].ID, wc[0].Op, wc[0].Len, in.Bytes()[32*i:][:wc[0].Len])
	}
}
