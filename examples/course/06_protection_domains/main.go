// Command 06_protection_domains uses keys of one protection domain in another one. It is lesson 6 of the course.
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
	// Each end of a connection has a domain of its own here: that of its queue pair.
	client, server := l.Pair(ctx)
	in := lab.Must(client.Alloc(64, verbs.LocalWrite))
	data := lab.Must(server.Alloc(64, verbs.RemoteRead))
	fmt.Println("all in their domains:   ", read(ctx, client, in, data))

	// The same device, the same process, the same rights, and another domain.
	other := lab.Must(l.Server.AllocPD())
	defer other.Close()
	foreign := lab.Must(other.AllocMR(64, verbs.RemoteRead))
	defer foreign.Close()
	fmt.Println("remote memory elsewhere:", read(ctx, client, in, foreign))

	client, server = l.Pair(ctx) // the refused read has ended the first connection
	data = lab.Must(server.Alloc(64, verbs.RemoteRead))
	fmt.Println("own memory elsewhere:   ", read(ctx, client, in, data)) // in belongs to the domain of the first connection

	fmt.Println("close a domain in use:  ", other.Close())
}

// read reads 8 bytes and returns the status of the completion.
func read(ctx context.Context, client *lab.End, into, from *verbs.MR) verbs.WCStatus {
	lab.Check(client.Send(verbs.SendWR{
		Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{into.SGE(0, 8)}, Remote: from.Remote(),
	}))
	return lab.Must(client.Next(ctx)).Status
}
