package cinnabar_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"strings"

	"cinnabar"
	"cinnabar/regmem/pool"
)

// twoEngines returns two engines of this process, and the second as the first knows it.
func twoEngines() (here, there *cinnabar.Engine, ep *cinnabar.Endpoint) {
	here, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	there, err = cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	ep, err = here.Lookup(there.Addr())
	if err != nil {
		log.Fatal(err)
	}
	return here, there, ep
}

// The server's half of Thallium's tutorial on bulk transfers: the smaller of the two sizes is moved. The handle usually
// comes as an argument of an RPC.
func ExampleRemoteBulk_Pull() {
	here, there, ep := twoEngines()
	defer func() { _, _ = here.Close(), there.Close() }()

	name, err := there.Expose(cinnabar.ReadOnly, []byte("Matthieu\x00"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = name.Close() }()
	handle := name.Handle()

	buf := make([]byte, 6)
	local, err := here.Expose(cinnabar.WriteOnly, buf)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = local.Close() }()
	n, err := handle.On(ep).Pull(context.Background(), local)
	fmt.Printf("%d bytes: %s, %v\n", n, buf[:n], err)

	n, err = handle.On(ep).Slice(5, 3).Pull(context.Background(), local.Slice(2, 3))
	fmt.Printf("%d bytes: %s, %v\n", n, buf, err)
	// Output:
	// 6 bytes: Matthi, <nil>
	// 3 bytes: Maieui, <nil>
}

// Several transfers under way at once.
func ExampleRemoteBulk_StartPull() {
	here, there, ep := twoEngines()
	defer func() { _, _ = here.Close(), there.Close() }()

	words, err := there.Expose(cinnabar.ReadOnly, []byte("alpha"), []byte("beta "), []byte("gamma"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = words.Close() }()
	local, err := here.Alloc(cinnabar.WriteOnly, 15)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = local.Close() }()

	ctx := context.Background()
	remote := words.Handle().On(ep)
	var ops []*cinnabar.Pending[int64]
	for off := int64(0); off < remote.Len(); off += 5 {
		ops = append(ops, remote.Slice(off, 5).StartPull(ctx, local.Slice(off, 5)))
	}
	for i, op := range cinnabar.Completed(ctx, ops...) {
		if _, err := op.Wait(); err != nil {
			log.Fatalf("part %d: %v", i, err)
		}
	}
	fmt.Printf("%s\n", local.Bytes())
	// Output: alphabeta gamma
}

// Remote memory is a reader for what takes one.
func ExampleRemoteBulk_Reader() {
	here, there, ep := twoEngines()
	defer func() { _, _ = here.Close(), there.Close() }()

	text, err := there.Expose(cinnabar.ReadOnly, []byte(strings.Repeat("one line\n", 1000)))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = text.Close() }()

	lines := 0
	for s := bufio.NewScanner(text.Handle().On(ep).Reader(context.Background())); s.Scan(); {
		lines++
	}
	fmt.Println(lines, "lines")
	// Output: 1000 lines
}

// A pool bounds the memory of all requests of a server together. Package regmem/pool has more.
func ExampleBulk_Recycle() {
	here, there, ep := twoEngines()
	defer func() { _, _ = here.Close(), there.Close() }()

	buffers, err := pool.New(4, func() (*cinnabar.Bulk, error) { return here.Alloc(cinnabar.WriteOnly, 64<<10) })
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = buffers.Close() }()
	data, err := there.Expose(cinnabar.ReadOnly, []byte("some data"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = data.Close() }()

	ctx := context.Background()
	buf, err := buffers.Get(ctx) // waits while four are in use
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = buffers.Release(buf) }() // which recycles it
	n, err := data.Handle().On(ep).Pull(ctx, buf)
	fmt.Printf("%s, %v\n", buf.Bytes()[:n], err)
	// Output: some data, <nil>
}
