package native_test

import (
	"context"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/native"
)

// BenchmarkCall compares calls with an envelope with those of package cinnabar.
func BenchmarkCall(b *testing.B) {
	plain := cinnabar.NewRPC[addIn, addOut]("add")
	server, ep := pair(b, tcp, nil, nil)
	must(b, plain.Handle(server, handleAdd))
	must(b, add.Handle(server, handleAdd))
	secured, inTLS := pair(b, tcps, nil, nil)
	must(b, add.Handle(secured, handleAdd))
	deadline, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	for name, call := range map[string]func() (addOut, error){
		"plain":           func() (addOut, error) { return plain.Call(b.Context(), ep, addIn{1, 2}) },
		"native":          func() (addOut, error) { return add.Call(b.Context(), ep, addIn{1, 2}) },
		"native-deadline": func() (addOut, error) { return add.Call(deadline, ep, addIn{1, 2}) },
		"native-tls":      func() (addOut, error) { return add.Call(b.Context(), inTLS, addIn{1, 2}) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCancel measures the time from the cancel of a call to the end of its handler's context, and reports the longest one.
func BenchmarkCancel(b *testing.B) {
	for _, network := range []string{tcp, tcps} {
		b.Run(network[:indexOf(network)], func(b *testing.B) { cancelOver(b, network) })
	}
}

func cancelOver(b *testing.B, network string) {
	server, ep := pair(b, network, nil, nil)
	rpc := native.New[struct{}, struct{}]("wait")
	began, ended := make(chan struct{}), make(chan time.Time)
	must(b, rpc.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- time.Now()
		return struct{}{}, ctx.Err()
	}))
	var sum, longest time.Duration
	for range b.N {
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			_, _ = rpc.Call(ctx, ep, struct{}{}) // it is cancelled
			close(done)
		}()
		<-began
		start := time.Now()
		cancel()
		took := (<-ended).Sub(start)
		sum, longest = sum+took, max(longest, took)
		<-done
	}
	b.ReportMetric(float64(sum)/float64(b.N), "ns/op")
	b.ReportMetric(float64(longest)/1e6, "ms-longest")
}
