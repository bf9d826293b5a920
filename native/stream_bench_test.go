package native_test

import (
	"context"
	"fmt"
	"testing"

	"cinnabar/native"
)

// BenchmarkStream measures elements in one direction: to the server ("up") and to the client ("down").
func BenchmarkStream(b *testing.B) {
	for _, network := range []string{tcp, tcps, "na+sm://", "ofi+verbs://127.0.0.1"} {
		for _, size := range []int{1 << 10, 16 << 20} {
			name := fmt.Sprintf("%s/%d", network[:indexOf(network)], size)
			b.Run(name+"/up", func(b *testing.B) { streamUp(b, network, size) })
			b.Run(name+"/down", func(b *testing.B) { streamDown(b, network, size) })
		}
	}
}

var load = native.NewStream[blob, blob]("load")

func streamUp(b *testing.B, network string, size int) {
	server, ep := pair(b, network, nil, nil)
	must(b, load.Handle(server, func(ctx context.Context, s *native.ServerStream[blob, blob]) error {
		n := 0
		for v, err := range s.Receive(ctx) {
			if err != nil {
				return err
			}
			n += len(v.Data)
		}
		if n != b.N*size {
			return fmt.Errorf("%d bytes, want %d", n, b.N*size)
		}
		return nil
	}))
	v := blob{make([]byte, size)}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	s, err := load.Open(b.Context(), ep)
	must(b, err)
	for range b.N {
		if err := s.Send(b.Context(), v); err != nil {
			b.Fatal(err)
		}
	}
	must(b, s.CloseSend())
	must(b, s.Wait(b.Context()))
}

func streamDown(b *testing.B, network string, size int) {
	server, ep := pair(b, network, nil, nil)
	v := blob{make([]byte, size)}
	must(b, load.Handle(server, func(ctx context.Context, s *native.ServerStream[blob, blob]) error {
		for range b.N {
			if err := s.Send(ctx, v); err != nil {
				return err
			}
		}
		return nil
	}))
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	s, err := load.Open(b.Context(), ep)
	must(b, err)
	n := 0
	for v, err := range s.Receive(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		n += len(v.Data)
	}
	if n != b.N*size {
		b.Errorf("%d bytes, want %d", n, b.N*size)
	}
}

// BenchmarkStreamEcho measures the round trip of one element in a stream.
func BenchmarkStreamEcho(b *testing.B) {
	server, ep := pair(b, tcp, nil, nil)
	must(b, chat.Handle(server, echoStream[int64]))
	s, err := chat.Open(b.Context(), ep)
	must(b, err)
	must(b, s.Send(b.Context(), 0))
	n := 0
	for _, err := range s.Receive(b.Context()) {
		must(b, err)
		if n++; n == b.N {
			break
		}
		must(b, s.Send(b.Context(), 0))
	}
	s.Cancel(nil)
}
