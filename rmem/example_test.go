package rmem_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"cinnabar"
	"cinnabar/rmem"
)

// must ends the example on an error; programs return it.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// lending makes a server, which is another process otherwise, and a client of it with its engine. The caller closes the client.
func lending(ctx context.Context) (s *rmem.Server, c *rmem.Client, here *cinnabar.Engine, end func()) {
	there, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1:0", nil)
	must(err)
	s, err = rmem.Serve(there, rmem.Config{Provider: 7, Quota: 1 << 20})
	must(err)
	here, err = cinnabar.Open(ctx, "ofi+tcp", nil)
	must(err)
	server, err := here.Lookup(there.Addr())
	must(err)
	c, err = rmem.Dial(ctx, server.Provider(7))
	must(err)
	return s, c, here, func() {
		must(here.Close())
		must(s.Close())
		must(there.Close())
	}
}

// Remote malloc, use, and free.
// parity: S22
func Example() {
	ctx := context.Background()
	_, c, _, end := lending(ctx)
	defer end()

	r, err := c.Alloc(ctx, 64<<10)
	must(err)
	_, err = r.WriteAt([]byte("far away"), 100)
	must(err)
	text := make([]byte, 8)
	_, err = r.ReadAt(text, 100)
	must(err)
	fmt.Printf("%s\n", text)

	for range 3 {
		_, err = r.FetchAdd(ctx, 0, 5)
		must(err)
	}
	swapped, err := r.CompareAndSwap(ctx, 0, 15, 1)
	fmt.Println(swapped, err)

	_, err = c.Alloc(ctx, 1<<20)
	fmt.Println("over quota:", errors.Is(err, rmem.ErrQuota))
	must(r.Free(ctx))
	_, err = r.ReadAt(text, 0)
	fmt.Println("after free:", errors.Is(err, rmem.ErrFreed))
	must(c.Close())
	// Output:
	// far away
	// true <nil>
	// over quota: true
	// after free: true
}

// A region that is lent for a time belongs to whoever has its token, and a handle lets a third process use it.
// parity: S21
func ExampleOpen() {
	ctx := context.Background()
	s, c, engine, end := lending(ctx)
	defer end()
	r, err := c.AllocLease(ctx, 4096, time.Hour)
	must(err)
	handle, token := r.Handle().String(), r.Token() // print them, or send them somewhere
	_, err = r.WriteAt([]byte("left behind"), 0)
	must(err)
	must(c.Close()) // the region lives on

	h, err := rmem.ParseHandle(handle)
	must(err)
	reader, err := rmem.Open(ctx, engine, h)
	must(err)
	text := make([]byte, 11)
	_, err = reader.ReadAt(text, 0)
	must(err)
	fmt.Printf("%s\n", text)
	fmt.Println("freed by its reader:", !errors.Is(reader.Free(ctx), rmem.ErrNotOwner))

	owner, err := rmem.OpenToken(ctx, engine, token)
	must(err)
	must(owner.Free(ctx))
	fmt.Println("regions:", len(s.Stats().Regions))
	// Output:
	// left behind
	// freed by its reader: false
	// regions: 0
}

// The server's program takes a region back: what comes later fails.
// parity: Y10
func ExampleServer_Revoke() {
	ctx := context.Background()
	s, c, _, end := lending(ctx)
	defer end()
	r, err := c.Alloc(ctx, 4096)
	must(err)
	fmt.Println(s.Revoke(r.ID()))
	_, err = r.WriteAt([]byte("late"), 0)
	fmt.Println(errors.Is(err, rmem.ErrRevoked))
	must(c.Close())
	// Output:
	// true
	// true
}
