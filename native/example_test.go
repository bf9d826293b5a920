package native_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/native"
)

// reserveIn and reserveOut are the arguments and the result of the example.
type (
	reserveIn  struct{ Seats uint32 }
	reserveOut struct{ Number uint32 }
)

// SoldOut is an error that travels with its fields.
type SoldOut struct{ Left uint32 }

func (e *SoldOut) Error() string { return fmt.Sprintf("sold out: %d seats are left", e.Left) }

// reserve is shared by both sides.
var reserve = native.New[reserveIn, reserveOut]("reserve", native.WithDetail[*SoldOut]("sold-out"))

// A server that reserves seats, and its caller in the same process.
func Example() {
	ctx := context.Background()
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	err = reserve.Handle(server, func(ctx context.Context, in reserveIn) (reserveOut, error) {
		_, limited := ctx.Deadline()
		fmt.Println("seats for", native.MetadataFrom(ctx)["customer"], "with a deadline:", limited)
		if in.Seats > 4 {
			return reserveOut{}, fmt.Errorf("%w: %w", codes.NoMem, &SoldOut{Left: 4})
		}
		return reserveOut{Number: 17}, nil
	})
	if err != nil {
		log.Fatal(err)
	}

	client, err := cinnabar.Open(ctx, "ofi+tcp", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ep, err := client.Lookup(server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ctx = native.WithMetadata(ctx, native.Metadata{"customer": "Ada"})
	out, err := reserve.Call(ctx, ep, reserveIn{Seats: 2})
	fmt.Println(out.Number, err)

	_, err = reserve.Call(ctx, ep, reserveIn{Seats: 9})
	if full, ok := errors.AsType[*SoldOut](err); ok {
		fmt.Println(full.Left, errors.Is(err, codes.NoMem))
	}
	// Output:
	// seats for Ada with a deadline: true
	// 17 <nil>
	// seats for Ada with a deadline: true
	// 4 true
}

// A server that describes its RPCs, and a client that reads the fields of the arguments of one.
func ExampleReflect() {
	ctx := context.Background()
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := native.HandleReflection(server); err != nil {
		log.Fatal(err)
	}
	if err := reserve.Handle(server, nil); err != nil {
		log.Fatal(err)
	}

	for d, err := range native.Reflect(ctx, server.Self(), "reserve") {
		if err != nil {
			log.Fatal(err)
		}
		for _, f := range d.Types[d.In].Fields {
			fmt.Println(d.String(), f.Name, d.Types[f.Type].Kind)
		}
	}
	// Output: reserve (native) Seats uint32
}
