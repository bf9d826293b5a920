package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	callMethod   = "/cinnabar.bench.TLS/Call"
	streamMethod = "/cinnabar.bench.TLS/Stream"
)

var streamDesc = grpc.StreamDesc{StreamName: "Stream", ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
	for {
		var in wrapperspb.BytesValue
		if err := s.RecvMsg(&in); errors.Is(err, io.EOF) {
			return s.SendMsg(&emptypb.Empty{})
		} else if err != nil {
			return err
		}
	}
}}

func handleCall(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var in wrapperspb.BytesValue
	if err := decode(&in); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

type grpcService struct {
	srv   *grpc.Server
	at    net.Addr
	ended chan error
}

func serveGRPC(cfg *tls.Config) (service, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &grpcService{grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.MaxRecvMsgSize(math.MaxInt32)), l.Addr(), make(chan error, 1)}
	s.srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "cinnabar.bench.TLS", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: handleCall}}, Streams: []grpc.StreamDesc{streamDesc},
	}, struct{}{})
	go func() { s.ended <- s.srv.Serve(l) }()
	return s, nil
}

func (s *grpcService) addr() string { return s.at.String() }

func (s *grpcService) close() error {
	s.srv.Stop()
	return <-s.ended
}

type grpcClient struct{ conn *grpc.ClientConn }

func dialGRPC(addr string, cfg *tls.Config) (client, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return nil, err
	}
	return &grpcClient{conn}, nil
}

func (c *grpcClient) call(ctx context.Context, data []byte) error {
	return c.conn.Invoke(ctx, callMethod, &wrapperspb.BytesValue{Value: data}, &emptypb.Empty{})
}

func (c *grpcClient) stream(ctx context.Context, data []byte, d time.Duration) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.conn.NewStream(ctx, &streamDesc, streamMethod)
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(d); n&63 != 0 || time.Now().Before(end); n++ {
		if err := s.SendMsg(&wrapperspb.BytesValue{Value: data}); err != nil {
			return n, err
		}
	}
	if err := s.CloseSend(); err != nil {
		return n, err
	}
	return n, s.RecvMsg(&emptypb.Empty{})
}

func (c *grpcClient) close() error { return c.conn.Close() }
