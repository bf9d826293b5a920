package cinnabar_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo"
)

// inCpp is the flavour of the RPCs of Thallium's examples, whose programs can be the other end of these.
var inCpp = cinnabar.WithFlavor(cinnabar.Thallium)

// The arguments of several examples: void sum(const tl::request&, int x, int y).
type twoInts struct{ X, Y int32 }

var (
	cppHello = cinnabar.NewOneWay[struct{}]("hello", inCpp)
	cppNamed = cinnabar.NewOneWay[string]("hello", inCpp)
	cppSum   = cinnabar.NewRPC[twoInts, int32]("sum", inCpp)
	cppMult  = cinnabar.NewRPC[twoInts, int32]("mult", inCpp)
)

// onLoopback makes a server and an endpoint of it, whose engine is the server's too.
func onLoopback() (*cinnabar.Engine, *cinnabar.Endpoint) {
	e, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", nil)
	check(err)
	return e, e.Self()
}

// check ends an example that goes wrong.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func add(_ context.Context, in twoInts) (int32, error) { return in.X + in.Y, nil }

// 00_init: an engine is made for an address or a protocol and ends when it is told to. Nothing waits for it unasked.
// parity: T01 T75
func Example_thallium00Init() {
	server, _ := onLoopback()
	fmt.Println("listening:", server.State(0).Listening)
	check(server.Shutdown(context.Background()))
	<-server.Done() // wait_for_finalize
	// Output: listening: true
}

// 01_hello: disable_response on both sides is the type OneWay.
// parity: T75
func Example_thallium01Hello() {
	server, ep := onLoopback()
	defer server.Close()
	said := make(chan struct{})
	check(cppHello.Handle(server, func(context.Context, struct{}) error {
		fmt.Println("Hello World!")
		close(said)
		return nil
	}))
	check(cppHello.Send(context.Background(), ep, struct{}{}))
	<-said // nothing else tells the client
	// Output: Hello World!
}

// 02_sum: several arguments are the fields of a struct; the result is what the handler returns.
// parity: T75
func Example_thallium02Sum() {
	server, ep := onLoopback()
	defer server.Close()
	check(cppSum.Handle(server, add))
	ret, err := cppSum.Call(context.Background(), ep, twoInts{42, 63})
	check(err)
	fmt.Println("Server answered", ret)
	// Output: Server answered 105
}

// 03_lambda: a handler is a function, a closure or a method value.
// parity: T06 T75
func Example_thallium03Lambda() {
	server, ep := onLoopback()
	defer server.Close()
	calls := make(chan string, 1)
	check(cppMult.Handle(server, func(_ context.Context, in twoInts) (int32, error) {
		calls <- fmt.Sprintf("Computing %d*%d", in.X, in.Y)
		return in.X * in.Y, nil
	}))
	ret, err := cppMult.Call(context.Background(), ep, twoInts{42, 63})
	check(err)
	fmt.Println(<-calls)
	fmt.Println("Server answered", ret)
	// Output:
	// Computing 42*63
	// Server answered 2646
}

// 04_stop: a handler ends its engine. The answer is still sent, and callbacks run.
// parity: T03 T10
func Example_thallium04Stop() {
	server, _ := onLoopback()
	server.OnClose(func() { fmt.Println("Finalization was called") })
	check(cppSum.Handle(server, func(ctx context.Context, in twoInts) (int32, error) {
		return in.X + in.Y, server.Shutdown(ctx) // returns at once to a handler
	}))
	client, err := cinnabar.Open(context.Background(), "ofi+tcp://127.0.0.1", nil)
	check(err)
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	check(err)
	ret, err := cppSum.Call(context.Background(), ep, twoInts{42, 63})
	check(err)
	<-server.Done()
	fmt.Println("Server answered", ret)
	// Output:
	// Finalization was called
	// Server answered 105
}

// 05_stl: strings, vectors, maps and the rest are Go's.
// parity: T75
func Example_thallium05STL() {
	server, ep := onLoopback()
	defer server.Close()
	said := make(chan struct{})
	check(cppNamed.Handle(server, func(_ context.Context, name string) error {
		fmt.Println("Hello", name)
		close(said)
		return nil
	}))
	check(cppNamed.Send(context.Background(), ep, "Matthieu"))
	<-said
	// Output: Hello Matthieu
}

// vector3 is a class with three members that its serialize function writes in this order.
type vector3 struct{ X, Y, Z float64 }

// 06_custom: a class is a struct.
// parity: T54
func Example_thallium06Custom() {
	type twoVectors struct{ P, Q vector3 }
	dot := cinnabar.NewRPC[twoVectors, float64]("dot_product", inCpp)
	server, ep := onLoopback()
	defer server.Close()
	check(dot.Handle(server, func(_ context.Context, in twoVectors) (float64, error) {
		return in.P.X*in.Q.X + in.P.Y*in.Q.Y + in.P.Z*in.Q.Z, nil
	}))
	ret, err := dot.Call(context.Background(), ep, twoVectors{vector3{1, 2, 3}, vector3{5, 2, 4}})
	check(err)
	fmt.Println("Dot product :", ret)
	// Output: Dot product : 21
}

// 07_rdma: the handler pulls as much as it has room for and answers, so that the client knows when its memory is free.
// parity: T75
func Example_thallium07RDMA() {
	doRDMA := cinnabar.NewRPC[cinnabar.BulkHandle, int32]("do_rdma", inCpp)
	server, ep := onLoopback()
	defer server.Close()
	check(doRDMA.Handle(server, func(ctx context.Context, remote cinnabar.BulkHandle) (int32, error) {
		v := make([]byte, 6)
		local, err := server.Expose(cinnabar.WriteOnly, v)
		if err != nil {
			return 0, err
		}
		defer local.Close()
		if _, err := remote.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local); err != nil { // b.on(ep) >> local
			return 0, err
		}
		fmt.Printf("Server received bulk: %s\n", v)
		return 1, nil
	}))
	memory, err := server.Expose(cinnabar.ReadOnly, []byte("Matthieu\x00"))
	check(err)
	defer memory.Close()
	_, err = doRDMA.Call(context.Background(), ep, memory.Handle())
	check(err)
	// Output: Server received bulk: Matthi
}

// 08_async: calls in flight, and whichever ends first.
// parity: T75
func Example_thallium08Async() {
	server, ep := onLoopback()
	defer server.Close()
	check(cppSum.Handle(server, add))
	ctx := context.Background()
	ret, err := cppSum.Start(ctx, ep, twoInts{42, 63}).Wait()
	check(err)
	fmt.Println("Server answered", ret)
	var calls []*cinnabar.Pending[int32]
	for range 10 {
		calls = append(calls, cppSum.Start(ctx, ep, twoInts{42, 63}))
	}
	total := int32(0)
	for _, call := range cinnabar.Completed(ctx, calls...) { // wait_any, until none is left
		ret, err := call.Wait()
		check(err)
		total += ret
	}
	fmt.Println("Ten answers make", total)
	// Output:
	// Server answered 105
	// Ten answers make 1050
}

// 09_provider: one of several services in a process, with an identity.
// parity: T75
func Example_thallium09Provider() {
	prod := cinnabar.NewRPC[twoInts, int32]("prod", inCpp)
	server, ep := onLoopback()
	defer server.Close()
	provider, err := server.NewProvider(22, "myprovider")
	check(err)
	check(cppSum.Handle(provider, add))
	check(prod.Handle(provider, func(_ context.Context, in twoInts) (int32, error) { return in.X * in.Y, nil }))
	ctx, ph := context.Background(), ep.Provider(22)
	identity, err := margo.Identity(ctx, ph)
	check(err)
	fmt.Println("identity:", identity)
	ret, err := cppSum.Call(ctx, ph, twoInts{42, 63})
	check(err)
	fmt.Println("(sum) Server answered", ret)
	ret, err = prod.Call(ctx, ph, twoInts{42, 63})
	check(err)
	fmt.Println("(prod) Server answered", ret)
	_, err = prod.Call(ctx, ep, twoInts{42, 63})
	fmt.Println("without the provider:", codes.Of(err))
	// Output:
	// identity: myprovider
	// (sum) Server answered 105
	// (prod) Server answered 2646
	// without the provider: HG_NOENTRY
}

// 15_rpc_pool: an RPC of provider 1 is served by four workers of its own.
// parity: T07 T70
func Example_thallium15RPCPool() {
	server, err := cinnabar.Listen(context.Background(), "ofi+tcp://127.0.0.1", &cinnabar.Config{
		Pools: []cinnabar.PoolConfig{{Name: "myPool", Workers: 4}},
	})
	check(err)
	defer server.Close()
	provider, err := server.NewProvider(1, "")
	check(err)
	check(cppSum.Handle(provider, add, cinnabar.WithPool(server.LookupPool("myPool"))))
	ret, err := cppSum.Call(context.Background(), server.Self().Provider(1), twoInts{42, 63})
	check(err)
	fmt.Println("Server answered", ret)
	// Output: Server answered 105
}

// 22_timed_rdma: a context with a deadline is a timed transfer.
// parity: T45 T46
func Example_thallium22TimedRDMA() {
	timedPull := cinnabar.NewRPC[cinnabar.BulkHandle, bool]("timed_pull", inCpp)
	server, ep := onLoopback()
	defer server.Close()
	check(timedPull.Handle(server, func(ctx context.Context, remote cinnabar.BulkHandle) (bool, error) {
		v := make([]byte, min(remote.Len(), 1<<10)) // the size is the peer's word
		local, err := server.Expose(cinnabar.WriteOnly, v)
		if err != nil {
			return false, err
		}
		defer local.Close()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		op := remote.On(cinnabar.InfoFrom(ctx).Peer).StartPull(ctx, local) // pull_to
		n, err := op.Wait()
		if err != nil {
			return false, err // CodeTimeout: tl::timeout
		}
		fmt.Printf("received %d bytes: %s\n", n, v)
		return true, nil
	}))
	memory, err := server.Expose(cinnabar.ReadOnly, []byte("Thallium"))
	check(err)
	defer memory.Close()
	ok, err := timedPull.Call(context.Background(), ep, memory.Handle())
	check(err)
	fmt.Println("ok:", ok)
	// Output:
	// received 8 bytes: Thallium
	// ok: true
}
