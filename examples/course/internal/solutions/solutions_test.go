package solutions

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cinnabar/examples/course/internal/check"
	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"

	sendReceive "cinnabar/examples/course/01_send_receive/exercise"
	write "cinnabar/examples/course/02_write/exercise"
	read "cinnabar/examples/course/03_read/exercise"
	completion "cinnabar/examples/course/04_completion/exercise"
	keys "cinnabar/examples/course/05_keys/exercise"
	domains "cinnabar/examples/course/06_protection_domains/exercise"
	atomics "cinnabar/examples/course/07_atomics/exercise"
	flowControl "cinnabar/examples/course/08_flow_control/exercise"
	ringBuffer "cinnabar/examples/course/09_ring_buffer/exercise"
	allocator "cinnabar/examples/course/10_allocator/exercise"
	zeroCopy "cinnabar/examples/course/11_zero_copy/exercise"
	transfer "cinnabar/examples/course/12_transfer/exercise"
)

// exercises has a check with the solution and with the function as it is delivered, for each exercise.
var exercises = []struct {
	function         string
	solved, unsolved check.Exercise
}{
	{"Echo", check.Echo(Echo), check.Echo(sendReceive.Echo)},
	{"Patch", check.Patch(Patch), check.Patch(write.Patch)},
	{"Sum", check.Sum(Sum), check.Sum(read.Sum)},
	{"Collect", check.Collect(Collect), check.Collect(completion.Collect)},
	{"Lend", check.Lend(Lend), check.Lend(keys.Lend)},
	{"Tenants", check.Tenants(Tenants), check.Tenants(domains.Tenants)},
	{"Max", check.Max(Max), check.Max(atomics.Max)},
	{"Stream", check.Stream(Stream), check.Stream(flowControl.Stream)},
	{"Place", check.Place(Place), check.Place(ringBuffer.Place)},
	{"Alloc", check.Allocator(Alloc, Free), check.Allocator(allocator.Alloc, allocator.Free)},
	{"Free", check.Allocator(Alloc, Free), check.Allocator(Alloc, allocator.Free)},
	{"Message", check.Message(Message), check.Message(zeroCopy.Message)},
	{"WriteChunk", check.WriteChunk(WriteChunk), check.WriteChunk(transfer.WriteChunk)},
}

// The check of each exercise accepts the solution.
// parity: P06
func TestSolutions(t *testing.T) {
	for _, e := range exercises {
		t.Run(e.function, func(t *testing.T) {
			t.Parallel()
			check.Run(t, e.solved)
		})
	}
}

// The check of each exercise refuses the function as it is delivered, and the error names the function, its file and a hint.
func TestUnsolved(t *testing.T) {
	for _, e := range exercises {
		t.Run(e.function, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := e.unsolved(ctx)
			if err == nil {
				t.Fatal("the check accepts the exercise")
			}
			for _, part := range []string{"not solved yet", "the function " + e.function + " in exercise.go", "Hint: "} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not have %q: %v", part, err)
				}
			}
		})
	}
}

// The check of each exercise refuses the mistakes that are made first, and the error has a word about each.
func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		wrong check.Exercise
		word  string
	}{
		"all bytes of the memory": {word: "Len of its completion", wrong: check.Echo(func(ctx context.Context, server *lab.End) error {
			mr, err := server.Alloc(64, verbs.LocalWrite)
			return errors.Join(err, server.Receive(1, mr), next(ctx, server), server.Send(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 64)}}))
		})},
		"memory without LocalWrite": {word: "local protection error", wrong: check.Echo(func(ctx context.Context, server *lab.End) error {
			mr, err := server.Alloc(64, 0)
			if err != nil {
				return err
			}
			if err := server.Receive(1, mr); err != nil {
				return err
			}
			return next(ctx, server)
		})},
		"a sum that overflows": {word: "compare without a sum", wrong: check.Patch(func(ctx context.Context, client *lab.End, region verbs.Region, offset uint64, data []byte) error {
			if offset+uint64(len(data)) > region.Size {
				return errors.New("beyond the end")
			}
			if offset > region.Size {
				return nil // as a write that iWARP reports as complete, and that the peer refuses
			}
			return Patch(ctx, client, region, offset, data)
		})},
		"a list without end": {word: "count the nodes", wrong: check.Sum(func(ctx context.Context, client *lab.End, region verbs.Region) (uint64, error) {
			sum, err := Sum(ctx, client, region)
			if err != nil && strings.Contains(err.Error(), "more nodes") {
				return sum, nil
			}
			return sum, err
		})},
		"unchecked immediate data": {word: "immediate data of a record is 65", wrong: check.Collect(func(ctx context.Context, server *lab.End, memory *verbs.MR, n int) (records []string, err error) {
			for len(records) < n {
				wc, err := server.Wait(ctx)
				if err != nil {
					return nil, err
				}
				records = append(records, string(memory.Bytes()[:min(wc.Imm, 64)]))
				if err := errors.Join(server.Receive(1, nil), server.Send(verbs.SendWR{Op: verbs.OpSend})); err != nil {
					return nil, err
				}
			}
			return records, nil
		})},
		"own completions as records": {word: "a completion with HasImm", wrong: check.Collect(func(ctx context.Context, server *lab.End, memory *verbs.MR, n int) (records []string, err error) {
			for len(records) < n {
				wc, err := server.Wait(ctx)
				if err != nil {
					return nil, err
				}
				records = append(records, string(memory.Bytes()[:wc.Imm]))
				if err := errors.Join(server.Receive(1, nil), server.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled})); err != nil {
					return nil, err
				}
			}
			return records, nil
		})},
		"a key that stays": {word: "leaves an object open", wrong: check.Lend(func(server *lab.End, data []byte) (verbs.Region, func() error, error) {
			mr, err := server.PD.RegMR(data, verbs.RemoteRead)
			return mr.Region(), func() error { return nil }, err
		})},
		"a return before the last credits": {word: "before the peer has sent a credit for each message", wrong: check.Stream(func(ctx context.Context, client *lab.End, messages []string, credits int) error {
			for id := range credits {
				if err := client.Receive(uint64(id), nil); err != nil {
					return err
				}
			}
			for i, m := range messages {
				if i >= credits {
					if err := errors.Join(next(ctx, client), client.Receive(0, nil)); err != nil {
						return err
					}
				}
				mr, err := client.Alloc(64, 0)
				if err != nil {
					return err
				}
				if err := client.Send(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, copy(mr.Bytes(), m))}}); err != nil {
					return err
				}
			}
			return nil
		})},
		"a copy is lent": {word: "not a copy", wrong: check.Lend(func(server *lab.End, data []byte) (verbs.Region, func() error, error) {
			return Lend(server, bytes.Clone(data))
		})},
		"too many rights": {word: "lent for reading", wrong: check.Lend(func(server *lab.End, data []byte) (verbs.Region, func() error, error) {
			mr, err := server.PD.RegMR(data, verbs.RemoteRead|verbs.LocalWrite|verbs.RemoteWrite)
			return mr.Region(), mr.Close, err
		})},
		"one domain for all": {word: "reads the memory of tenant", wrong: check.Tenants(func(dev *verbs.Device, memories [][]byte) (ends []*lab.End, regions []*verbs.MR, err error) {
			pd, err := dev.AllocPD()
			for i := 0; i < len(memories) && err == nil; i++ {
				e, mr := new(lab.End), new(verbs.MR)
				if e.CQ, err = dev.CreateCQ(256); err == nil {
					if e.QP, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.CQ}); err == nil {
						mr, err = pd.RegMR(memories[i], verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
					}
				}
				ends, regions = append(ends, e), append(regions, mr)
			}
			ends[len(ends)-1].PD = pd // the last end closes it
			return ends, regions, err
		})},
		"one compare and swap": {word: "not 5", wrong: check.Max(func(ctx context.Context, client *lab.End, remote verbs.RemoteAddr, value uint64) error {
			_, mr, err := client.Words(1, verbs.LocalWrite)
			wr := verbs.SendWR{Op: verbs.OpCompareSwap, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: remote, CompareAdd: 1, Swap: value}
			return errors.Join(err, client.Send(wr), next(ctx, client))
		})},
		"no skip at the end": {word: "and not 0, true", wrong: check.Place(func(size, head, tail, blocks, n int) (int, bool, error) {
			return head % size, blocks == 0 || n <= size-head, nil
		})},
		"first fit": {word: "The best fit is", wrong: check.Allocator(func(free []lab.Chunk, n int) (lab.Chunk, []lab.Chunk, bool, error) {
			block, left, ok, err := Alloc(free[:1], n)
			return block, append(left, free[1:]...), ok, err
		}, Free)},
		"no coalescing": {word: "touch or are not in order", wrong: check.Allocator(Alloc, func(free []lab.Chunk, block lab.Chunk) ([]lab.Chunk, error) {
			if _, err := Free(slices.Clone(free), block); err != nil {
				return nil, err
			}
			return append(free, block), nil
		})},
		"only the header": {word: "the first 100000 bytes of body", wrong: check.Message(func(header, _ *verbs.MR, _ int) (verbs.SendWR, error) {
			return verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{header.SGE(0, 16)}}, nil
		})},
		"immediate data": {word: "unsupported operation", wrong: check.WriteChunk(func(ctx context.Context, client *lab.End, buffer *verbs.MR, n int, to verbs.RemoteAddr) error {
			return client.Send(verbs.SendWR{Op: verbs.OpWriteImm, Imm: uint32(n), SGL: []verbs.SGE{buffer.SGE(0, n)}, Remote: to})
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.wrong(ctx); err == nil || !strings.Contains(err.Error(), c.word) {
				t.Errorf("the error does not have %q: %v", c.word, err)
			}
		})
	}
}

// next waits for a good completion.
func next(ctx context.Context, e *lab.End) error {
	_, err := e.Wait(ctx)
	return err
}
