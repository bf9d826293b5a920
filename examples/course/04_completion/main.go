// Command 04_completion shows four ways in which a receiver learns that data has arrived. It is lesson 4 of the course.
package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func main() { lab.Run(iwarp.Config{}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	client, server := l.Pair(ctx)
	words, memory, err := server.Words(8, verbs.LocalWrite|verbs.RemoteWrite)
	lab.Check(err)
	source, out, err := client.Words(8, verbs.RemoteRead)
	lab.Check(err)
	write := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, 64)}, Remote: memory.Remote()}

	// 1. A message behind the write.
	source[7] = 1
	lab.Check(server.Receive(1, nil))
	lab.Must(client.QP.PostSend([]verbs.SendWR{write, {Op: verbs.OpSend}}))
	wc := lab.Must(server.Wait(ctx))
	fmt.Printf("a message:      %s, the last word is %d\n", wc.Op, words[7])
	lab.Must(client.Wait(ctx)) // the write is complete, so source may change

	// 2. A write with immediate data.
	source[7] = 2
	lab.Check(server.Receive(2, nil))
	immediate := write
	immediate.Op, immediate.Imm = verbs.OpWriteImm, 64
	lab.Check(client.Send(immediate))
	wc = lab.Must(server.Wait(ctx))
	fmt.Printf("immediate data: %s of %d, the last word is %d\n", wc.Op, wc.Imm, words[7])
	lab.Must(client.Wait(ctx))

	// 3. The receiver polls the word that the device stores last.
	source[7] = 3
	lab.Check(client.Send(write))
	for atomic.LoadUint64(&words[7]) != 3 {
		runtime.Gosched()
	}
	fmt.Printf("polling:        no completion, the last word is %d\n", words[7])
	lab.Must(client.Wait(ctx))

	// 4. The receiver reads: the completion is that of its own request.
	source[7] = 4
	lab.Check(server.Send(verbs.SendWR{ID: 4, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{memory.SGE(0, 64)}, Remote: out.Remote()}))
	wc = lab.Must(server.Wait(ctx))
	fmt.Printf("reading:        %s, the last word is %d\n", wc.Op, words[7])
}
