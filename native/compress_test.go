package native_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// counting counts the uses of a Compressor.
type counting struct {
	native.Compressor
	compressed, decompressed atomic.Int32
	claim                    func(b []byte) []byte // changes compressed bytes; nil: none
}

func (c *counting) Compress(dst, src []byte) ([]byte, error) {
	c.compressed.Add(1)
	b, err := c.Compressor.Compress(dst, src)
	if c.claim != nil {
		b = c.claim(b)
	}
	return b, err
}

func (c *counting) Decompress(dst, src []byte) error {
	c.decompressed.Add(1)
	return c.Compressor.Decompress(dst, src)
}

// TestCompression sends compressed and plain data between programs that declare a Compressor and programs that do not.
// parity: A04
func TestCompression(t *testing.T) {
	text := bytes.Repeat([]byte("cinnabar "), 100000)
	noise := make([]byte, 10000)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(noise)
	onNetworks(t, func(t *testing.T, network string) {
		for _, c := range []struct {
			name           string
			data           []byte
			client, server bool  // declare a Compressor
			args, results  int32 // uses of it
			code           codes.Code
		}{
			{"text", text, true, true, 1, 1, 0},
			{"short", text[:100], true, true, 0, 0, 0},
			{"noise", noise, true, true, 0, 0, 0},
			{"neither", text, false, false, 0, 0, 0},
			{"server alone", text, false, true, 0, 0, 0},
			{"client alone", text, true, false, 0, 0, codes.ProtoNoSupport},
			{"client alone, short", text[:100], true, false, 0, 0, 0},
		} {
			t.Run(c.name, func(t *testing.T) {
				client, server := &counting{Compressor: native.Gzip(gzip.BestSpeed)}, &counting{Compressor: native.Gzip(gzip.BestSpeed)}
				rpc := func(declared bool, by *counting) *native.RPC[blob, blob] {
					if declared {
						return native.New[blob, blob]("echo", native.WithCompressor(by))
					}
					return native.New[blob, blob]("echo")
				}
				engine, ep := pair(t, network, nil, nil)
				must(t, rpc(c.server, server).Handle(engine, handleEcho))
				out, err := rpc(c.client, client).Call(patient(t), ep, blob{c.data})
				if c.code != 0 {
					wantError(t, err, c.code, `compressed with "gzip", which RPC "echo" does not declare here`)
					return
				}
				if err != nil || !bytes.Equal(out.Data, c.data) {
					t.Errorf("%d bytes, %v", len(out.Data), err)
				}
				if server.decompressed.Load() != c.args || client.decompressed.Load() != c.results {
					t.Errorf("decompressed %d arguments and %d results, want %d and %d", server.decompressed.Load(), client.decompressed.Load(), c.args, c.results)
				}
			})
		}
	})
}

// TestBomb sends few compressed bytes that stand for more than MaxOverflow, to either side. They are not decompressed.
// parity: A04
func TestBomb(t *testing.T) {
	small := &cinnabar.Config{MaxOverflow: 1 << 20}
	zeros := make([]byte, 2<<20)
	c := &counting{Compressor: native.Gzip(gzip.BestCompression)}
	rpc := native.New[blob, blob]("echo", native.WithCompressor(c))
	for _, side := range []string{"server", "client"} {
		t.Run(side, func(t *testing.T) {
			var cfg [2]*cinnabar.Config
			in, out := zeros, []byte(nil)
			if cfg[0] = small; side == "client" {
				cfg[0], cfg[1], in, out = nil, small, nil, zeros
			}
			server, ep := pair(t, tcp, cfg[0], cfg[1])
			must(t, rpc.Handle(server, func(context.Context, blob) (blob, error) { return blob{out}, nil }))
			before := c.decompressed.Load()
			_, err := rpc.Call(patient(t), ep, blob{in})
			wantError(t, err, codes.Overflow, "that stand for 2097160 after decompression, at most 1048576 are accepted (Config.MaxOverflow)")
			if c.decompressed.Load() != before {
				t.Error("the data is decompressed")
			}
		})
	}
}

// TestBudget checks that decompressed arguments count against OverflowBudget, and count no more after the call.
func TestBudget(t *testing.T) {
	cfg := &cinnabar.Config{MaxOverflow: 1 << 20, OverflowBudget: 3 << 19}
	server, ep := pair(t, tcp, cfg, nil)
	rpc := native.New[blob, struct{}]("hold", native.WithCompressor(native.Gzip(gzip.BestSpeed)))
	began, release := make(chan struct{}, 2), make(chan struct{})
	must(t, rpc.Handle(server, func(context.Context, blob) (struct{}, error) {
		began <- struct{}{}
		<-release
		return struct{}{}, nil
	}))
	in, result := blob{make([]byte, 1<<20-100)}, make(chan error)
	go func() {
		_, err := rpc.Call(patient(t), ep, in)
		result <- err
	}()
	soon(t, "handler", began)
	_, err := rpc.Call(patient(t), ep, in)
	wantError(t, err, codes.Again, "Config.OverflowBudget")
	close(release)
	must(t, soon(t, "result", result))
	waitUntil(t, "the first arguments count no more", func() bool { return server.Stats().OverflowBytes == 0 })
	_, err = rpc.Call(patient(t), ep, in)
	must(t, err)
}

// TestCorrupt changes compressed bytes on their way.
func TestCorrupt(t *testing.T) {
	server, ep := pair(t, tcp, nil, nil)
	must(t, native.New[blob, blob]("echo", native.WithCompressor(native.Gzip(gzip.BestSpeed))).Handle(server, handleEcho))
	for _, c := range []struct {
		want  string
		claim func(b []byte) []byte
	}{
		{"gzip: invalid header", func(b []byte) []byte { return append([]byte{0}, b[1:]...) }},
		{"gzip: invalid checksum", func(b []byte) []byte { b[len(b)-5] ^= 1; return b }},
		{"bytes behind the compressed data", func(b []byte) []byte { return append(b, 0) }},
		{"unexpected EOF", func(b []byte) []byte { return b[:len(b)-9] }},
	} {
		bad := native.New[blob, blob]("echo", native.WithCompressor(&counting{Compressor: native.Gzip(gzip.BestSpeed), claim: c.claim}))
		_, err := bad.Call(patient(t), ep, blob{bytes.Repeat([]byte("cinnabar "), 1000)})
		wantError(t, err, codes.ProtocolError, c.want)
	}
}

// TestGzipLength decompresses to more and to fewer bytes than there are.
func TestGzipLength(t *testing.T) {
	g := native.Gzip(gzip.DefaultCompression)
	for range 2 { // the second time with the reader and the writer of the first
		b, err := g.Compress([]byte("front"), []byte("some text"))
		must(t, err)
		if string(b[:5]) != "front" {
			t.Errorf("compressed data overwrites what is before it: %q", b)
		}
		dst := make([]byte, 9)
		if must(t, g.Decompress(dst, b[5:])); string(dst) != "some text" {
			t.Errorf("decompressed %q", dst)
		}
		for _, n := range []int{0, 8, 10} {
			if err := g.Decompress(make([]byte, n), b[5:]); err == nil {
				t.Errorf("9 bytes are decompressed to %d", n)
			}
		}
	}
}
