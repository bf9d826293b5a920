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
	deadline, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	for name, call := range map[string]func() (addOut, error){
		"plain":           func() (addOut, error) { return plain.Call(b.Context(), ep, addIn{1, 2}) },
		"native":          func() (addOut, error) { return add.Call(b.Context(), ep, addIn{1, 2}) },
		"native-deadline": func() (addOut, error) { return add.Call(deadline, ep, addIn{1, 2}) },
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

// BenchmarkCancel measures the time from the cancel of a call to the end of its handler's context.
func BenchmarkCancel(b *testing.B) {
	server, ep := pair(b, tcp, nil, nil)
	rpc := native.New[struct{}, struct{}]("wait")
	began, ended := make(chan struct{}), make(chan struct{})
	must(b, rpc.Handle(server, func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return struct{}{}, ctx.Err()
	}))
	b.StopTimer()
	for range b.N {
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			_, _ = rpc.Call(ctx, ep, struct{}{}) // it is cancelled
			close(done)
		}()
		<-began
		b.StartTimer()
		cancel()
		<-ended
		b.StopTimer()
		<-done
	}
}
