// Package grpcbulk copies memory to another process over a gRPC stream: the comparison for RDMA writes.
//
// The client sends its bytes in chunks on one stream; the server copies each chunk to the next place of the memory it
// was given and answers, once the stream ends, how many bytes have arrived. A program without one-sided writes works so,
// and therefore the copies inside gRPC (encode, flow-controlled frames, decode) and the final one are all
// part of the measurement.
//
// Chunks travel as google.protobuf.BytesValue, so there is no generated code here.
//
//	srv := grpcbulk.NewServer(dst)
//	go srv.Serve(listener)
//	n, err := grpcbulk.Put(ctx, conn, src, 1<<20)
//
// A server copies one stream at a time into its memory; a second one waits. Put may be called from any goroutine.
package grpcbulk
