// Command 11_zero_copy counts the bytes that the devices copy for each operation. It is lesson 11 of the course.
package main

import (
	"context"
	"fmt"
	"runtime"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

const size = 256 << 10 // bytes of each transfer

// NoCRC leaves out the checksum of iWARP, because TCP on the loopback interface loses no bytes.
func main() { lab.Run(iwarp.Config{NoCRC: true}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	client, server := l.Pair(ctx)
	from := lab.Must(client.Alloc(size, verbs.LocalWrite))
	to := lab.Must(server.Alloc(size, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead))
	transfer := func(op verbs.Opcode) {
		lab.Check(client.Send(verbs.SendWR{Op: op, Flags: verbs.Signaled, SGL: []verbs.SGE{from.SGE(0, size)}, Remote: to.Remote()}))
		lab.Must(client.Wait(ctx))
	}

	lab.Check(server.Receive(1, nil))
	measure(l, "write with immediate data", func() {
		transfer(verbs.OpWriteImm)
		lab.Must(server.Wait(ctx))
	})
	measure(l, "read", func() { transfer(verbs.OpRead) })
	lab.Check(server.Receive(2, to))
	measure(l, "send, the receive is posted before", func() {
		transfer(verbs.OpSend)
		lab.Must(server.Wait(ctx))
	})
	measure(l, "send, the receive is posted late", func() {
		transfer(verbs.OpSend)
		for held := uint64(0); held < size; held = l.Server.Stats()["rx_held_bytes"] {
			runtime.Gosched() // until the whole message waits
		}
		lab.Check(server.Receive(3, to))
		lab.Must(server.Wait(ctx))
	})
}

// measure prints the bytes that both devices copy in user space during do.
func measure(l *lab.Lab, name string, do func()) {
	before := copied(l)
	do()
	fmt.Printf("%-34s %6d of %d bytes are copied\n", name+":", copied(l)-before, size)
}

func copied(l *lab.Lab) (n uint64) {
	for _, d := range []*verbs.Device{l.Client, l.Server} {
		s := d.Stats()
		n += s["rx_staged_bytes"] + s["rx_held_bytes"] + s["tx_staged_bytes"]
	}
	return n
}
