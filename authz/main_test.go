package authz_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"cinnabar"
	"cinnabar/authz"
	"cinnabar/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Example lets one user call one RPC, and each process that has the token call all RPCs of a provider.
func Example() {
	list, err := authz.Parse(`
# who            RPC        provider
allow uid:1000   store.get  *
allow token      store.*    7
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = cinnabar.Config{Interceptors: []cinnabar.Interceptor{list.Interceptor()}}
	alice := identity.Peer{Kind: identity.Process, UID: 1000}
	fmt.Println(list.Allows(alice, "store.get", 7), list.Allows(alice, "store.put", 7))
	fmt.Println(list.Allows(identity.Peer{Token: true}, "store.put", 7))
	// Output:
	// true false
	// true
}

// ExampleList_Interceptor refuses a call that the list does not allow.
func ExampleList_Interceptor() {
	var none authz.List
	err := none.Interceptor()(context.Background(), &cinnabar.CallInfo{Server: true, RPC: "store.get"}, func(context.Context) error { return nil })
	fmt.Println(err)
	// Output: authorize store.get: HG_PERMISSION: the access list of the server does not allow "store.get" of provider 0 for unknown
}
