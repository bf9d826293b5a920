package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"cinnabar"
	"cinnabar/codes"
)

// Serving is the state of a service.
type Serving uint8

// The states of a service.
const (
	ServingUnknown Serving = iota // the server does not know the service
	ServingYes                    // the service takes requests
	ServingNo                     // the service takes no requests now
)

// String returns "unknown", "serving" or "not serving".
func (s Serving) String() string {
	switch s {
	case ServingUnknown:
		return "unknown"
	case ServingYes:
		return "serving"
	case ServingNo:
		return "not serving"
	}
	return fmt.Sprintf("Serving(%d)", uint8(s))
}

// Health serves the states of a server's services to clients, as the health service of gRPC does. The program names the services. The name "" stands
// for the whole server, whose state is ServingYes until Set changes it. The zero value is ready for use. Health is safe for concurrent use.
type Health struct {
	// MaxWatches is the number of clients that may watch at the same time, half of them from one host; 0: 1024. It is set before Handle is called.
	MaxWatches int

	mu sync.Mutex
	// +checklocks:mu
	watches int
	// +checklocks:mu
	hosts map[any]int // watches of each host
	// +checklocks:mu
	states map[string]Serving
	// +checklocks:mu
	changed chan struct{} // closed by the next Set; nil: nothing waits for it
}

// maxService is the longest name of a service in bytes.
const maxService = 1024

// The RPC and the stream of the health service. Their names begin with two underscores, because engines serve such RPCs outside of Config.RPCPool, whose
// workers may all be busy.
var (
	healthCheck = New[string, Serving]("__native_health__")
	healthWatch = NewStream[string, Serving]("__native_health_watch__")
)

// Set sets the state of a service. Clients that watch the service receive the state. Clients can name services of at most 1,024 bytes.
func (h *Health) Set(service string, s Serving) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.states == nil {
		h.states = map[string]Serving{}
	}
	h.states[service] = s
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// Get returns the state of a service. It is ServingUnknown if Set was not called for it, except for the name "".
func (h *Health) Get(service string) Serving {
	state, _ := h.get(service, false)
	return state
}

// get also returns a channel that is closed by the next Set, if wait is true.
func (h *Health) get(service string, wait bool) (Serving, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	state, known := h.states[service]
	if !known && service == "" {
		state = ServingYes
	}
	if wait && h.changed == nil {
		h.changed = make(chan struct{})
	}
	return state, h.changed
}

// Handle registers the health service with an engine or a provider, for [CheckHealth] and [WatchHealth]. Each client that watches a service has a stream,
// which counts towards the limit of [Stream.Handle] and towards MaxWatches; a further one ends with codes.Again. When the engine begins to shut down, all
// watches end with codes.Draining, because Shutdown waits for all streams.
func (h *Health) Handle(on cinnabar.Registrar, opts ...cinnabar.HandleOption) error {
	check := func(_ context.Context, service string) (Serving, error) {
		if len(service) > maxService {
			return 0, errServiceName
		}
		return h.Get(service), nil
	}
	if err := healthCheck.Handle(on, check, opts...); err != nil {
		return err
	}
	if err := healthWatch.Handle(on, h.watch, opts...); err != nil {
		return errors.Join(err, healthCheck.Remove(on))
	}
	return nil
}

var errServiceName = fmt.Errorf("%w: the name of a service has at most %d bytes", codes.InvalidArg, maxService)

// defaultWatches is the limit if MaxWatches is 0.
const defaultWatches = 1024

// enter counts a watch of a host.
func (h *Health) enter(host any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := cmp.Or(h.MaxWatches, defaultWatches)
	each := (limit + 1) / 2
	switch {
	case h.watches >= limit:
		return fmt.Errorf("%w: %d clients watch services, at most %d (Health.MaxWatches)", codes.Again, h.watches, limit)
	case h.hosts[host] >= each:
		return fmt.Errorf("%w: %d clients of this host watch services, at most %d, half of Health.MaxWatches", codes.Again, h.hosts[host], each)
	}
	if h.hosts == nil {
		h.hosts = map[any]int{}
	}
	h.watches++
	h.hosts[host]++
	return nil
}

// leave ends what enter has begun.
func (h *Health) leave(host any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches--
	if h.hosts[host]--; h.hosts[host] == 0 {
		delete(h.hosts, host)
	}
}

// errEnding ends the watches of an engine that is shutting down.
var errEnding = fmt.Errorf("%w: the server is shutting down", codes.Draining)

// watch is the handler of a client that watches a service. It ends when the engine begins to shut down.
func (h *Health) watch(ctx context.Context, s *ServerStream[string, Serving]) error {
	if err := h.enter(s.core.host); err != nil {
		return err
	}
	defer h.leave(s.core.host)
	until, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() { // until watchUntil has returned
		defer close(ended)
		select {
		case <-s.core.in.server.Ending:
			cancel(errEnding)
		case <-until.Done():
		}
	}()
	err := h.watchUntil(until, s)
	cancel(err)
	<-ended
	if errors.Is(context.Cause(until), errEnding) {
		s.core.out.fail(errOver) // a client that does not receive must not hold up the end
		return errEnding
	}
	return err
}

// watchUntil reports the states of the service that the client names, until ctx ends.
func (h *Health) watchUntil(ctx context.Context, s *ServerStream[string, Serving]) error {
	for service, err := range s.Receive(ctx) {
		switch {
		case err != nil:
			return err
		case len(service) > maxService:
			return errServiceName
		}
		return h.report(ctx, s, service)
	}
	return fmt.Errorf("%w: the client has named no service", codes.InvalidArg)
}

// report sends the state of a service at once and after each change, until ctx ends. Of several changes while Send waits it sends the last one only.
func (h *Health) report(ctx context.Context, s *ServerStream[string, Serving], service string) error {
	for last, first := ServingUnknown, true; ; first = false {
		state, changed := h.get(service, true)
		if state != last || first {
			if err := s.Send(ctx, state); err != nil {
				return err
			}
			last = state
		}
		if err := await(ctx, ctx, changed); err != nil {
			return err
		}
	}
}

// CheckHealth asks the process and provider that to names for the state of a service; "" stands for the whole server. The error is codes.NoEntry if the
// server has no health service.
func CheckHealth(ctx context.Context, to cinnabar.Target, service string) (Serving, error) {
	return healthCheck.Call(ctx, to, service)
}

// WatchHealth opens a stream from which the program receives the state of a service, at once and after each change, until ctx ends or the program
// cancels the stream. A program that receives slowly may miss states between changes, but not the latest one.
func WatchHealth(ctx context.Context, to cinnabar.Target, service string) (*ClientStream[string, Serving], error) {
	s, err := healthWatch.Open(ctx, to)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.Send(ctx, service), s.CloseSend()); err != nil {
		s.Cancel(err)
		return nil, err
	}
	return s, nil
}
