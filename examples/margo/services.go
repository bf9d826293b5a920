package margo

import (
	"context"

	"cinnabar"
	"cinnabar/codes"
)

// Service is one of the two kinds of service that share a process in the multiplex example.
type Service struct {
	Name       string
	Thing      *cinnabar.RPC[Lent, Out]
	OtherThing *cinnabar.RPC[Lent, Out]
}

// The services. Their procedures have names of their own and do the same.
var (
	Service1 = newService("svc1")
	Service2 = newService("svc2")
)

func newService(name string) *Service {
	return &Service{
		Name:       name,
		Thing:      cinnabar.NewRPC[Lent, Out](name + "_do_thing"),
		OtherThing: cinnabar.NewRPC[Lent, Out](name + "_do_other_thing"),
	}
}

// The composition example's procedures.
type (
	// ReadIn is the argument of Read.
	ReadIn struct {
		Client *string // address of the process that owns the memory; nil: the caller
		Data   cinnabar.BulkHandle
	}
	// DelegateIn is the argument of Delegate.
	DelegateIn struct {
		Service *string // the address of the process that serves Read
		Data    cinnabar.BulkHandle
	}
)

// ReadSize is how many bytes Read moves, at most.
const ReadSize = 8 << 20

var (
	// Read has the server write into the memory of a third process.
	Read = cinnabar.NewRPC[ReadIn, Out]("data_xfer_read")
	// Delegate has the server call Read elsewhere, for its own caller's memory.
	Delegate = cinnabar.NewRPC[DelegateIn, Out]("delegator_read")
)

// ProviderID is that of both services of the composition example.
const ProviderID = 0

// HandleRead serves Read from memory, in the place that on stands for.
func HandleRead(on cinnabar.Registrar, engine *cinnabar.Engine, memory *cinnabar.Bulk) error {
	return Read.Handle(on, func(ctx context.Context, in ReadIn) (Out, error) {
		owner := cinnabar.InfoFrom(ctx).Peer
		if in.Client != nil {
			var err error
			if owner, err = engine.Lookup(*in.Client); err != nil {
				return Out{}, err
			}
		}
		_, err := in.Data.On(owner).Push(ctx, memory)
		return Out{}, err
	})
}

// HandleDelegate serves Delegate: the handle goes on as it came, with the address of its owner.
func HandleDelegate(on cinnabar.Registrar, engine *cinnabar.Engine) error {
	return Delegate.Handle(on, func(ctx context.Context, in DelegateIn) (Out, error) {
		if in.Service == nil {
			return Out{}, codes.InvalidArg
		}
		service, err := engine.Lookup(*in.Service)
		if err != nil {
			return Out{}, err
		}
		owner := cinnabar.InfoFrom(ctx).Peer.String()
		return Read.Call(ctx, service.Provider(ProviderID), ReadIn{Client: &owner, Data: in.Data})
	})
}
