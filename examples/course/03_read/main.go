// Command 03_read reads the memory of the other side. It is lesson 3 of the course.
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

	// The server has data, and lends it for reading. From here on its program does nothing.
	data := lab.Must(server.Alloc(64, verbs.RemoteRead))
	copy(data.Bytes(), "data of the server")
	region := data.Region() // lesson 2 sends it in a message

	// The client reads into memory of its own: the device writes there, so that memory has the right LocalWrite.
	in := lab.Must(client.Alloc(64, verbs.LocalWrite))
	lab.Check(client.Send(verbs.SendWR{
		ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{in.SGE(0, 18)}, Remote: region.RemoteAddr,
	}))
	wc := lab.Must(client.Wait(ctx))
	fmt.Printf("client: request %d is done (%s), %d bytes: %q\n", wc.ID, wc.Op, wc.Len, in.Bytes()[:wc.Len])

	// Two parts of the region by two reads, which are under way at the same time.
	lab.Must(client.QP.PostSend([]verbs.SendWR{
		{ID: 2, Op: verbs.OpRead, SGL: []verbs.SGE{in.SGE(0, 6)}, Remote: region.Add(12)},
		{ID: 3, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{in.SGE(6, 8)}, Remote: region.Add(4)},
	}))
	wc = lab.Must(client.Wait(ctx))
	fmt.Printf("client: request %d is done (%s), and with it request 2: %q\n", wc.ID, wc.Op, in.Bytes()[:14])
	fmt.Printf("server: %d completions\n", lab.Must(server.CQ.Poll(make([]verbs.WC, 1))))
}
