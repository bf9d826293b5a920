package solutions

import (
	"context"
	"encoding/binary"
	"fmt"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Patch solves the exercise of lesson 2.
func Patch(ctx context.Context, client *lab.End, region verbs.Region, offset uint64, data []byte) error {
	if offset > region.Size || uint64(len(data)) > region.Size-offset {
		return fmt.Errorf("%d bytes at offset %d: the region has %d bytes", len(data), offset, region.Size)
	}
	out, err := client.Alloc(len(data), 0)
	if err != nil {
		return err
	}
	copy(out.Bytes(), data)
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{out.SGE(0, len(data))}, Remote: region.Add(offset)}
	if err := client.Send(wr); err != nil {
		return err
	}
	_, err = client.Wait(ctx)
	return err
}

// Sum solves the exercise of lesson 3.
func Sum(ctx context.Context, client *lab.End, region verbs.Region) (uint64, error) {
	const node = 16
	in, err := client.Alloc(node, verbs.LocalWrite)
	if err != nil {
		return 0, err
	}
	sum, offset := uint64(0), uint64(0)
	for range region.Size / node {
		if offset > region.Size-node {
			return 0, fmt.Errorf("a node at offset %d: the region has %d bytes", offset, region.Size)
		}
		wr := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{in.SGE(0, node)}, Remote: region.Add(offset)}
		if err := client.Send(wr); err != nil {
			return 0, err
		}
		if _, err := client.Wait(ctx); err != nil {
			return 0, err
		}
		sum += binary.BigEndian.Uint64(in.Bytes())
		if offset = binary.BigEndian.Uint64(in.Bytes()[8:]); offset == 0 {
			return sum, nil
		}
	}
	return 0, fmt.Errorf("the list has more nodes than %d bytes have room for", region.Size)
}

// Collect solves the exercise of lesson 4.
func Collect(ctx context.Context, server *lab.End, memory *verbs.MR, n int) ([]string, error) {
	var records []string
	for len(records) < n {
		wc, err := server.Wait(ctx)
		if err != nil {
			return nil, err
		}
		if !wc.HasImm {
			continue // the completion of an empty message
		}
		if int64(wc.Imm) > int64(memory.Len()) {
			return nil, fmt.Errorf("a record of %d bytes: the memory has %d", wc.Imm, memory.Len())
		}
		records = append(records, string(memory.Bytes()[:wc.Imm]))
		if err := server.Receive(1, nil); err != nil {
			return nil, err
		}
		if err := server.Send(verbs.SendWR{Op: verbs.OpSend}); err != nil {
			return nil, err
		}
	}
	return records, nil
}
