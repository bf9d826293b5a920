package cinnabar

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// tlTwice has one handler for each form that Go functions have.
var tlTwice = NewRPC[int32, int32]("twice", inThallium)

func twice(_ context.Context, n int32) (int32, error) { return 2 * n, nil }

type multiplier struct{ by int32 }

func (m *multiplier) multiply(_ context.Context, n int32) (int32, error) { return m.by * n, nil }

// TestThalliumHandlerForms registers a plain function, a method value and a closure that has captured its engine.
// parity: T06
func TestThalliumHandlerForms(t *testing.T) {
	for name, handler := range map[string]func(*Engine) func(context.Context, int32) (int32, error){
		"function":     func(*Engine) func(context.Context, int32) (int32, error) { return twice },
		"method value": func(*Engine) func(context.Context, int32) (int32, error) { return (&multiplier{by: 2}).multiply },
		"closure": func(e *Engine) func(context.Context, int32) (int32, error) {
			return func(ctx context.Context, n int32) (int32, error) {
				if InfoFrom(ctx).Peer.String() == e.Addr() {
					return n, nil
				}
				return twice(ctx, n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, ep := pair(t, nil)
			must(t, tlTwice.Handle(server, handler(server)))
			if got, err := tlTwice.Call(patient(t), ep, 21); err != nil || got != 42 {
				t.Errorf("%d, %v", got, err)
			}
		})
	}
}

// TestTransferNeedsBothSides looks at the signatures: a transfer has one remote and one local side with different
// types, so that the compiler refuses two local ones and two remote ones.
// parity: T40
func TestTransferNeedsBothSides(t *testing.T) {
	local, remote := reflect.TypeFor[*Bulk](), reflect.TypeFor[RemoteBulk]()
	if local.AssignableTo(remote) || remote.AssignableTo(local) || local.ConvertibleTo(remote) || remote.ConvertibleTo(local) {
		t.Errorf("%v and %v can stand for each other", local, remote)
	}
	transfers := func(typ reflect.Type) (names []string) {
		for m := range typ.Methods() {
			if strings.Contains(m.Name, "Pull") || strings.Contains(m.Name, "Push") {
				names = append(names, m.Name)
			}
		}
		return names
	}
	if names := transfers(local); len(names) > 0 {
		t.Errorf("local memory has the transfers %v", names)
	}
	want := []string{"Pull", "PullChunks", "Push", "PushChunks", "StartPull", "StartPush"}
	if names := transfers(remote); !slices.Equal(names, want) {
		t.Fatalf("remote memory has the transfers %v, want %v", names, want)
	}
	for _, name := range want {
		m, _ := remote.MethodByName(name)
		var locals, remotes int
		for in := range m.Type.Ins() {
			switch in {
			case local:
				locals++
			case remote: // the receiver
				remotes++
			}
		}
		if locals != 1 || remotes != 1 {
			t.Errorf("%s takes %d local and %d remote memories", name, locals, remotes)
		}
	}
}

// TestOneRPCManyServers makes 10,000 calls with one RPC to three servers in turn: each answers its own calls, and nothing is
// left at either side.
// parity: H44
func TestOneRPCManyServers(t *testing.T) {
	calls := 10_000
	if testing.Short() {
		calls = 500
	}
	client := calling(t, nil)
	var eps []*Endpoint
	var servers []*Engine
	for i := range int32(3) {
		server := listening(t, nil)
		must(t, add.Handle(server, func(_ context.Context, in addIn) (addOut, error) { return addOut{Sum: in.X + in.Y + 1000*i}, nil }))
		servers, eps = append(servers, server), append(eps, reach(t, client, server))
	}
	const batch = 1000 // calls that share a time limit
	var ctx context.Context
	for n := range calls {
		if n%batch == 0 {
			ctx = patient(t)
		}
		i := n % len(eps)
		out, err := add.Call(ctx, eps[i], addIn{X: int32(n), Y: 1})
		if want := int32(n + 1 + 1000*i); err != nil || out.Sum != want {
			t.Fatalf("call %d: %d, %v, want %d", n, out.Sum, err, want)
		}
	}
	for i, server := range servers {
		waitFor(t, func() bool { return server.Stats().RequestsActive == 0 })
		want := uint64((calls + len(eps) - 1 - i) / len(eps))
		if got := server.Stats().RequestsRecvd; got < want || got > want+1 { // the first question is about checksums
			t.Errorf("server %d has received %d requests, want %d", i, got, want)
		}
	}
	if s := client.Stats(); s.ResponsesRecvd != uint64(calls) || s.CallsActive != 0 {
		t.Errorf("of %d calls %d were answered, and %d are left", calls, s.ResponsesRecvd, s.CallsActive)
	}
}
