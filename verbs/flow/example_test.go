package flow_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"

	"cinnabar/regmem"
	"cinnabar/regmem/arena"
	"cinnabar/verbs"
	"cinnabar/verbs/flow"
	"cinnabar/verbs/iwarp"
)

// must ends the example on an error; programs return it.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// ends makes the two ends of a connection; they are two processes otherwise.
func ends(ctx context.Context, cfg flow.Config) (a, b *flow.Conn, end func()) {
	dev, err := iwarp.Open(iwarp.Config{})
	must(err)
	l, err := flow.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"), cfg)
	must(err)
	accepted := make(chan *flow.Conn)
	go func() {
		c, err := l.Accept(ctx)
		must(err)
		accepted <- c
	}()
	a, err = flow.Dial(ctx, dev, l.Addr(), flow.Config{})
	must(err)
	b = <-accepted
	must(l.Close())
	return a, b, func() {
		must(a.Close())
		must(b.Close())
		must(dev.Close())
	}
}

// The reader has room for one record at a time, so the sender waits until it has released the one before. Nothing is lost,
// and no message comes without a receive.
// parity: S17
func Example() {
	ctx := context.Background()
	a, b, end := ends(ctx, flow.Config{Records: 1})
	defer end()
	sent := make(chan error)
	go func() {
		for _, s := range []string{"one", "two", "three"} {
			if err := a.Send(ctx, []byte(s)); err != nil {
				sent <- err
				return
			}
		}
		sent <- a.CloseWrite()
	}()
	for {
		r, err := b.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		must(err)
		fmt.Printf("%s\n", r.Bytes()) // where the device has put it
		must(r.Release())
	}
	must(<-sent)
	// Output:
	// one
	// two
	// three
}

// A program that builds its records in registered memory sends them without a copy: the connection counts none, and the
// device neither.
// parity: S15 S23
func ExampleConn_SendFrom() {
	ctx := context.Background()
	a, b, end := ends(ctx, flow.Config{})
	defer end()
	mr, err := a.PD().AllocMR(1<<20, 0)
	must(err)
	pool, err := arena.New(arena.Config[*verbs.MR]{}, mr)
	must(err)

	received := make(chan string)
	go func() {
		for range 3 {
			r, err := b.Recv(ctx)
			must(err)
			text := string(r.Bytes()[:9])
			received <- fmt.Sprintf("%s of %d bytes", text, len(r.Bytes()))
			must(r.Release())
		}
	}()
	for i := range 3 {
		record := regmem.NewBuffer[*verbs.MR](pool)
		must(record.Grow(100_000))
		_, err := fmt.Fprintf(record, "record %2d", i)
		must(err)
		_, err = record.Extend(i * 40_000) // to be filled in place
		must(err)
		block, n := record.Take()
		must(a.SendFrom(ctx, []verbs.SGE{block.Region().SGE(block.Offset(), n)}))
		must(block.Free()) // the device is done with it
		fmt.Println(<-received)
	}
	dev := a.PD().Device().Stats()
	fmt.Println("copied:", a.Stats().Copied+b.Stats().Copied, "by the device:", dev["tx_staged_bytes"]+dev["rx_staged_bytes"])
	must(pool.Close())
	must(mr.Close())
	// Output:
	// record  0 of 9 bytes
	// record  1 of 40009 bytes
	// record  2 of 80009 bytes
	// copied: 0 by the device: 0
}

// Beside records, a program reads and writes memory of the peer by an address and a key that the peer has sent.
func ExampleConn_Do() {
	ctx := context.Background()
	a, b, end := ends(ctx, flow.Config{})
	defer end()
	there, err := b.PD().AllocMR(64, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteAtomic)
	must(err)
	copy(there.Bytes()[8:], "lent")
	encoded, err := there.Region().AppendBinary(nil)
	must(err)
	must(b.Send(ctx, encoded))

	r, err := a.Recv(ctx)
	must(err)
	region, err := verbs.ParseRegion(r.Bytes())
	must(err)
	must(r.Release())
	here, err := a.PD().AllocMR(64, verbs.LocalWrite)
	must(err)
	must(a.Do(ctx, verbs.SendWR{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{here.SGE(0, 8)}, Remote: region.RemoteAddr, CompareAdd: 7}))
	must(a.Do(ctx, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{here.SGE(0, 12)}, Remote: region.RemoteAddr}))
	fmt.Printf("%d %s\n", here.Bytes()[0]+here.Bytes()[7], here.Bytes()[8:12]) // 7 in any order of bytes
	must(here.Close())
	must(there.Close())
	// Output: 7 lent
}
