package grpcbulk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const putMethod = "/cinnabar.bench.Bulk/Put"

var putStream = grpc.StreamDesc{StreamName: "Put", Handler: handlePut, ClientStreams: true}

// target is the memory of a server.
type target struct {
	mu  sync.Mutex // held for the length of a stream
	dst []byte     // guarded by mu
}

// NewServer returns a server that copies the bytes of a Put to the beginning of dst. The memory may be read again
// when Put has returned, and belongs to the caller once the server is stopped.
func NewServer(dst []byte, opts ...grpc.ServerOption) *grpc.Server {
	srv := grpc.NewServer(opts...)
	desc := grpc.ServiceDesc{
		ServiceName: "cinnabar.bench.Bulk",
		HandlerType: (*any)(nil), // any type will do; handlePut asserts its own
		Streams:     []grpc.StreamDesc{putStream},
	}
	srv.RegisterService(&desc, &target{dst: dst})
	return srv
}

func handlePut(srv any, stream grpc.ServerStream) error {
	t, ok := srv.(*target)
	if !ok {
		return status.Errorf(codes.Internal, "service is a %T", srv)
	}
	n, err := t.receive(stream)
	if err != nil {
		return err
	}
	return stream.SendMsg(wrapperspb.UInt64(n))
}

// receive copies chunks to consecutive places until the client closes its side.
func (t *target) receive(stream grpc.ServerStream) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var n int
	var chunk wrapperspb.BytesValue
	for {
		err := stream.RecvMsg(&chunk)
		if errors.Is(err, io.EOF) {
			return uint64(n), nil
		}
		if err != nil {
			return 0, err
		}
		if len(chunk.Value) > len(t.dst)-n {
			return 0, status.Errorf(codes.OutOfRange, "chunk of %d bytes at %d leaves memory of %d bytes", len(chunk.Value), n, len(t.dst))
		}
		n += copy(t.dst[n:], chunk.Value)
	}
}

// Put copies src to the server in chunks of at most chunk bytes and returns how many bytes the server has. A chunk must fit
// the server's largest message, 4 MiB unless it was given another. It ends early, with an error, when ctx does.
func Put(ctx context.Context, conn grpc.ClientConnInterface, src []byte, chunk int) (uint64, error) {
	if chunk <= 0 {
		return 0, fmt.Errorf("chunk of %d bytes; want at least 1", chunk)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a stream left in mid-way is released by its context
	stream, err := conn.NewStream(ctx, &putStream, putMethod)
	if err != nil {
		return 0, err
	}
	if err := sendChunks(stream, src, chunk); err != nil {
		return 0, err
	}
	var n wrapperspb.UInt64Value
	if err := stream.RecvMsg(&n); err != nil {
		return 0, err
	}
	return n.Value, nil
}

// sendChunks sends src and closes the sending side. A server that has ended the stream shows as io.EOF here; its reason
// comes with the response, so that is no error yet.
func sendChunks(stream grpc.ClientStream, src []byte, chunk int) error {
	var msg wrapperspb.BytesValue
	for len(src) > 0 {
		msg.Value = src[:min(chunk, len(src))]
		src = src[len(msg.Value):]
		err := stream.SendMsg(&msg)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return stream.CloseSend()
}
