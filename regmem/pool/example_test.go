package pool_test

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/regmem/pool"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
)

// must ends the example on an error; programs return it.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// store is an RPC: the server pulls the caller's memory.
var store = cinnabar.NewRPC[cinnabar.BulkHandle, int64]("store")

// A server pulls into buffers of a pool, so its requests together never take more than 4 buffers of 64 KiB. Further requests wait.
// parity: G67
func Example() {
	ctx := context.Background()
	engine, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	must(err)
	buffers, err := pool.New(4, func() (*cinnabar.Bulk, error) { return engine.Alloc(cinnabar.WriteOnly, 64<<10) })
	must(err)
	must(store.Handle(engine, func(ctx context.Context, data cinnabar.BulkHandle) (int64, error) {
		buf, err := buffers.Get(ctx) // fails when the caller no longer waits
		if err != nil {
			return 0, err
		}
		defer func() { _ = buffers.Release(buf) }()
		n, err := data.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, buf)
		if err != nil {
			return 0, err
		}
		fmt.Printf("%s\n", buf.Bytes()[:n])
		return n, nil
	}))

	client, err := cinnabar.Open(ctx, "ofi+tcp://127.0.0.1", nil)
	must(err)
	server, err := client.Lookup(engine.Addr())
	must(err)
	data, err := client.Expose(cinnabar.ReadOnly, []byte("a record"))
	must(err)
	n, err := store.Call(ctx, server, data.Handle())
	fmt.Println(n, "bytes,", err)

	must(data.Close())
	must(client.Close())
	must(engine.Shutdown(ctx))
	must(buffers.Close()) // no handler has a buffer any more
	// Output:
	// a record
	// 8 bytes, <nil>
}

// A pool of memory regions of verbs, from which work requests send.
func ExamplePool() {
	dev, err := iwarp.Open(iwarp.Config{})
	must(err)
	pd, err := dev.AllocPD()
	must(err)
	regions, err := pool.New(4, func() (*verbs.MR, error) { return pd.AllocMR(4096, verbs.LocalWrite) })
	must(err)

	mr, err := regions.Get(context.Background())
	must(err)
	n := copy(mr.Bytes(), "a record")
	fmt.Println("a work request sends", mr.SGE(0, n).Length, "bytes of", mr.Len())
	must(regions.Release(mr)) // after the completion of the work request

	must(regions.Close())
	must(pd.Close())
	must(dev.Close())
	// Output: a work request sends 8 bytes of 4096
}

// Buffers of three sizes for requests of different sizes.
// parity: G68
func ExampleSet() {
	engine, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	must(err)
	buffers, err := pool.NewSet(8, []int64{4 << 10, 64 << 10, 1 << 20}, func(size int64) (*cinnabar.Bulk, error) {
		return engine.Alloc(cinnabar.WriteOnly, size)
	})
	must(err)

	buf, err := buffers.Get(context.Background(), 10_000)
	must(err)
	fmt.Println("a buffer of", buf.Len(), "bytes")
	must(buffers.Release(buf))
	_, err = buffers.Get(context.Background(), 2<<20)
	fmt.Println(err)

	must(engine.Close())
	must(buffers.Close())
	// Output:
	// a buffer of 65536 bytes
	// pool: get buffer of 2097152 bytes: larger than the allocator's memory: the buffers of this set have up to 1048576
}
