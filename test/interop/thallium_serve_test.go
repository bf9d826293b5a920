//go:build linux

package interop

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codec/cereal"
	"cinnabar/codes"
	"cinnabar/internal/cerealtest"

	"github.com/google/go-cmp/cmp"
)

// The arguments and results of thallium_peer's RPCs: several are the fields of a struct.
type (
	numbers  struct{ X, Y int32 }
	quotient struct{ Quotient, Remainder int32 }
	whereOut struct{ Caller, Self string }

	transferIn struct {
		Spelling                 string // "remote>>local", "local<<remote", "local>>remote", "remote<<local"
		Total                    uint64 // bytes of the local memory
		RemoteOffset, RemoteSize uint64 // nothing is selected if both sizes are 0
		LocalOffset, LocalSize   uint64
		Seed                     uint8
		Remote                   cinnabar.BulkHandle
	}
	transferOut struct{ Count, Hash uint64 }

	holder struct {
		Tag  int32
		Bulk cinnabar.BulkHandle
	}
	bulks struct {
		List []cinnabar.BulkHandle
		Map  map[string]holder
	}
	nullOut struct {
		Was  bool
		Back cinnabar.BulkHandle
	}
)

var inThallium = cinnabar.WithFlavor(cinnabar.Thallium)

// The RPCs of thallium_peer.
var (
	tlSum      = cinnabar.NewRPC[numbers, int32]("sum", inThallium)
	tlProduct  = cinnabar.NewRPC[numbers, int32]("product", inThallium)
	tlDivide   = cinnabar.NewRPC[numbers, quotient]("divide", inThallium)
	tlHello    = cinnabar.NewOneWay[string]("hello", inThallium)
	tlHellos   = cinnabar.NewRPC[none, int32]("hellos", inThallium)
	tlNothing  = cinnabar.NewRPC[none, none]("nothing", inThallium)
	tlWhere    = cinnabar.NewRPC[none, whereOut]("where", inThallium)
	tlLater    = cinnabar.NewRPC[int32, int32]("later", inThallium)
	tlSlow     = cinnabar.NewRPC[int32, none]("slow", inThallium)
	tlCallback = cinnabar.NewRPC[numbers, int32]("callback", inThallium)
	tlTransfer = cinnabar.NewRPC[transferIn, transferOut]("transfer", inThallium)
	tlBulks    = cinnabar.NewRPC[bulks, bulks]("bulks", inThallium)
	tlNull     = cinnabar.NewRPC[cinnabar.BulkHandle, nullOut]("null", inThallium)
	tlUnknown  = cinnabar.NewRPC[none, none]("no_such_rpc", inThallium)
)

// tlValue is the RPC that takes the value of that name and returns it. The types differ, so the bytes go through codecs
// by hand.
func tlValue(name string) *cinnabar.RPC[cereal.Rest, cereal.Rest] {
	return cinnabar.NewRPC[cereal.Rest, cereal.Rest]("value:"+name, inThallium)
}

// The provider that thallium_peer has besides 0.
const (
	calculatorID = 42
	calculator   = "calculator"
)

// thalliumServer is the Go side's answer to thallium_peer.
type thalliumServer struct {
	*cinnabar.Engine
	t      *testing.T
	greets chan string
	count  atomic.Int32
	later  sync.WaitGroup
}

// listenThallium makes an engine that serves what thallium_peer serves.
func listenThallium(t *testing.T, cfg *cinnabar.Config) *thalliumServer {
	t.Helper()
	e, err := cinnabar.Listen(t.Context(), network, configured(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	s := &thalliumServer{Engine: e, t: t, greets: make(chan string, 100)} // more than any test sends
	t.Cleanup(func() {
		closeEngine(t, e)
		s.later.Wait()
	})
	p, err := e.NewProvider(calculatorID, calculator)
	if err != nil {
		t.Fatal(err)
	}
	must(t,
		tlSum.Handle(e, s.sum),
		tlSum.Handle(p, s.sum),
		tlProduct.Handle(p, func(_ context.Context, in numbers) (int32, error) { return in.X * in.Y, nil }),
		tlDivide.Handle(e, func(_ context.Context, in numbers) (quotient, error) {
			if in.Y == 0 {
				return quotient{}, codes.InvalidArg
			}
			return quotient{in.X / in.Y, in.X % in.Y}, nil
		}),
		tlHello.Handle(e, s.hello),
		tlHellos.Handle(e, func(context.Context, none) (int32, error) { return s.count.Load(), nil }),
		tlNothing.Handle(e, func(context.Context, none) (none, error) { return none{}, nil }),
		tlWhere.Handle(e, func(ctx context.Context, _ none) (whereOut, error) {
			return whereOut{cinnabar.InfoFrom(ctx).Peer.String(), e.Addr()}, nil
		}),
		tlLater.HandleCall(e, s.answerLater),
		tlSlow.Handle(e, s.slow),
		tlCallback.Handle(e, func(ctx context.Context, in numbers) (int32, error) {
			return tlSum.Call(ctx, cinnabar.InfoFrom(ctx).Peer, in)
		}),
		tlTransfer.Handle(e, s.transfer),
		tlBulks.Handle(e, func(_ context.Context, in bulks) (bulks, error) { return in, nil }),
		tlNull.Handle(e, func(_ context.Context, in cinnabar.BulkHandle) (nullOut, error) {
			return nullOut{Was: in == cinnabar.BulkHandle{}}, nil
		}),
	)
	for name, want := range cerealtest.Values() {
		must(t, tlValue(name).Handle(e, func(_ context.Context, in cereal.Rest) (cereal.Rest, error) {
			return sameValue(name, want, in)
		}))
	}
	return s
}

func (s *thalliumServer) sum(_ context.Context, in numbers) (int32, error) { return in.X + in.Y, nil }

func (s *thalliumServer) hello(_ context.Context, name string) error {
	s.count.Add(1)
	s.greets <- name
	return nil
}

// answerLater answers from another goroutine, after the handler has returned.
func (s *thalliumServer) answerLater(c *cinnabar.Call[int32, int32]) {
	returned := make(chan struct{})
	s.later.Go(func() {
		<-returned
		if err := c.Respond(c.Context(), c.In+1); err != nil {
			s.t.Errorf("answering later: %v", err)
		}
	})
	close(returned)
}

func (s *thalliumServer) slow(ctx context.Context, millis int32) (none, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(millis)*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	return none{}, nil
}

// transfer moves memory as it is asked to. The spellings are two in Go: who pulls or pushes says so.
func (s *thalliumServer) transfer(ctx context.Context, in transferIn) (transferOut, error) {
	memory := pattern(int(in.Total), uint32(in.Seed))
	mode, transfer := cinnabar.WriteOnly, cinnabar.RemoteBulk.Pull
	if in.Spelling == "local>>remote" || in.Spelling == "remote<<local" {
		mode, transfer = cinnabar.ReadOnly, cinnabar.RemoteBulk.Push
	}
	local, err := s.Expose(mode, memory)
	if err != nil {
		return transferOut{}, err
	}
	defer local.Close() // the transfer is over
	remote, part := in.Remote.On(cinnabar.InfoFrom(ctx).Peer), local
	if in.RemoteSize != 0 || in.LocalSize != 0 {
		remote = remote.Slice(int64(in.RemoteOffset), int64(in.RemoteSize))
		part = local.Slice(int64(in.LocalOffset), int64(in.LocalSize))
	}
	n, err := transfer(remote, ctx, part)
	return transferOut{uint64(n), fnv1a(memory)}, err
}

// sameValue decodes b, which must hold the value, and encodes what it found.
func sameValue(name string, want any, b []byte) (cereal.Rest, error) {
	plan, err := cereal.Codec{}.Plan(reflect.TypeOf(want).Elem())
	if err != nil {
		return nil, err
	}
	got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
	n, err := plan.Decode(b, got)
	if err != nil {
		return nil, err
	}
	if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true }), nans); diff != "" || n != len(b) {
		return nil, fmt.Errorf("%s: %d of %d bytes, -want +got:\n%s", name, n, len(b), diff)
	}
	return plan.Append(nil, got)
}

// nans are equal to themselves.
var nans = cmp.Comparer(func(a, b float32) bool { return a == b || a != a && b != b })
