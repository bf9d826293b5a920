package grpcrstream

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The methods of the service. Its messages are those that protobuf brings along, so nothing is generated.
const (
	serviceName = "cinnabar.peers.Stream"
	echoMethod  = "/" + serviceName + "/Echo"  // BytesValue to the same
	countMethod = "/" + serviceName + "/Count" // Int32Value n to a stream of 0 to n-1
	waitMethod  = "/" + serviceName + "/Wait"  // Empty to Empty, when the call ends or the server lets it go
)

// waiter is the handler of a Wait call.
type waiter func(ctx context.Context) error

// newServer returns a server with the three methods; wait is the third.
func newServer(wait waiter) *grpc.Server {
	srv := grpc.NewServer()
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Echo", Handler: handleEcho},
			{MethodName: "Wait", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(&emptypb.Empty{}); err != nil {
					return nil, err
				}
				return &emptypb.Empty{}, wait(ctx)
			}},
		},
		Streams: []grpc.StreamDesc{countStream},
	}, struct{}{})
	return srv
}

func handleEcho(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var in wrapperspb.BytesValue
	if err := decode(&in); err != nil {
		return nil, err
	}
	return &in, nil
}

var countStream = grpc.StreamDesc{StreamName: "Count", ServerStreams: true, Handler: handleCount}

func handleCount(_ any, stream grpc.ServerStream) error {
	var n wrapperspb.Int32Value
	if err := stream.RecvMsg(&n); err != nil {
		return err
	}
	for i := range n.Value {
		if err := stream.SendMsg(wrapperspb.Int32(i)); err != nil {
			return err
		}
	}
	return nil
}

// newClient returns a client of the server at addr.
func newClient(n *Network, addr net.Addr) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr.String(), grpc.WithContextDialer(n.Dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
}
