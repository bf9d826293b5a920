package check

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// Patch checks the exercise of lesson 2.
func Patch(student func(ctx context.Context, client *lab.End, region verbs.Region, offset uint64, data []byte) error) Exercise {
	return func(ctx context.Context) error {
		return withPair(ctx, iwarp.Config{}, func(client, server *lab.End) error {
			memory, err := server.Alloc(32, verbs.LocalWrite|verbs.RemoteWrite)
			if err != nil {
				return err
			}
			want := make([]byte, 32)
			for _, p := range []struct {
				offset uint64
				text   string
			}{{0, "begin"}, {27, "end.."}, {10, "middle"}} {
				if err := student(ctx, client, memory.Region(), p.offset, []byte(p.text)); unsolved(err) {
					return err
				} else if err != nil {
					return fmt.Errorf("write of %q to offset %d of 32 bytes: %w", p.text, p.offset, err)
				}
				copy(want[p.offset:], p.text)
			}
			for _, p := range []struct {
				offset uint64
				size   int
			}{{30, 3}, {33, 1}, {0, 33}, {math.MaxUint64, 2}, {math.MaxUint64 - 1, 8}} {
				if err := student(ctx, client, memory.Region(), p.offset, make([]byte, p.size)); err == nil {
					return fmt.Errorf("write of %d bytes to offset %d of 32 bytes is not refused. The sum of two large numbers may be small: compare without a sum", p.size, p.offset)
				}
			}
			if err := barrier(ctx, client, server); err != nil {
				return fmt.Errorf("a refused write must leave the connection usable, so it is refused before it is posted: %w", err)
			}
			if !bytes.Equal(memory.Bytes(), want) {
				return fmt.Errorf("the memory of the peer has %q, not %q", memory.Bytes(), want)
			}
			return nil
		})
	}
}

// Sum checks the exercise of lesson 3.
func Sum(student func(ctx context.Context, client *lab.End, region verbs.Region) (uint64, error)) Exercise {
	return func(ctx context.Context) error {
		return withPair(ctx, iwarp.Config{}, func(client, server *lab.End) error {
			memory, err := server.Alloc(64, verbs.RemoteRead)
			if err != nil {
				return err
			}
			for _, c := range []struct {
				list []uint64 // value and next of the nodes at 0, 16, 32, 48
				want uint64
				bad  string // the reason of an error
			}{
				{list: []uint64{7, 0}, want: 7},
				{list: []uint64{1, 48, 0, 0, 4, 0, 2, 32}, want: 7},
				{list: []uint64{1, 32, 9, 0, 5, 16}, want: 15},
				{list: []uint64{1, 56}, bad: "a node at offset 56 of 64 bytes ends behind the region"},
				{list: []uint64{1, math.MaxUint64 - 8}, bad: "a node at offset 2^64-9 is not in the region. The sum of two large numbers may be small: compare without a sum"},
				{list: []uint64{1, 16, 1, 16}, bad: "a node that is its own next one makes a list without end: count the nodes"},
			} {
				clear(memory.Bytes())
				for i, v := range c.list {
					binary.BigEndian.PutUint64(memory.Bytes()[8*i:], v)
				}
				got, err := student(ctx, client, memory.Region())
				switch {
				case unsolved(err):
					return err
				case c.bad != "" && err == nil:
					return fmt.Errorf("the function returns %d and no error, although %s", got, c.bad)
				case c.bad == "" && err != nil:
					return fmt.Errorf("list %v: %w", c.list, err)
				case c.bad == "" && got != c.want:
					return fmt.Errorf("list %v: the sum is %d, the function returns %d", c.list, c.want, got)
				}
			}
			if err := barrier(ctx, client, server); err != nil {
				return fmt.Errorf("a refused read must leave the connection usable, so check the offset before the read is posted: %w", err)
			}
			return nil
		})
	}
}

// Collect checks the exercise of lesson 4.
func Collect(student func(ctx context.Context, server *lab.End, memory *verbs.MR, n int) ([]string, error)) Exercise {
	return func(ctx context.Context) error {
		records := []string{"first", "a longer record", "3", "the last one"}
		got, err := collect(ctx, student, records, 0)
		if err != nil {
			return err
		}
		if slices.Contains(got, "") {
			return fmt.Errorf("the function returns %q, and no record is empty: only a completion with HasImm brings a record, and the completion of a send of the function has none", got)
		}
		if !slices.Equal(got, records) {
			return fmt.Errorf("the function returns %q, the peer has written %q. If a record has bytes of a later one, it was not copied before the empty message was sent", got, records)
		}
		if _, err := collect(ctx, student, records[:2], 65); err == nil {
			return errors.New("the function returns no error, although the immediate data of a record is 65 and the memory has 64 bytes")
		}
		return nil
	}
}

// collect runs the function with the records of a peer. If length is not 0, it is the immediate data of all records.
func collect(ctx context.Context, student func(ctx context.Context, server *lab.End, memory *verbs.MR, n int) ([]string, error), records []string, length uint32) (got []string, err error) {
	err = withPair(ctx, iwarp.Config{}, func(client, server *lab.End) error {
		memory, err := server.Alloc(64, verbs.LocalWrite|verbs.RemoteWrite)
		if err != nil {
			return err
		}
		if err := server.Receive(1, nil); err != nil {
			return err
		}
		return beside(ctx, func(ctx context.Context) (err error) {
			got, err = student(ctx, server, memory, len(records))
			return err
		}, func(ctx context.Context) error { return produce(ctx, client, memory.Remote(), records, length) })
	})
	return got, err
}

// produce writes records, each when the peer has asked for it by an empty message.
func produce(ctx context.Context, client *lab.End, to verbs.RemoteAddr, records []string, length uint32) error {
	out, err := client.Alloc(64, 0)
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := client.Receive(1, nil); err != nil {
			return err
		}
		n := copy(out.Bytes(), r+"................................")
		wr := verbs.SendWR{Op: verbs.OpWriteImm, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, n)}, Remote: to, Imm: uint32(len(r))}
		if length != 0 {
			wr.Imm = length
		}
		if err := client.Send(wr); err != nil {
			return err
		}
		for range 2 { // the completions of the write and of the empty message, in either order
			if _, err := wait(ctx, client, fmt.Sprintf("the peer waits for the empty message behind the record %q", r)); err != nil {
				return err
			}
		}
	}
	return nil
}
