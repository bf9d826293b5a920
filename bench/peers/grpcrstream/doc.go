// Package grpcrstream runs gRPC-Go over RDMA: the connections of a server and a client are streams of
// cinnabar/verbs/rstream, on any device. gRPC knows nothing of it; all it takes is
//
//	n := NewNetwork(dev)
//	l, err := n.Listen(addr)
//	srv.Serve(l)
//	client, err := grpc.NewClient(target, grpc.WithContextDialer(n.Dial), ...)
//
// It is a module of its own so that cinnabar does not depend on gRPC.
package grpcrstream
