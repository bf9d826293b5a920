// Command 07_atomics changes a word in the memory of the other side by atomic operations. It is lesson 7 of the course.
package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

func main() { lab.Run(iwarp.Config{}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	client, server := l.Pair(ctx)
	word, region, err := server.Words(1, verbs.LocalWrite|verbs.RemoteAtomic)
	lab.Check(err)
	old, result, err := client.Words(1, verbs.LocalWrite) // where the device stores the value that the word had before
	lab.Check(err)

	do := func(op verbs.Opcode, compareAdd, swap uint64) uint64 {
		lab.Check(client.Send(verbs.SendWR{
			Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{result.SGE(0, 8)}, Remote: region.Remote(),
			CompareAdd: compareAdd, Swap: swap,
		}))
		lab.Must(client.Wait(ctx))
		return old[0]
	}

	fmt.Println("fetch and add 5:        the word was", do(verbs.OpFetchAdd, 5, 0))
	fmt.Println("fetch and add 3:        the word was", do(verbs.OpFetchAdd, 3, 0))
	fmt.Println("if it is 8, set it 100: the word was", do(verbs.OpCompareSwap, 8, 100))
	fmt.Println("if it is 8, set it 200: the word was", do(verbs.OpCompareSwap, 8, 200))
	fmt.Printf("server: the word is %d, %d completions\n", atomic.LoadUint64(&word[0]), lab.Must(server.CQ.Poll(make([]verbs.WC, 1))))
}
