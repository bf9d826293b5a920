package solutions

import (
	"context"
	"encoding/binary"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Message solves the exercise of lesson 11.
func Message(header, body *verbs.MR, n int) (verbs.SendWR, error) {
	return verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{header.SGE(0, header.Len()), body.SGE(0, n)}}, nil
}

// WriteChunk solves the exercise of lesson 12.
func WriteChunk(ctx context.Context, client *lab.End, buffer *verbs.MR, n int, to verbs.RemoteAddr) error {
	size, err := client.Alloc(4, 0)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(size.Bytes(), uint32(n))
	_, err = client.QP.PostSend([]verbs.SendWR{
		{Op: verbs.OpWrite, SGL: []verbs.SGE{buffer.SGE(0, n)}, Remote: to},
		{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{size.SGE(0, 4)}},
	})
	if err != nil {
		return err
	}
	_, err = client.Wait(ctx) // the write before the message is done, too
	return err
}
