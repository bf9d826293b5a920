// Command 02_write writes into the memory of the other side. It is lesson 2 of the course.
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
	in := lab.Must(client.Alloc(verbs.RegionLen, verbs.LocalWrite))
	lab.Check(client.Receive(1, in))
	lab.Check(server.Receive(2, nil))

	// The server gives its memory to the client: it sends the address, the remote key and the size.
	memory := lab.Must(server.Alloc(64, verbs.LocalWrite|verbs.RemoteWrite))
	place := lab.Must(server.Alloc(verbs.RegionLen, 0))
	copy(place.Bytes(), lab.Must(memory.Region().AppendBinary(nil)))
	lab.Check(server.Send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{place.SGE(0, place.Len())}}))
	lab.Must(server.Wait(ctx))
	lab.Must(client.Wait(ctx))
	region := lab.Must(verbs.ParseRegion(in.Bytes()))
	fmt.Printf("client: the server lends %d bytes\n", region.Size)

	// The client writes. The program of the server takes no part.
	out := lab.Must(client.Alloc(64, 0))
	n := copy(out.Bytes(), "written by the client")
	lab.Check(client.Send(verbs.SendWR{
		ID: 4, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, n)}, Remote: region.Add(8),
	}))
	wc := lab.Must(client.Wait(ctx))
	fmt.Printf("client: request %d is done (%s)\n", wc.ID, wc.Op)
	fmt.Printf("server: %d completions\n", lab.Must(server.CQ.Poll(make([]verbs.WC, 1))))

	// A message behind the write says that the write is there.
	lab.Check(client.Send(verbs.SendWR{ID: 5, Op: verbs.OpSend}))
	wc = lab.Must(server.Wait(ctx))
	fmt.Printf("server: request %d is done (%s), the memory has %q\n", wc.ID, wc.Op, memory.Bytes()[8:8+n])
}
