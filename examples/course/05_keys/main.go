// Command 05_keys uses keys that a device accepts and keys that it refuses. It is lesson 5 of the course.
package main

import (
	"context"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// ConfirmWrites gives writes the exact statuses that they have on InfiniBand.
func main() { lab.Run(iwarp.Config{ConfirmWrites: true}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	try(ctx, l, "a read", func(*verbs.SendWR, *verbs.MR) {})
	try(ctx, l, "beyond the end", func(wr *verbs.SendWR, _ *verbs.MR) { wr.Remote = wr.Remote.Add(60) })
	try(ctx, l, "a write", func(wr *verbs.SendWR, _ *verbs.MR) { wr.Op = verbs.OpWrite })
	try(ctx, l, "another remote key", func(wr *verbs.SendWR, _ *verbs.MR) { wr.Remote.RKey++ })
	try(ctx, l, "a revoked key", func(_ *verbs.SendWR, mr *verbs.MR) { lab.Check(mr.Close()) })
	try(ctx, l, "another local key", func(wr *verbs.SendWR, _ *verbs.MR) { wr.SGL[0].LKey++ })
}

// try posts a read of 8 bytes that change has changed. Each try has a connection of its own, because a refused one ends its connection.
func try(ctx context.Context, l *lab.Lab, name string, change func(wr *verbs.SendWR, mr *verbs.MR)) {
	client, server := l.Pair(ctx)
	data := lab.Must(server.Alloc(64, verbs.RemoteRead)) // peers may read this region, and not write it
	in := lab.Must(client.Alloc(64, verbs.LocalWrite))
	wr := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{in.SGE(0, 8)}, Remote: data.Remote()}
	change(&wr, data)

	lab.Check(client.Send(wr))
	wc := lab.Must(client.Next(ctx))
	fmt.Printf("%-20s %s, the queue pair is in the state %s\n", name+":", wc.Status, client.QP.State())
}
