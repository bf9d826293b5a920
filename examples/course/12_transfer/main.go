// Command 12_transfer sends a file by the protocol of the paper. It is lesson 12 of the course.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

const msgMR, msgReady, msgDone, chunk = 1, 2, 3, 256

// message is the paper's struct message: 24 bytes, in little-endian order.
type message struct {
	ID, _         uint32
	Addr          uint64
	RKey, Padding uint32
}

func main() { lab.Run(iwarp.Config{}, lesson) }

func lesson(ctx context.Context, l *lab.Lab) {
	client, server := l.Pair(ctx)
	file, stored := bytes.Repeat([]byte("content "), 75), new(bytes.Buffer)
	done := make(chan struct{})
	go func() { serve(ctx, server, stored); close(done) }()
	send(ctx, client, "test-file", file)
	<-done
	fmt.Println("the file has arrived unchanged:", bytes.Equal(stored.Bytes(), file))
}

func serve(ctx context.Context, e *lab.End, file *bytes.Buffer) {
	buffer, out := lab.Must(e.Alloc(chunk, verbs.LocalWrite|verbs.RemoteWrite)), lab.Must(e.Alloc(24, 0))
	answer := func(id uint32) { // the receive for the next write goes before the message that allows the write
		lab.Check(e.Receive(0, nil))
		lab.Must(binary.Encode(out.Bytes(), binary.LittleEndian, message{ID: id, Addr: buffer.Remote().Addr, RKey: buffer.RKey()}))
		lab.Check(e.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, 24)}}))
	}
	answer(msgMR)
	for name := ""; ; answer(msgReady) {
		wc := lab.Must(e.Wait(ctx))
		for wc.Op != verbs.WCRecvRDMAImm { // an own message has left
			wc = lab.Must(e.Wait(ctx))
		}
		switch data := buffer.Bytes()[:min(wc.Imm, chunk)]; {
		case len(data) == 0:
			answer(msgDone)
			return
		case name == "":
			name = string(bytes.TrimRight(data, "\x00"))
			fmt.Println("server: opening file", name)
		default:
			file.Write(data)
			fmt.Println("server: received", len(data), "bytes")
		}
	}
}

func send(ctx context.Context, e *lab.End, name string, file []byte) {
	buffer, in, m := lab.Must(e.Alloc(chunk, 0)), lab.Must(e.Alloc(24, verbs.LocalWrite)), message{}
	lab.Check(e.Receive(0, in))
	lab.Must(e.Wait(ctx)) // the message MR
	lab.Must(binary.Decode(in.Bytes(), binary.LittleEndian, &m))
	write := func(event string, data []byte) {
		fmt.Println("client: received", event)
		n := copy(buffer.Bytes(), data)
		lab.Check(e.Receive(0, in))
		lab.Check(e.Send(verbs.SendWR{Op: verbs.OpWriteImm, Flags: verbs.Signaled, SGL: []verbs.SGE{buffer.SGE(0, n)}, Imm: uint32(n), Remote: verbs.RemoteAddr{Addr: m.Addr, RKey: m.RKey}}))
		lab.Must(e.Wait(ctx)) // two completions, in either order: the write is done, so buffer is free here;
		lab.Must(e.Wait(ctx)) // the answer has come, so the buffer of the server is free
	}
	write("MR, sending file name", []byte(name+"\x00"))
	for part := range slices.Chunk(file, chunk) {
		write("READY, sending chunk", part)
	}
	write("READY, sending the end", nil)
	fmt.Println("client: received DONE:", binary.LittleEndian.Uint32(in.Bytes()) == msgDone)
}
