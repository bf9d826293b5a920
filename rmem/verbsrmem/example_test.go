package verbsrmem_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"cinnabar/rmem"
	"cinnabar/rmem/verbsrmem"
	"cinnabar/verbs/iwarp"
)

// must ends the example on an error; programs return it.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Over a verbs device reads and writes are one-sided: the server's program takes no part in them.
// parity: S22
func Example() {
	ctx := context.Background()
	dev, err := iwarp.Open(iwarp.Config{})
	must(err)
	s, err := verbsrmem.Listen(dev, netip.MustParseAddrPort("127.0.0.1:0"), rmem.Config{})
	must(err)
	c, err := verbsrmem.Dial(ctx, dev, s.Addr())
	must(err)
	r, err := c.Alloc(ctx, 4096)
	must(err)
	_, err = r.WriteAt([]byte("one-sided"), 8)
	must(err)
	old, err := r.FetchAdd(ctx, 0, 7)
	must(err)
	text := make([]byte, 9)
	_, err = r.ReadAt(text, 8)
	must(err)
	fmt.Printf("%d %s\n", old, text)
	must(r.Free(ctx))
	must(c.Close())
	must(s.Close())
	must(dev.Close())
	// Output: 0 one-sided
}
