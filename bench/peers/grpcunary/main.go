// Command grpcunary is gRPC-Go's half of the RPC measurements: a server that answers unary calls, and a client that
// prints the JSON of cinnabar perf rate --json.
//
//	grpcunary serve                   prints the address to call
//	grpcunary rate ADDRESS [flags]    calls it
//
// The server ends with its standard input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const callMethod = "/cinnabar.bench.Rate/Call"

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "grpcunary:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(in, out)
	case len(args) >= 2 && args[0] == "rate":
		return rate(args[1], args[2:], out)
	default:
		return errors.New("usage: grpcunary serve, or grpcunary rate ADDRESS [flags]")
	}
}

// serve answers calls until in ends.
func serve(in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := newServer()
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in)
	srv.Stop()
	return <-ended
}

// newServer returns a server with one method, which takes a block of bytes and returns nothing.
func newServer() *grpc.Server {
	srv := grpc.NewServer()
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "cinnabar.bench.Rate",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Call", Handler: handleCall}},
	}, struct{}{})
	return srv
}

func handleCall(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var in wrapperspb.BytesValue
	if err := decode(&in); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// line is the JSON object that cinnabar perf rate prints.
type line struct {
	Op             string  `json:"op"`
	Transport      string  `json:"transport"`
	Size           int     `json:"size"`
	Inflight       int     `json:"inflight"`
	Count          int     `json:"count"`
	UsecPerCall    float64 `json:"usec_per_call"`
	CallsPerSecond float64 `json:"calls_per_second"`
	MiBPerSecond   float64 `json:"mib_per_second"`
	P50Usec        float64 `json:"p50_usec"`
	P99Usec        float64 `json:"p99_usec"`
}

// rate measures calls, with inflight goroutines that call one after the other.
func rate(addr string, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("rate", flag.ContinueOnError)
	size := flags.Int("size", 64, "bytes of a call")
	inflight := flags.Int("inflight", 1, "calls at a time")
	duration := flags.Duration("duration", time.Second, "time to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, _, err := measure(conn, *size, *inflight, *duration/10); err != nil { // warm up
		return err
	}
	times, took, err := measure(conn, *size, *inflight, *duration)
	if err != nil {
		return err
	}
	slices.Sort(times)
	at := func(q float64) float64 { return float64(times[int(q*float64(len(times)-1))]) / 1e3 }
	perSecond := float64(len(times)) / took.Seconds()
	return json.NewEncoder(out).Encode(line{
		Op: "rate", Transport: "grpc", Size: *size, Inflight: *inflight, Count: len(times),
		UsecPerCall: float64(took) / 1e3 / float64(len(times)), CallsPerSecond: perSecond, MiBPerSecond: perSecond * float64(*size) / (1 << 20),
		P50Usec: at(0.5), P99Usec: at(0.99),
	})
}

// measure calls for a time and returns the time of each call and of all.
func measure(conn *grpc.ClientConn, size, inflight int, d time.Duration) ([]time.Duration, time.Duration, error) {
	type outcome struct {
		times []time.Duration
		err   error
	}
	ends := make(chan outcome)
	begin := time.Now()
	for range inflight {
		go func() {
			var o outcome
			in := &wrapperspb.BytesValue{Value: make([]byte, size)}
			for now := time.Now(); now.Sub(begin) < d && o.err == nil; {
				var reply emptypb.Empty
				o.err = conn.Invoke(context.Background(), callMethod, in, &reply)
				end := time.Now()
				o.times = append(o.times, end.Sub(now))
				now = end
			}
			ends <- o
		}()
	}
	var times []time.Duration
	var err error
	for range inflight {
		o := <-ends
		times = append(times, o.times...)
		err = errors.Join(err, o.err)
	}
	if len(times) == 0 && err == nil {
		err = fmt.Errorf("no call fits into %v", d)
	}
	return times, time.Since(begin), err
}
