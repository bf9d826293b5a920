package rmem

import (
	"context"
	"fmt"
	"io"
	"testing"

	"cinnabar"
)

// benchSizes are of one operation, in bytes.
var benchSizes = []struct {
	name string
	size int
}{{"4KiB", 4 << 10}, {"1MiB", 1 << 20}}

// benchAddresses are the networks that a server can be on, by what they listen on.
var benchAddresses = []struct{ name, listen, local string }{
	{"ofi+tcp", "ofi+tcp://127.0.0.1:0", "ofi+tcp"}, {"na+sm", "na+sm", "na+sm"},
}

// benchPair makes two engines, or skips where there is no such network.
func benchPair(b *testing.B, listen, local string) (there, here *cinnabar.Engine) {
	b.Helper()
	there, err := cinnabar.Listen(b.Context(), listen, nil)
	if err != nil {
		b.Skipf("no %s here: %v", local, err)
	}
	closing(b, there)
	here, err = cinnabar.Open(b.Context(), local, nil)
	must(b, err)
	closing(b, here)
	return there, here
}

// readWriter is a region, or what is below it.
type readWriter interface {
	io.ReaderAt
	io.WriterAt
}

// benchBoth reads and writes.
func benchBoth(b *testing.B, m readWriter, size int) {
	p := make([]byte, size)
	for _, dir := range []struct {
		name string
		do   func([]byte, int64) (int, error)
	}{{"read", m.ReadAt}, {"write", m.WriteAt}} {
		b.Run(dir.name, func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := dir.do(p, 0); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// benchClient makes a client of a server over the network.
func benchClient(b *testing.B, listen, local string) *Client {
	b.Helper()
	there, here := benchPair(b, listen, local)
	srv, err := Serve(there, Config{Provider: provider})
	must(b, err)
	closing(b, srv)
	return dialFrom(b, here, there)
}

// BenchmarkRegion reads and writes regions at a server over each network. BenchmarkBulk is the same transfer without this
// package, BenchmarkBareRead without the engine.
func BenchmarkRegion(b *testing.B) {
	for _, net := range benchAddresses {
		for _, s := range benchSizes {
			b.Run(net.name+"/"+s.name, func(b *testing.B) {
				c := benchClient(b, net.listen, net.local)
				benchBoth(b, alloc(b, c, int64(s.size)), s.size)
			})
		}
	}
}

// BenchmarkBulk is the transport's own.
func BenchmarkBulk(b *testing.B) {
	for _, net := range benchAddresses {
		for _, s := range benchSizes {
			b.Run(net.name+"/"+s.name, func(b *testing.B) {
				there, here := benchPair(b, net.listen, net.local)
				mem, err := there.Alloc(cinnabar.ReadWrite, int64(s.size))
				must(b, err)
				closing(b, mem)
				ep, err := here.Lookup(there.Addr())
				must(b, err)
				benchBoth(b, bulkRegion{mem.Handle().On(ep)}, s.size)
			})
		}
	}
}

// bulkRegion is a bulk as a region is.
type bulkRegion struct{ cinnabar.RemoteBulk }

func (r bulkRegion) ReadAt(p []byte, off int64) (int, error) {
	return r.RemoteBulk.ReadAt(context.Background(), p, off)
}

func (r bulkRegion) WriteAt(p []byte, off int64) (int, error) {
	return r.RemoteBulk.WriteAt(context.Background(), p, off)
}

// BenchmarkFetchAdd has the server count.
func BenchmarkFetchAdd(b *testing.B) {
	for _, net := range benchAddresses {
		b.Run(net.name, func(b *testing.B) {
			c := benchClient(b, net.listen, net.local)
			r := alloc(b, c, 8)
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				if old, err := r.FetchAdd(context.Background(), 0, 1); err != nil || old != i {
					b.Fatal(fmt.Sprint(old, " want ", i), err)
				}
			}
		})
	}
}
