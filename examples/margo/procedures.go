package margo

import (
	"context"
	"fmt"

	"cinnabar"
	"cinnabar/codes"
)

// DataSize is how many bytes a client lends to the server in each call but those of [Read]: bytes.
const DataSize = 512

type (
	// None is no argument, or no result.
	None struct{}
	// In is the argument of My: my_rpc_in_t.
	In struct {
		Value int32
		Dump  int32 // not 0: the server is to write down its state
		Data  cinnabar.BulkHandle
	}
	// Lent is the argument of procedures that read the caller's memory and need nothing else.
	Lent struct {
		Value int32
		Data  cinnabar.BulkHandle
	}
	// Out is the result of all of them.
	Out struct{ Ret int32 }
)

var (
	// My has the server read memory of the caller.
	My = cinnabar.NewRPC[In, Out]("my_rpc")
	// Hang is My that first does nothing for a long time.
	Hang = cinnabar.NewRPC[Lent, Out]("my_rpc_hang")
	// Shutdown ends the server. It is an RPC like any other: Margo's own remote shutdown is [cinnabar.Endpoint.Shutdown].
	Shutdown = cinnabar.NewRPC[None, None]("my_shutdown_rpc")
)

// ServeShutdown serves the procedure that ends engine, after the response.
func ServeShutdown(engine *cinnabar.Engine) error {
	return Shutdown.Handle(engine, func(ctx context.Context, _ None) (None, error) {
		return None{}, engine.Shutdown(ctx) // returns at once, in a handler
	})
}

// Pull reads the first DataSize bytes of memory that the caller has lent.
func Pull(ctx context.Context, engine *cinnabar.Engine, lent cinnabar.BulkHandle) error {
	local, err := engine.Alloc(cinnabar.WriteOnly, DataSize)
	if err != nil {
		return err
	}
	defer func() { _ = local.Close() }() // its transfer has ended
	n, err := lent.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, local)
	if err == nil && n < DataSize {
		err = fmt.Errorf("%w: %d bytes lent, %d are read", codes.InvalidArg, n, DataSize)
	}
	return err
}

// Lend exposes a greeting in DataSize bytes.
func Lend(engine *cinnabar.Engine) (*cinnabar.Bulk, error) {
	data := make([]byte, DataSize)
	copy(data, "Hello world!\n")
	return engine.Expose(cinnabar.ReadOnly, data)
}
