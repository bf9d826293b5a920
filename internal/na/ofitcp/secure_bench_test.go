package ofitcp

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"

	"cinnabar/internal/na"
	"cinnabar/internal/tlstest"
)

// BenchmarkSecure compares calls and transfers over TLS with crypto/tls alone.
//
//	call     64 bytes to and fro
//	get      16 MiB from the memory of the peer
//	pingpong 64 bytes to and fro by Read and Write of tls.Conn
//	copy     16 MiB by Read and Write of tls.Conn, and 1 byte back
func BenchmarkSecure(b *testing.B) {
	const small, large = 64, 16 << 20
	local := tlstest.NewCA(b).Local(b)
	server, cl := openEcho(b, secure(local)), openEndpoint(b, secure(local))
	to := addrOf(b, cl, server)
	b.Run("call", func(b *testing.B) {
		c, data := newClient(cl, to, 0), make([]byte, small)
		for b.Loop() {
			c.must(b, data)
		}
	})
	b.Run("get", func(b *testing.B) {
		b.SetBytes(large)
		dst := make([]byte, large)
		_, from := expose(b, server, cl, make([]byte, large), na.ReadOnly)
		c := newCall()
		for b.Loop() {
			cl.Get(&c.op, to, []na.Fragment{{Remote: from, Local: dst}})
			if err := c.wait(b, cl, to); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pingpong", func(b *testing.B) { benchTLS(b, local, small, small) })
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(large)
		benchTLS(b, local, large, 1)
	})
}

// benchTLS sends messages of there bytes over a tls.Conn, each of which is answered by one of back bytes.
func benchTLS(b *testing.B, cfg *tls.Config, there, back int) {
	ln, err := tls.Listen("tcp4", "127.0.0.1:0", cfg)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		s, err := ln.Accept()
		if err != nil {
			return
		}
		in, out := make([]byte, there), make([]byte, back)
		for {
			if _, err := io.ReadFull(s, in); err != nil {
				_ = s.Close()
				return
			}
			if _, err := s.Write(out); err != nil {
				return
			}
		}
	})
	dialed := cfg.Clone()
	dialed.ServerName = "127.0.0.1"
	var c net.Conn
	if c, err = tls.Dial("tcp4", ln.Addr().String(), dialed); err != nil {
		b.Fatal(err)
	}
	out, in := make([]byte, there), make([]byte, back)
	for b.Loop() {
		if _, err := c.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			b.Fatal(err)
		}
	}
	_, _ = c.Close(), ln.Close()
	wg.Wait()
}
