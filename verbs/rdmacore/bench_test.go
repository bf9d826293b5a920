//go:build linux

package rdmacore_test

import (
	"errors"
	"fmt"
	"testing"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacore"
)

// BenchmarkPostRecv is the cost of a work request by the size of the batch that
// it crosses to C in. Receives are not sent anywhere, so little else is measured.
func BenchmarkPostRecv(b *testing.B) {
	const depth = 4096
	dev, err := rdmacore.Open(testDevice(b))
	if err != nil {
		b.Fatal(err)
	}
	mr, qp := benchQP(b, dev, depth)
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			wrs := make([]verbs.RecvWR, batch)
			for i := range wrs {
				wrs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(0, 8)}}
			}
			b.ReportAllocs()
			posted := 0
			for b.Loop() {
				if posted+batch > depth {
					b.StopTimer()
					empty(b, qp)
					posted = 0
					b.StartTimer()
				}
				if _, err := qp.PostRecv(wrs); err != nil {
					b.Fatal(err)
				}
				posted += batch
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/request")
			empty(b, qp)
		})
	}
}

// BenchmarkPoll is the cost of a poll that finds nothing: one crossing.
func BenchmarkPoll(b *testing.B) {
	dev, err := rdmacore.Open(testDevice(b))
	if err != nil {
		b.Fatal(err)
	}
	cq, err := dev.CreateCQ(16)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := errors.Join(cq.Close(), dev.Close()); err != nil {
			b.Error(err)
		}
	}()
	wc := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := cq.Poll(wc); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// A batch of 16 requests, or of as many as a crossing takes, crosses to C once.
// parity(vm): V44 D42
func TestBatchCrossesOnce(t *testing.T) {
	const most = 64
	dev, err := rdmacore.Open(testDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	mr, qp := benchQP(t, dev, 4*most)
	wrs := make([]verbs.RecvWR, most+1)
	for i := range wrs {
		wrs[i].SGL = []verbs.SGE{mr.SGE(0, 8)}
	}
	for _, tt := range []struct{ requests, crossings int }{{1, 1}, {16, 1}, {most, 1}, {most + 1, 2}} {
		before := dev.Stats()["crossings"]
		if _, err := qp.PostRecv(wrs[:tt.requests]); err != nil {
			t.Fatal(err)
		}
		if got := dev.Stats()["crossings"] - before; got != uint64(tt.crossings) {
			t.Errorf("%d requests: %d crossings, want %d", tt.requests, got, tt.crossings)
		}
	}
}

// benchQP makes a queue pair that is never connected.
func benchQP(b testing.TB, dev *verbs.Device, depth int) (*verbs.MR, *verbs.QP) {
	b.Helper()
	cq, err := dev.CreateCQ(1)
	if err != nil {
		b.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		b.Fatal(err)
	}
	mr, err := pd.AllocMR(4096, verbs.LocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxRecvWR: depth})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, c := range []func() error{qp.Close, mr.Close, cq.Close, pd.Close, dev.Close} {
			if err := c(); err != nil {
				b.Error(err)
			}
		}
	})
	return mr, qp
}

// empty takes the receives back.
func empty(b *testing.B, qp *verbs.QP) {
	b.Helper()
	for _, to := range []verbs.QPState{verbs.StateReset, verbs.StateInit} {
		if err := qp.Modify(verbs.QPAttr{Mask: verbs.AttrState, State: to}); err != nil {
			b.Fatal(err)
		}
	}
}
