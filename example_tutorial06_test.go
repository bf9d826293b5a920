package cinnabar_test

import (
	"context"
	"fmt"
	"log"

	"cinnabar"
)

var alphaSum = cinnabar.NewRPC[PairIn, PairOut]("alpha_sum")

// AlphaProvider is the server's half of a service that is called Alpha. A process may have several, each with its id.
type AlphaProvider struct {
	provider *cinnabar.Provider
	name     string
}

// NewAlphaProvider has an engine provide the service.
func NewAlphaProvider(engine *cinnabar.Engine, id uint16, name string, opts ...cinnabar.HandleOption) (*AlphaProvider, error) {
	p, err := engine.Provider(id, "alpha")
	if err != nil {
		return nil, err
	}
	a := &AlphaProvider{provider: p, name: name}
	return a, alphaSum.Handle(p, a.sum, opts...)
}

// Close ends the service; it ends with the engine at the latest.
func (a *AlphaProvider) Close() error { return a.provider.Close() }

func (a *AlphaProvider) sum(_ context.Context, in PairIn) (PairOut, error) {
	fmt.Printf("%s computes %d + %d\n", a.name, in.X, in.Y)
	return PairOut{Ret: in.X + in.Y}, nil
}

// Alpha is the client's half: a service somewhere. It is a plain value.
type Alpha struct{ handle cinnabar.ProviderHandle }

// FindAlpha makes sure that there is such a service.
func FindAlpha(ctx context.Context, server *cinnabar.Endpoint, id uint16) (Alpha, error) {
	h := server.Provider(id)
	switch identity, err := h.Identity(ctx); {
	case err != nil:
		return Alpha{}, err
	case identity != "alpha":
		return Alpha{}, fmt.Errorf("provider %d is of kind %q, not an alpha", id, identity)
	}
	return Alpha{h}, nil
}

// Sum has the service add.
func (a Alpha) Sum(ctx context.Context, x, y int32) (int32, error) {
	out, err := alphaSum.Call(ctx, a.handle, PairIn{X: x, Y: y})
	return out.Ret, err
}

// Tutorial 6, providers: a service is two types, one for each side, and the RPCs between them stay hidden. Several
// providers of a service live in one process and are told apart by their ids.
// parity: G96
func Example_tutorial06() {
	client, server, ep := twoEngines()
	defer client.Close()
	defer server.Close()
	for id, name := range map[uint16]string{42: "the first", 43: "the second"} {
		if _, err := NewAlphaProvider(server, id, name); err != nil {
			log.Fatal(err)
		}
	}
	_, err := NewAlphaProvider(server, 42, "one too many")
	fmt.Println("again 42:", cinnabar.CodeOf(err))

	ctx := context.Background()
	for _, id := range []uint16{42, 43, 44} {
		alpha, err := FindAlpha(ctx, ep, id)
		if err != nil {
			fmt.Printf("provider %d: %v\n", id, cinnabar.CodeOf(err))
			continue
		}
		sum, err := alpha.Sum(ctx, 45, 23)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(sum)
	}
	// Output:
	// again 42: HG_EXIST
	// the first computes 45 + 23
	// 68
	// the second computes 45 + 23
	// 68
	// provider 44: HG_NOENTRY
}
