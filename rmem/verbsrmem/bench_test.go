package verbsrmem

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"

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
