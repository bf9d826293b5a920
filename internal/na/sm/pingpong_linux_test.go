package sm

import (
	"bytes"
	"fmt"
	"testing"
)

func TestEcho(t *testing.T) {
	server, h := serve(t, Config{})
	client := open(t, Config{})
	c := newCaller(client, lookup(t, client, server.own.String()))
	for _, n := range []int{0, 1, 40, 255, 256, 257, 4095, 4096, 0, 1000} {
		want := bytes.Repeat([]byte{byte(n), byte(n >> 3), 7}, n/3+1)[:n]
		got, err := c.call(t, want)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
	if n := h.requests.Load(); n != 10 {
		t.Errorf("%d requests, want 10", n)
	}
}

// bench makes calls of n bytes, one at a time.
func bench(b *testing.B, server string, n int) {
	client := open(b, Config{})
	to := lookup(b, client, server)
	send, recv := newSignal(), newSignal()
	msg, buf := make([]byte, n), make([]byte, bufferSize)
	b.ReportAllocs()
	for tag := uint32(1); b.Loop(); tag++ {
		send.ev.Reset()
		recv.ev.Reset()
		client.RecvExpected(&recv.op, to, tag, buf)
		client.SendRequest(&send.op, to, tag, msg)
		client.Drive(to, &recv.ev)
		<-send.ch
		<-recv.ch
		if recv.op.Err != nil {
			b.Fatal(recv.op.Err)
		}
	}
}

func BenchmarkPingPong(b *testing.B) {
	b.Run("process", func(b *testing.B) {
		server, _ := serve(b, Config{})
		bench(b, server.own.String(), 64)
	})
	for _, n := range []int{64, 1024, 4096} {
		b.Run(fmt.Sprintf("processes/%d", n), func(b *testing.B) {
			s := start(b, "server")
			bench(b, s.expect("ready "), n)
		})
	}
}
