package call

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/codes"
	"cinnabar/margo"
)

// pingTimeout is the time that ping waits for all answers by default.
const pingTimeout = 10 * time.Second

// maxPings bounds the round trips of one command, because ping keeps their times.
const maxPings = 1_000_000

// pingName is the name of an RPC that no process serves. The RPC layer of a process, which is Mercury in C, answers requests for it with
// HG_NOENTRY, without a handler.
const pingName = "cinnabar ping"

// pingOptions are the options of ping.
type pingOptions struct {
	count    int
	interval time.Duration
	json     bool
	caller   cli.Caller
}

// NewPing returns the command ping.
func NewPing(s cli.Streams) *cobra.Command {
	o := &pingOptions{}
	cmd := &cobra.Command{
		Use:   "ping ADDRESS",
		Short: "Measure round trips, and find the layer that does not answer",
		Long: `ping tries the layers of the process at ADDRESS one after the other, and names the first that
does not answer: TCP (for ofi+tcp and ofi+tcps), the connection request of the protocol, the RPC layer, and a
handler. It then measures round trips to the RPC layer, which take no handler. The process may
be a C program; a layer that ping cannot try there is reported as not tried.`,
		Example: "  cinnabar ping ofi+tcp://127.0.0.1:7000\n  cinnabar ping --count 1000 --interval 0 'ofi+tcp://[::1]:7000'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.count < 1 || o.count > maxPings:
				return cli.Usagef("--count %d is not between 1 and %d", o.count, maxPings)
			case o.interval < 0:
				return cli.Usagef("--interval is %v; want a time of 0 or more", o.interval)
			}
			return o.run(cmd.Context(), args[0], s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&o.count, "count", "n", 5, "round trips")
	f.DurationVarP(&o.interval, "interval", "i", 100*time.Millisecond, "time between two round trips")
	cli.JSONFlag(f, &o.json)
	o.caller.Register(f, s, pingTimeout, "how long the command may take")
	return cmd
}

// layer is a layer of the other process.
type layer struct {
	Layer string  `json:"layer"`          // "tcp", "rpc", "handler"
	Usec  float64 `json:"usec,omitempty"` // until it answered; absent if it was not tried
	Note  string  `json:"note,omitempty"` // the reason why it was not tried
}

// pinged is the result of ping. Times are in microseconds.
type pinged struct {
	Address   string  `json:"address"`
	Transport string  `json:"transport"`
	Layers    []layer `json:"layers"`
	Count     int     `json:"count"`
	Min       float64 `json:"min_usec"`
	Mean      float64 `json:"mean_usec"`
	Max       float64 `json:"max_usec"`
}

func (o *pingOptions) run(ctx context.Context, address string, s cli.Streams) error {
	return o.caller.Engine(ctx, address, cinnabar.Config{}, func(ctx context.Context, e *cinnabar.Engine) error {
		ep, err := e.Lookup(address)
		if err != nil {
			return err
		}
		r := &pinged{Address: ep.String(), Transport: cli.Carried(e, ep.String())}
		out := &cli.Printer{W: s.Out}
		p := &pinger{e: e, ep: ep, result: r, print: func(l layer) {
			switch {
			case o.json:
			case l.Note != "":
				out.Printf("%-11s %s\n", l.Layer, l.Note)
			default:
				out.Printf("%-11s %s\n", l.Layer, usec(l.Usec))
			}
		}}
		if err := errors.Join(p.layers(ctx), out.Err); err != nil {
			return err
		}
		if err := p.roundTrips(ctx, o.count, o.interval); err != nil {
			return err
		}
		r.Transport = cli.Carried(e, ep.String()) // the calls may have chosen shared memory
		if o.json {
			return cli.WriteJSON(s.Out, r)
		}
		trips := "round trips"
		if r.Count == 1 {
			trips = "round trip"
		}
		// The address may have any length, so the times have a line of their own.
		out.Printf("%d %s over %s to %s\nleast %s, mean %s, most %s\n", r.Count, trips, r.Transport, r.Address, usec(r.Min), usec(r.Mean), usec(r.Max))
		return out.Err
	})
}

// usec prints a time in microseconds.
func usec(n float64) string { return fmt.Sprintf("%.1f µs", n) }

// pinger tries one process.
type pinger struct {
	e      *cinnabar.Engine
	ep     *cinnabar.Endpoint
	result *pinged
	print  func(layer)
}

// answered records and prints the time until a layer has answered.
func (p *pinger) answered(name string, began time.Time) {
	l := layer{Layer: name, Usec: micro(time.Since(began))}
	p.result.Layers = append(p.result.Layers, l)
	p.print(l)
}

// skipped records and prints the reason why a layer was not tried.
func (p *pinger) skipped(name, why string) {
	l := layer{Layer: name, Note: "not tried: " + why}
	p.result.Layers = append(p.result.Layers, l)
	p.print(l)
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// layers tries the layers from the lowest to the highest.
func (p *pinger) layers(ctx context.Context) error {
	if err := p.tcp(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := p.rpc(ctx); err != nil {
		return p.silent(ctx, err)
	}
	p.answered("rpc", began)
	return p.handler(ctx)
}

// tcp connects as the network does, and closes the connection. The server counts it as a connection without a request.
func (p *pinger) tcp(ctx context.Context) error {
	address := p.ep.String()
	protocol, where, _ := strings.Cut(address[strings.LastIndexByte(address, '#')+1:], "://") // the last part of a combined address is that of the network
	if protocol != "ofi+tcp" && protocol != "ofi+tcps" {
		p.skipped("tcp", "the address is of "+protocol)
		return nil
	}
	began := time.Now()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", where)
	_, unresolved := errors.AsType[*net.DNSError](err)
	switch {
	case err == nil:
	case unresolved:
		return fmt.Errorf("the host of the address is unknown: %w; see whether its name is right", err)
	case ctx.Err() != nil:
		return fmt.Errorf("tcp does not answer: %w; see whether the host is up, and whether a firewall drops packets to that port", err)
	default:
		return fmt.Errorf("tcp does not answer: %w; see whether the process runs, and listens on that address", err)
	}
	p.answered("tcp", began)
	return c.Close()
}

// pingRPC has no arguments and results, because no process serves it.
var pingRPC = cinnabar.NewRPC[struct{}, struct{}](pingName, cinnabar.WithFlavor(cinnabar.Mercury))

// rpc makes one round trip to the RPC layer.
func (p *pinger) rpc(ctx context.Context) error {
	_, err := pingRPC.Call(ctx, p.ep, struct{}{})
	if e, ok := errors.AsType[*cinnabar.Error](err); ok && e.Remote && e.Code == codes.NoEntry {
		return nil
	}
	return err
}

// silent returns the error of a process that did not answer the first request, with the name of the layer.
func (p *pinger) silent(ctx context.Context, err error) error {
	e, ok := errors.AsType[*cinnabar.Error](err)
	switch {
	case ok && e.Remote:
		return fmt.Errorf("rpc: the process answers a request for an unknown RPC in an unexpected way: %w", err)
	case errors.Is(err, codes.HostUnreach) && !errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("connection: the process cannot be reached: %w", err)
	case p.e.Stats().Net.RequestsSent == 0:
		return fmt.Errorf("connection: the process does not answer the protocol's connection request: %w; see whether it speaks %s, and whether it is frozen", err, p.result.Transport)
	case ctx.Err() != nil:
		return fmt.Errorf("rpc: the connection is up, and the request is not answered: %w; see whether the process is frozen, or does not make progress", err)
	}
	return fmt.Errorf("rpc: %w", err)
}

// handler calls the RPC with which processes on Margo, and engines of this module, name their providers.
func (p *pinger) handler(ctx context.Context) error {
	began := time.Now()
	_, err := margo.Identity(ctx, p.ep.Provider(0))
	e, ok := errors.AsType[*cinnabar.Error](err)
	switch {
	case err == nil:
		p.answered("handler", began)
		return nil
	case ok && e.Remote && e.Code == codes.NoEntry:
		p.skipped("handler", "the process has no provider 0; cinnabar call tries an RPC")
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("handler: the RPC layer answers, and the handler does not: %w; see whether all workers of the process are busy or blocked", err)
	}
	return fmt.Errorf("handler: %w", err)
}

// roundTrips measures round trips to the RPC layer.
func (p *pinger) roundTrips(ctx context.Context, n int, interval time.Duration) error {
	r := p.result
	var sum time.Duration
	for i := range n {
		if i > 0 && interval > 0 {
			if err := pause(ctx, interval); err != nil {
				return fmt.Errorf("after %d of %d round trips: %w", i, n, err)
			}
		}
		began := time.Now()
		if err := p.rpc(ctx); err != nil {
			return fmt.Errorf("round trip %d of %d: %w", i+1, n, err)
		}
		elapsed := time.Since(began)
		took := micro(elapsed)
		if i == 0 || took < r.Min {
			r.Min = took
		}
		r.Max = max(r.Max, took)
		sum += elapsed
		r.Count++
	}
	r.Mean = micro(sum / time.Duration(n))
	return nil
}
