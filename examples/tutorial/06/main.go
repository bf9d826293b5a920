// Command 06 is the sixth tutorial, providers: a service is two types, one for each side, and the RPCs between them stay hidden.
// Two providers of the service are in one process, and callers choose one by its id.
package main

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/margo"
)

type (
	pairIn  struct{ X, Y int32 }
	pairOut struct{ Ret int32 }
)

var alphaSum = cinnabar.NewRPC[pairIn, pairOut]("alpha_sum")

// AlphaProvider is the server's half of the service Alpha. A process may have several, each with an id of its own.
type AlphaProvider struct {
	provider *cinnabar.Provider
	name     string
}

// NewAlphaProvider registers the service with an engine.
func NewAlphaProvider(engine *cinnabar.Engine, id uint16, name string) (*AlphaProvider, error) {
	p, err := engine.NewProvider(id, "alpha")
	if err != nil {
		return nil, err
	}
	a := &AlphaProvider{provider: p, name: name}
	return a, alphaSum.Handle(p, a.sum)
}

// Close ends the service. The end of the engine ends it too.
func (a *AlphaProvider) Close() error { return a.provider.Close() }

func (a *AlphaProvider) sum(_ context.Context, in pairIn) (pairOut, error) {
	fmt.Printf("%s computes %d + %d\n", a.name, in.X, in.Y)
	return pairOut{Ret: in.X + in.Y}, nil
}

// Alpha is the client's half: a provider of the service in some process. It is a plain value.
type Alpha struct{ handle cinnabar.ProviderHandle }

// FindAlpha asks the server whether its provider with this id is an Alpha.
func FindAlpha(ctx context.Context, server *cinnabar.Endpoint, id uint16) (Alpha, error) {
	h := server.Provider(id)
	switch identity, err := margo.Identity(ctx, h); {
	case err != nil:
		return Alpha{}, err
	case identity != "alpha":
		return Alpha{}, fmt.Errorf("provider %d is of kind %q, not an alpha", id, identity)
	}
	return Alpha{h}, nil
}

// Sum adds two numbers in the process of the provider.
func (a Alpha) Sum(ctx context.Context, x, y int32) (int32, error) {
	out, err := alphaSum.Call(ctx, a.handle, pairIn{X: x, Y: y})
	return out.Ret, err
}

func run(ctx context.Context) error {
	server, err := cinnabar.Listen(ctx, "ofi+tcp://127.0.0.1", nil)
	if err != nil {
		return err
	}
	defer server.Close()
	for id, name := range map[uint16]string{42: "the first", 43: "the second"} {
		if _, err := NewAlphaProvider(server, id, name); err != nil {
			return err
		}
	}
	_, err = NewAlphaProvider(server, 42, "one too many")
	fmt.Println("again 42:", codes.Of(err))

	for _, id := range []uint16{42, 43, 44} {
		alpha, err := FindAlpha(ctx, server.Self(), id)
		if err != nil {
			fmt.Printf("provider %d: %v\n", id, codes.Of(err))
			continue
		}
		sum, err := alpha.Sum(ctx, 45, 23)
		if err != nil {
			return err
		}
		fmt.Println(sum)
	}
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
