package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// orderVariable is the environment variable that holds the order of a process.
const orderVariable = "CINNABAR_HOSTILE"

// role is the kind of a process.
type role string

const (
	roleServer   role = "server"
	roleInnocent role = "innocent"
	roleAttacker role = "attacker"
	roleSpinner  role = "spinner"
)

// order is the work of one process.
type order struct {
	Role     role
	Service  string
	Attack   string
	Index    int        // of the attacker
	Local    netip.Addr // where the attacker connects from
	Server   notice     // printed by the server
	Innocent notice     // printed by the innocent client
	For      time.Duration
	// CallLimit is the time after which an innocent call has failed.
	CallLimit time.Duration
	Limit     time.Duration // after which the process ends itself
}

// notice is the first line that a server or an innocent client prints.
type notice struct {
	Addr   string
	Handle string `json:",omitempty"` // of memory that the attackers may know
}

// ending is the last line that a server prints.
type ending struct {
	LogLines     int64
	LongestClose time.Duration
}

// effort is the line that an attacker prints at its end.
type effort struct {
	Ops     int64
	Elapsed time.Duration
	Error   string `json:",omitempty"` // the first one
}

// runOrder does the work of an order, given as text, and returns the exit status.
func runOrder(text string, in io.Reader, out, log io.Writer) int {
	o := new(order)
	if err := json.Unmarshal([]byte(text), o); err != nil {
		_, _ = fmt.Fprintf(log, "hostile: %s: %v\n", orderVariable, err)
		return 2
	}
	done := make(chan error, 1)
	go func() { done <- o.act(in, json.NewEncoder(out)) }()
	limit := time.NewTimer(o.Limit)
	defer limit.Stop()
	select {
	case err := <-done:
		if err == nil {
			return 0
		}
		_, _ = fmt.Fprintf(log, "hostile: %s %s: %v\n", o.Role, o.Service, err)
		return 1
	case <-limit.C:
		_, _ = fmt.Fprintf(log, "hostile: %s %s did not end within %v\n", o.Role, o.Service, o.Limit)
		return 3
	}
}

func (o *order) act(in io.Reader, out *json.Encoder) error {
	a := attackOf(o.Service, o.Attack)
	if a == nil {
		return fmt.Errorf("no attack %q", o.Attack)
	}
	s := services[o.Service]
	switch o.Role {
	case roleServer:
		return o.serve(s, a, in, out)
	case roleInnocent:
		return o.beInnocent(s, in, out)
	case roleAttacker:
		return o.attack(in, out, a.run)
	case roleSpinner:
		return o.attack(in, out, spin)
	}
	return fmt.Errorf("no role %q", o.Role)
}

// serve runs the service until in ends.
func (o *order) serve(s *service, a *attack, in io.Reader, out *json.Encoder) error {
	var lines lineCounter
	srv, err := s.serve(a, &lines)
	if err != nil {
		return err
	}
	if err := out.Encode(srv.notice); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in) // its end is the sign to stop, however it ends
	longest := srv.close()
	return out.Encode(ending{lines.n.Load(), longest})
}

// lineCounter counts the writes to it: a log handler makes one for each line.
type lineCounter struct{ n atomic.Int64 }

// Write implements [io.Writer].
func (l *lineCounter) Write(p []byte) (int, error) {
	l.n.Add(1)
	return len(p), nil
}

// attackFunc attacks until ctx ends and counts its operations in ops.
type attackFunc func(ctx context.Context, o *order, ops *counter) error

// attack runs f for the time of the order, and prints the effort. The process ends with its standard input.
func (o *order) attack(in io.Reader, out *json.Encoder, f attackFunc) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.For)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	var ops counter
	start := time.Now()
	err := f(ctx, o, &ops)
	e := effort{Ops: ops.n.Load(), Elapsed: time.Since(start), Error: ops.firstError()}
	if err != nil {
		e.Error = err.Error()
	}
	return out.Encode(e)
}

// counter counts the operations of an attacker, and keeps its first error.
type counter struct {
	n     atomic.Int64
	once  sync.Once
	first atomic.Pointer[string]
}

func (c *counter) add(n int) { c.n.Add(int64(n)) }

// failed notes an error. An attacker expects errors, so they end nothing.
func (c *counter) failed(err error) {
	c.once.Do(func() { c.first.Store(new(err.Error())) })
}

func (c *counter) firstError() string {
	if s := c.first.Load(); s != nil {
		return *s
	}
	return ""
}

// spin takes the processor and does nothing.
func spin(ctx context.Context, _ *order, ops *counter) error {
	for x := uint64(1); ctx.Err() == nil; ops.add(1) {
		for range 100_000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		if x == 0 {
			return nil
		}
	}
	return nil
}

// swarm calls f again and again on n goroutines until ctx ends. After an error the goroutine pauses for a moment.
func swarm(ctx context.Context, ops *counter, n int, f func(ctx context.Context, i int) error) error {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := f(ctx, i); err != nil && ctx.Err() == nil {
					ops.failed(err)
					pause(ctx, time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// pause returns after d, or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
