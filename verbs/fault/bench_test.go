package fault_test

import (
	"net/netip"
	"testing"

	"cinnabar/verbs"
)

// benchmarkWrites posts and polls one small write after the other.
func benchmarkWrites(b *testing.B, dev *verbs.Device) {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(16)
	check(err)
	mr, err := pd.AllocMR(4096, verbs.LocalWrite|verbs.RemoteWrite)
	check(err)
	var qps [2]*verbs.QP
	for i := range qps {
		qps[i], err = pd.CreateQP(verbs.QPConfig{SendCQ: cq})
		check(err)
	}
	l, err := verbs.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"))
	check(err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(b.Context())
		if err == nil {
			_, err = r.Accept(b.Context(), qps[1], verbs.ConnParam{})
		}
		accepted <- err
	}()
	_, err = verbs.Dial(b.Context(), qps[0], l.Addr(), verbs.ConnParam{})
	check(err)
	check(<-accepted)
	wrs := []verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, 8)}, Remote: mr.RemoteAt(8)}}
	wc := make([]verbs.WC, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := qps[0].PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		if n, err := cq.Poll(wc); n != 1 || err != nil || wc[0].Status != verbs.StatusSuccess {
			b.Fatalf("Poll = %d, %v, %+v", n, err, wc[0])
		}
	}
	for _, f := range []func() error{qps[0].Close, qps[1].Close, mr.Close, cq.Close, l.Close, pd.Close, dev.Close} {
		check(f())
	}
}
