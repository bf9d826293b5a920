package check

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Message checks the exercise of lesson 11.
func Message(student func(header, body *verbs.MR, n int) (verbs.SendWR, error)) Exercise {
	const most = 100_000
	return func(ctx context.Context) error {
		return withPair(ctx, iwarp.Config{}, func(client, server *lab.End) error {
			header, err := client.Alloc(16, 0)
			if err != nil {
				return err
			}
			body, err := client.Alloc(most, 0)
			if err != nil {
				return err
			}
			in, err := server.Alloc(16+most, verbs.LocalWrite)
			if err != nil {
				return err
			}
			for i := range body.Bytes() {
				body.Bytes()[i] = byte(i % 251)
			}
			for _, n := range []int{most, 1, 0} {
				binary.BigEndian.PutUint64(header.Bytes(), uint64(n))
				wr, err := student(header, body, n)
				if err != nil {
					return err
				}
				if wr.Op != verbs.OpSend || wr.Flags&verbs.Signaled == 0 {
					return fmt.Errorf("the request is %s with the flags %#x, not a signaled send", wr.Op, wr.Flags)
				}
				if err := server.Receive(1, in); err != nil {
					return err
				}
				if err := client.Send(wr); err != nil {
					return err
				}
				wc, err := wait(ctx, server, fmt.Sprintf("a message of 16 and %d bytes", n))
				if err != nil {
					return err
				}
				if _, err := wait(ctx, client, "the completion of the message"); err != nil {
					return err
				}
				if !bytes.Equal(in.Bytes()[:wc.Len], slices.Concat(header.Bytes(), body.Bytes()[:n])) {
					return fmt.Errorf("the peer has received %d bytes, which are not the 16 bytes of header and the first %d bytes of body", wc.Len, n)
				}
			}
			return nil
		})
	}
}

// WriteChunk checks the exercise of lesson 12.
func WriteChunk(student func(ctx context.Context, client *lab.End, buffer *verbs.MR, n int, to verbs.RemoteAddr) error) Exercise {
	return func(ctx context.Context) error {
		return withPair(ctx, iwarp.Config{NoImmediates: true}, func(client, server *lab.End) error {
			buffer, err := client.Alloc(64, 0)
			if err != nil {
				return err
			}
			memory, err := server.Alloc(64, verbs.LocalWrite|verbs.RemoteWrite)
			if err != nil {
				return err
			}
			in, err := server.Alloc(8, verbs.LocalWrite)
			if err != nil {
				return err
			}
			for _, text := range []string{"the first chunk", "second", ""} {
				if err := server.Receive(1, in); err != nil {
					return err
				}
				clear(memory.Bytes())
				copy(buffer.Bytes(), text+"................................")
				err := beside(ctx,
					func(ctx context.Context) error { return student(ctx, client, buffer, len(text), memory.Remote()) },
					func(ctx context.Context) error {
						wc, err := wait(ctx, server, "the peer waits for the message with the size")
						if err == nil && wc.Len != 4 {
							err = fmt.Errorf("the message behind the write has %d bytes, not 4", wc.Len)
						}
						return err
					})
				if err != nil {
					return err
				}
				n := binary.BigEndian.Uint32(in.Bytes())
				if int(n) != len(text) {
					return fmt.Errorf("the message behind the write has the number %d, the chunk has %d bytes", n, len(text))
				}
				if got := bytes.TrimRight(memory.Bytes(), "\x00"); string(got) != text {
					return fmt.Errorf("the memory of the peer has %q, not %q", got, text)
				}
				left, err := client.CQ.Poll(make([]verbs.WC, 1))
				if err != nil {
					return err
				}
				if left > 0 {
					return errors.New("a completion is left: wait for all that your requests make, or make fewer of them Signaled")
				}
			}
			return nil
		})
	}
}
