package grpcbulk

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// connect starts a server over dst on loopback and returns a connection to it. Both end with the test.
func connect(tb testing.TB, dst []byte) *grpc.ClientConn {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	srv := NewServer(dst)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(l); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() {
		srv.Stop()
		wg.Wait()
	})
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := conn.Close(); err != nil {
			tb.Error(err)
		}
	})
	return conn
}

// pattern returns n bytes that differ from zero memory and from each other's neighbourhood, the same in every run.
func pattern(n int) []byte {
	var seed [32]byte
	b := make([]byte, n)
	if _, err := rand.NewChaCha8(seed).Read(b); err != nil {
		panic(err) // documented never to fail
	}
	return b
}

func TestPut(t *testing.T) {
	for _, size := range []int{0, 1, 4095, 4096, 4097, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			dst := make([]byte, size+1)
			src := pattern(size)
			n, err := Put(t.Context(), connect(t, dst), src, 4096)
			if err != nil || n != uint64(size) {
				t.Fatalf("Put = %d, %v; want %d, nil", n, err, size)
			}
			if !bytes.Equal(dst[:size], src) || dst[size] != 0 {
				t.Error("the server's memory differs from what was put, or was written past its end")
			}
		})
	}
}

func TestPutTooLong(t *testing.T) {
	dst := make([]byte, 100)
	_, err := Put(t.Context(), connect(t, dst), pattern(1<<20), 4096)
	if got := status.Code(err); got != codes.OutOfRange {
		t.Errorf("Put beyond the memory: %v; want code OutOfRange", err)
	}
}

func TestPutBadChunk(t *testing.T) {
	if _, err := Put(t.Context(), connect(t, nil), nil, 0); err == nil {
		t.Error("chunk of 0 bytes accepted")
	}
}

func TestPutCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Put(ctx, connect(t, make([]byte, 1)), pattern(1), 1); status.Code(err) != codes.Canceled {
		t.Errorf("Put with a canceled context: %v; want code Canceled", err)
	}
}

// BenchmarkPut copies 64 MiB per round over loopback.
func BenchmarkPut(b *testing.B) {
	const size = 64 << 20
	for _, chunk := range []int{64 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", chunk>>10), func(b *testing.B) {
			src := pattern(size)
			conn := connect(b, make([]byte, size))
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := Put(b.Context(), conn, src, chunk); err != nil || n != size {
					b.Fatalf("Put = %d, %v", n, err)
				}
			}
		})
	}
}
