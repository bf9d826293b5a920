// Command smping measures the bare transport of na+sm: round trips of one message between two processes.
//
//	smping serve                  prints the address
//	smping ping ADDRESS [flags]   measures
//
// The client prints a JSON object: half a round trip in microseconds, which Mercury's na_lat prints too, and
// the whole one. The server ends with its standard input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"cinnabar/internal/na"
	"cinnabar/internal/na/sm"
)

const (
	warm  = 1000
	batch = 1000 // round trips between two looks at the clock
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "smping:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx, in, out)
	case len(args) >= 2 && args[0] == "ping":
		return ping(ctx, args[1], args[2:], out)
	default:
		return errors.New("usage: smping serve, or smping ping ADDRESS [flags]")
	}
}

// serve answers each request with its own bytes until in ends.
func serve(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	h := &echo{ready: make(chan struct{})}
	ep, err := sm.Open(ctx, sm.Config{Listen: true, Handler: h})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close(ctx)) }()
	h.ep = ep
	close(h.ready)
	if _, err := fmt.Fprintln(out, ep.Addr()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// echo answers requests. There is one client, which sends one at a time.
type echo struct {
	ep    na.Endpoint
	ready chan struct{} // closed when ep is there
	op    na.Op
	buf   []byte
}

// Request implements [na.Handler].
func (h *echo) Request(m *na.Message) na.Task {
	<-h.ready
	h.op.Done = h
	h.buf = append(h.buf[:0], m.Data...)
	h.ep.SendExpected(&h.op, m.From, m.Tag, h.buf)
	return nil
}

// Complete implements [na.Completer].
func (*echo) Complete(*na.Op) {}

// signal is an operation with a channel to wait on.
type signal struct {
	op na.Op
	ev na.Event
}

// Complete implements [na.Completer].
func (s *signal) Complete(*na.Op) { s.ev.Set() }

// wait returns when the operation is over.
func (s *signal) wait(ep na.Endpoint, to na.Addr) error {
	ep.Drive(to, &s.ev)
	if wake := s.ev.Park(); wake != nil {
		<-wake
	}
	s.ev.Reset()
	return s.op.Err
}

// line is the output of the client.
type line struct {
	Size        int     `json:"size"`
	Count       int     `json:"count"`
	UsecPerCall float64 `json:"usec_per_call"` // half a round trip
	RoundTrip   float64 `json:"usec_per_round_trip"`
}

func ping(ctx context.Context, addr string, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("ping", flag.ContinueOnError)
	size := flags.Int("size", 64, "bytes of a message")
	duration := flags.Duration("duration", time.Second, "time to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ep, err := sm.Open(ctx, sm.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close(ctx)) }()
	if most := ep.Limits().MaxRequest; *size < 0 || *size > most {
		return fmt.Errorf("size %d is not between 0 and %d", *size, most)
	}
	to, err := ep.Lookup(addr)
	if err != nil {
		return err
	}
	p := newPinger(ep, to, *size)
	if err := p.trips(warm); err != nil {
		return err
	}
	count, start := 0, time.Now()
	var took time.Duration
	for ; took < *duration; took = time.Since(start) {
		if err := p.trips(batch); err != nil {
			return err
		}
		count += batch
	}
	usec := took.Seconds() * 1e6 / float64(count)
	return json.NewEncoder(out).Encode(line{Size: *size, Count: count, UsecPerCall: usec / 2, RoundTrip: usec})
}

// pinger makes round trips.
type pinger struct {
	ep         na.Endpoint
	to         na.Addr
	send, recv signal
	msg, buf   []byte
	tag        uint32
}

func newPinger(ep na.Endpoint, to na.Addr, size int) *pinger {
	p := &pinger{ep: ep, to: to, msg: make([]byte, size), buf: make([]byte, size)}
	p.send.op.Done, p.recv.op.Done = &p.send, &p.recv
	return p
}

// trips makes n round trips, one after the other.
func (p *pinger) trips(n int) error {
	for range n {
		p.tag++
		p.ep.RecvExpected(&p.recv.op, p.to, p.tag, p.buf)
		p.ep.SendRequest(&p.send.op, p.to, p.tag, p.msg)
		if err := p.recv.wait(p.ep, p.to); err != nil {
			return err
		}
		if err := p.send.wait(p.ep, p.to); err != nil {
			return err
		}
		if p.recv.op.N != int64(len(p.msg)) {
			return fmt.Errorf("%d bytes came back for %d", p.recv.op.N, len(p.msg))
		}
	}
	return nil
}
