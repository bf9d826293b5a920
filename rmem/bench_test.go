package rmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"cinnabar"
	"cinnabar/internal/devicetest"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
	"cinnabar/verbs/iwarp"
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

// BenchmarkBulkVerbs is the device's own: reads, and writes that are done when the peer has them, of memory that is
// registered once.
func BenchmarkBulkVerbs(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(s.name, func(b *testing.B) {
			dev, err := iwarp.Open(iwarp.Config{})
			must(b, err)
			closing(b, dev)
			l, err := flow.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"), flow.Config{})
			must(b, err)
			closing(b, l)
			accepted := make(chan *flow.Conn, 1)
			go func() {
				c, err := l.Accept(devicetest.Context(b))
				if err != nil {
					b.Error(err)
				}
				accepted <- c
			}()
			c, err := flow.Dial(devicetest.Context(b), dev, l.Addr(), flow.Config{})
			must(b, err)
			p := <-accepted
			there, err := p.PD().AllocMR(s.size, lent)
			must(b, err)
			here, err := c.PD().AllocMR(s.size, verbs.LocalWrite)
			must(b, err)
			benchBoth(b, deviceRegion{c, here, there.Remote()}, s.size)
			must(b, errors.Join(here.Close(), there.Close(), c.Close(), p.Close()))
		})
	}
}

// deviceRegion is a peer's memory as a region is, for reads into and writes from one place.
type deviceRegion struct {
	c    *flow.Conn
	here *verbs.MR
	to   verbs.RemoteAddr
}

func (r deviceRegion) ReadAt(p []byte, _ int64) (int, error) {
	return len(p), r.c.Do(context.Background(), verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{r.here.SGE(0, len(p))}, Remote: r.to})
}

func (r deviceRegion) WriteAt(p []byte, _ int64) (int, error) {
	write := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{r.here.SGE(0, len(p))}, Remote: r.to}
	return len(p), r.c.Do(context.Background(), write, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{r.c.Discard()}, Remote: r.to})
}

// bulkRegion is a bulk as a region is.
type bulkRegion struct{ cinnabar.RemoteBulk }

func (r bulkRegion) ReadAt(p []byte, off int64) (int, error) {
	return r.RemoteBulk.ReadAt(context.Background(), p, off)
}

func (r bulkRegion) WriteAt(p []byte, off int64) (int, error) {
	return r.RemoteBulk.WriteAt(context.Background(), p, off)
}

// BenchmarkVerbs reads and writes regions of a device.
func BenchmarkVerbs(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(s.name, func(b *testing.B) {
			dev, err := iwarp.Open(iwarp.Config{})
			must(b, err)
			closing(b, dev)
			benchBoth(b, alloc(b, verbsClient(b, dev), int64(s.size)), s.size)
		})
	}
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
