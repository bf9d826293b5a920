// Command rawtcp is the yardstick of bulk transfers: bytes over one plain TCP connection, with Write and io.ReadFull.
//
//	rawtcp serve                      prints the address
//	rawtcp pull|push ADDRESS [flags]  measures transfers of one size
//
// A pull is an 8-byte request that is answered with the block; a push is the request and the block, answered with 8 bytes
// when all of it has been read. The client prints the JSON of cinnabar perf --json. The server ends with its standard
// input.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"
)

const maxBlock = 1 << 30

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rawtcp:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(in, out)
	case len(args) >= 2 && (args[0] == "pull" || args[0] == "push"):
		return measure(args[0], args[1], args[2:], out)
	default:
		return errors.New("usage: rawtcp serve, or rawtcp pull|push ADDRESS [flags]")
	}
}

// serve serves one connection after the other until in ends.
func serve(in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
		_ = l.Close()
	}()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			select {
			case <-ended:
				return nil
			default:
				return err
			}
		}
		answer(c)
	}
}

// answer serves one client until it is done, or breaks the protocol. A request's sign is its direction: positive is a
// pull of so many bytes, negative a push.
func answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	var request [8]byte
	var block []byte
	for {
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return
		}
		n := int64(binary.LittleEndian.Uint64(request[:]))
		size := max(n, -n)
		if size <= 0 || size > maxBlock {
			return
		}
		if int64(len(block)) < size {
			block = make([]byte, size)
		}
		if err := serveOne(c, request[:], block[:size], n > 0); err != nil {
			return
		}
	}
}

func serveOne(c net.Conn, request, block []byte, pull bool) error {
	if pull {
		_, err := c.Write(block)
		return err
	}
	if _, err := io.ReadFull(c, block); err != nil {
		return err
	}
	_, err := c.Write(request)
	return err
}

// line is the JSON object that cinnabar perf prints.
type line struct {
	Op             string  `json:"op"`
	Transport      string  `json:"transport"`
	Size           int64   `json:"size"`
	Inflight       int     `json:"inflight"`
	Count          int     `json:"count"`
	UsecPerCall    float64 `json:"usec_per_call"`
	CallsPerSecond float64 `json:"calls_per_second"`
	MiBPerSecond   float64 `json:"mib_per_second"`
	P50Usec        float64 `json:"p50_usec"`
	P99Usec        float64 `json:"p99_usec"`
}

func measure(op, addr string, args []string, out io.Writer) error {
	flags := flag.NewFlagSet(op, flag.ContinueOnError)
	size := flags.Int64("size", 1<<20, "bytes of a transfer")
	duration := flags.Duration("duration", time.Second, "time to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *size < 1 || *size > maxBlock {
		return fmt.Errorf("size %d is not between 1 and %d", *size, maxBlock)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	block := make([]byte, *size)
	const warm = 10
	for range warm {
		if err := callOne(c, block, op == "pull"); err != nil {
			return err
		}
	}
	times, took, err := callFor(*duration, func() error { return callOne(c, block, op == "pull") })
	if err != nil {
		return err
	}
	slices.Sort(times)
	n := float64(len(times))
	at := func(q float64) float64 { return float64(times[int(q*(n-1))]) / 1e3 }
	return json.NewEncoder(out).Encode(line{
		Op: op, Transport: "tcp", Size: *size, Inflight: 1, Count: len(times),
		UsecPerCall: float64(took) / 1e3 / n, CallsPerSecond: n / took.Seconds(), MiBPerSecond: n * float64(*size) / (1 << 20) / took.Seconds(),
		P50Usec: at(0.5), P99Usec: at(0.99),
	})
}

// callFor makes calls one after the other for a time, one at least, and returns the time of each and of all.
func callFor(d time.Duration, call func() error) (times []time.Duration, took time.Duration, err error) {
	begin := time.Now()
	for len(times) == 0 || took < d {
		if err := call(); err != nil {
			return nil, 0, err
		}
		now := time.Since(begin)
		times = append(times, now-took)
		took = now
	}
	return times, took, nil
}

func callOne(c net.Conn, block []byte, pull bool) error {
	n := int64(len(block))
	if !pull {
		n = -n
	}
	var request [8]byte
	binary.LittleEndian.PutUint64(request[:], uint64(n))
	if _, err := c.Write(request[:]); err != nil {
		return err
	}
	if pull {
		_, err := io.ReadFull(c, block)
		return err
	}
	if _, err := c.Write(block); err != nil {
		return err
	}
	_, err := io.ReadFull(c, request[:])
	return err
}
