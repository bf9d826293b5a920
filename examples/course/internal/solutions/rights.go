package solutions

import (
	"context"

	"cinnabar/examples/course/internal/lab"
	"cinnabar/verbs"
)

// Lend solves the exercise of lesson 5.
func Lend(server *lab.End, data []byte) (verbs.Region, func() error, error) {
	mr, err := server.PD.RegMR(data, verbs.RemoteRead)
	if err != nil {
		return verbs.Region{}, nil, err
	}
	return mr.Region(), mr.Close, nil
}

// Tenants solves the exercise of lesson 6.
func Tenants(dev *verbs.Device, memories [][]byte) (ends []*lab.End, regions []*verbs.MR, err error) {
	for _, memory := range memories {
		e := new(lab.End)
		ends = append(ends, e)
		if e.PD, err = dev.AllocPD(); err != nil {
			break
		}
		if e.CQ, err = dev.CreateCQ(256); err != nil {
			break
		}
		if e.QP, err = e.PD.CreateQP(verbs.QPConfig{SendCQ: e.CQ}); err != nil {
			break
		}
		var mr *verbs.MR
		if mr, err = e.PD.RegMR(memory, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead); err != nil {
			break
		}
		regions = append(regions, mr)
	}
	return ends, regions, err
}

// Max solves the exercise of lesson 7.
func Max(ctx context.Context, client *lab.End, remote verbs.RemoteAddr, value uint64) error {
	old, result, err := client.Words(1, verbs.LocalWrite)
	if err != nil {
		return err
	}
	for expected := uint64(0); expected < value; expected = old[0] {
		wr := verbs.SendWR{Op: verbs.OpCompareSwap, Flags: verbs.Signaled, SGL: []verbs.SGE{result.SGE(0, 8)}, Remote: remote, CompareAdd: expected, Swap: value}
		if err := client.Send(wr); err != nil {
			return err
		}
		if _, err := client.Wait(ctx); err != nil {
			return err
		}
		if old[0] == expected {
			return nil
		}
	}
	return nil
}

// Stream solves the exercise of lesson 8.
func Stream(ctx context.Context, client *lab.End, messages []string, credits int) error {
	const size = 64
	out, err := client.Alloc(size*len(messages), 0)
	if err != nil {
		return err
	}
	for id := range credits {
		if err := client.Receive(uint64(id), nil); err != nil {
			return err
		}
	}
	free, got := credits, 0
	credit := func() error {
		wc, err := client.Wait(ctx)
		if err != nil {
			return err
		}
		free, got = free+1, got+1
		return client.Receive(wc.ID, nil)
	}
	for i, text := range messages {
		for free == 0 {
			if err := credit(); err != nil {
				return err
			}
		}
		n := copy(out.Bytes()[size*i:][:size], text)
		if err := client.Send(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{out.SGE(size*i, n)}}); err != nil {
			return err
		}
		free--
	}
	for got < len(messages) {
		if err := credit(); err != nil {
			return err
		}
	}
	return nil
}
