package balance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/internal/invariants"
	"cinnabar/native"
)

// Policy chooses among the servers that are serving.
type Policy uint8

const (
	RoundRobin  Policy = iota // one after the other
	LeastLoaded               // one with the fewest calls of this Client under way
	PickFirst                 // the first in the order of the Resolver
)

// String returns the name of the policy.
func (p Policy) String() string {
	switch p {
	case RoundRobin:
		return "round robin"
	case LeastLoaded:
		return "least loaded"
	case PickFirst:
		return "pick first"
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// Config is the configuration of a Client. Fields that are 0 have the defaults that their comments name.
type Config struct {
	Resolver   Resolver // must not be nil
	Policy     Policy
	Service    string // the name that the servers' native.Health has for the service; "": the whole server
	MaxServers int    // servers that are used; 0: 256. Further ones of the Resolver are left out

	Refresh time.Duration // between two calls of the Resolver; 0: 30 s
	// MinRefresh is the least time between two calls, also when servers fail, so that an outage does not become a flood of queries; 0: 1 s.
	MinRefresh time.Duration

	Attempts int // how often one call is sent at most, without a hedge; 0: 3
	// RetryRatio is the number of repetitions and hedges that each call adds to the budget, which begins with ten and has ten at most. So a client may
	// repeat ten calls at once, and in the long run this part of its calls; 0: 0.1.
	RetryRatio float64
	// Hedge is the time after which an idempotent call is sent to a second server, too, if there is no response. The first response is the result, and
	// the other call is cancelled. 0: never.
	Hedge time.Duration
}

// Defaults and fixed limits.
const (
	defaultServers  = 256
	defaultRefresh  = 30 * time.Second
	defaultMin      = time.Second
	defaultAttempts = 3
	defaultRatio    = 0.1
	resolveTime     = 10 * time.Second      // for one Resolve
	reportTime      = 20 * time.Second      // for the connection to a server and its first report
	firstPause      = 50 * time.Millisecond // before a server that has failed is tried again
	lastPause       = 10 * time.Second
	steadyTime      = lastPause             // for which a server is ready before firstPause comes again
	repeatPause     = 10 * time.Millisecond // before a call is repeated, doubled each time
)

// ErrClosed is the error of a Client that is closed. It matches [net.ErrClosed].
var ErrClosed = fmt.Errorf("balance: client is closed (%w)", net.ErrClosed)

// Client distributes calls over the servers of a service. It has a goroutine that resolves, and a goroutine and a stream for the health of each server,
// until Close.
type Client struct {
	cfg    Config
	budget budget
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wanted chan struct{} // has an element if run should call the Resolver soon

	targets map[target][]Address // of an SRV, at its last call; only run uses it

	// The functions of the network, which tests replace.
	lookup func(addr string) (*cinnabar.Endpoint, error)
	watch  func(ctx context.Context, to cinnabar.Target, service string, report func(native.Serving)) error

	mu invariants.Mutex
	// +checklocks:mu
	servers []*server // in the order of the Resolver
	// +checklocks:mu
	turn uint // number of the choice: where RoundRobin, and LeastLoaded among equals, begin in the list
	// +checklocks:mu
	resolved bool // the Resolver has answered
	// +checklocks:mu
	problem error // of the last Resolve
	// +checklocks:mu
	changed chan struct{} // closed by the next change; nil: nothing waits
}

// New returns a Client that calls with the engine e, which must be closed after the Client. It does not wait for the Resolver.
func New(e *cinnabar.Engine, cfg *Config) (*Client, error) {
	c, err := newClient(cfg)
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, fmt.Errorf("balance: %w: no engine given", codes.InvalidArg)
	}
	c.lookup, c.watch = e.Lookup, watchHealth
	c.wg.Go(c.run)
	return c, nil
}

func newClient(cfg *Config) (*Client, error) {
	if cfg == nil || cfg.Resolver == nil {
		return nil, fmt.Errorf("balance: %w: Config.Resolver is nil; use a DNS, an SRV or a Static", codes.InvalidArg)
	}
	c := &Client{cfg: *cfg, wanted: make(chan struct{}, 1)}
	switch {
	case cfg.Policy > PickFirst:
		return nil, fmt.Errorf("balance: %w: unknown %v", codes.InvalidArg, cfg.Policy)
	case cfg.MaxServers < 0 || cfg.Attempts < 0 || cfg.Refresh < 0 || cfg.MinRefresh < 0 || cfg.Hedge < 0 || !(cfg.RetryRatio >= 0):
		return nil, fmt.Errorf("balance: %w: a number in Config is negative; 0 is the default", codes.InvalidArg)
	}
	c.cfg.MaxServers = cmp.Or(cfg.MaxServers, defaultServers)
	c.cfg.MinRefresh = cmp.Or(cfg.MinRefresh, defaultMin)
	c.cfg.Refresh = max(c.cfg.MinRefresh, cmp.Or(cfg.Refresh, defaultRefresh))
	c.cfg.Attempts = cmp.Or(cfg.Attempts, defaultAttempts)
	c.budget.init(cmp.Or(cfg.RetryRatio, defaultRatio))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Close ends the goroutines of the Client, and waits for them. Calls under way go on; new ones return ErrClosed.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	c.changedLocked()
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}

// run calls the Resolver at the start, after each Refresh, when servers fail, and when a Notifier says so, but at most once in MinRefresh.
func (c *Client) run() {
	notifier, _ := c.cfg.Resolver.(Notifier)
	for {
		var news <-chan struct{} // nil: never
		if notifier != nil {
			news = notifier.Changed() // before Resolve, so that no change is lost
		}
		c.resolve()
		select {
		case <-c.wanted: // set before the answer, which serves it
		default:
		}
		if !c.pause(c.cfg.MinRefresh) {
			return
		}
		refresh := time.NewTimer(c.cfg.Refresh - c.cfg.MinRefresh)
		select {
		case <-refresh.C:
		case <-c.wanted:
		case <-news:
		case <-c.ctx.Done():
		}
		refresh.Stop()
		if c.ctx.Err() != nil {
			return
		}
	}
}

// pause waits, and returns false if the Client is closed.
func (c *Client) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// want makes run call the Resolver soon, at most once in MinRefresh.
func (c *Client) want() {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
}

// asSRV returns r if it is an SRV itself. A type that embeds one may have a Resolve of its own, which must be called.
func asSRV(r Resolver) (s SRV, ok bool) {
	switch r := r.(type) {
	case SRV:
		return r, true
	case *SRV:
		return *r, true
	}
	return s, false
}

// resolve calls the Resolver, and replaces the servers by those that it returns.
func (c *Client) resolve() {
	ctx, cancel := context.WithTimeout(c.ctx, resolveTime)
	defer cancel()
	var list []Address
	var err error
	if s, ok := asSRV(c.cfg.Resolver); ok {
		list, c.targets, err = s.resolve(ctx, c.targets)
	} else {
		list, err = c.cfg.Resolver.Resolve(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resolved, c.problem = true, err
	if err == nil && c.ctx.Err() == nil {
		c.replaceLocked(list)
	}
	c.changedLocked()
}

// replaceLocked starts the servers that are new in the list, and ends those that are not in it any more.
// +checklocks:c.mu
func (c *Client) replaceLocked(list []Address) {
	old := map[string]*server{}
	for _, s := range c.servers {
		old[s.name] = s
	}
	c.servers = nil
	seen := map[string]bool{}
	for _, a := range list {
		name := a.String()
		if seen[name] {
			continue
		}
		if seen[name] = true; len(seen) > c.cfg.MaxServers {
			break
		}
		s := old[name]
		if delete(old, name); s == nil {
			s = c.start(a, name)
		}
		c.servers = append(c.servers, s)
	}
	for _, s := range old {
		s.cancel()
	}
}

// start starts to watch a server.
func (c *Client) start(a Address, name string) *server {
	s := &server{client: c, name: name}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(c.ctx)
	ep, err := c.lookup(a.Addr)
	if err != nil { // the server stays down, because the address is not valid
		s.state, s.cause = down, err
		return s
	}
	if s.target = ep; a.Provider != nil {
		s.target = ep.Provider(*a.Provider)
	}
	c.wg.Go(func() { s.run(ctx) })
	return s
}

// changedLocked wakes the calls that wait.
// +checklocks:c.mu
func (c *Client) changedLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Server is the state of a server.
type Server struct {
	Addr    string // with the provider behind it
	Ready   bool   // it gets calls
	State   string // "connecting", "ready", "not serving", "draining" or "down"
	Calls   int    // under way
	Problem error  // why it is down
}

// Servers returns the servers in the order of the Resolver, and the error of the Resolver if it has returned one.
func (c *Client) Servers() ([]Server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Server
	for _, s := range c.servers {
		list = append(list, Server{s.name, s.state == ready, s.state.String(), s.calls, s.cause})
	}
	return list, c.problem
}

// Pick returns a server for a call or a stream of the program. The program must call done once, when the call or stream has ended, with its error or
// nil. Until then the Client counts the call for LeastLoaded. By the error the Client finds out that the server is draining or lost. Pick waits while no server is known to be serving but some may be, and
// returns an error with the states of all servers if none is.
func (c *Client) Pick(ctx context.Context) (to cinnabar.Target, done func(error), err error) {
	s, err := c.acquire(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	var once sync.Once
	return s.target, func(err error) { once.Do(func() { s.release(err) }) }, nil
}

// acquire chooses a server and counts a call of it. It prefers those that the call has not tried.
func (c *Client) acquire(ctx context.Context, tried map[*server]bool) (*server, error) {
	for {
		s, changed, err := c.tryAcquire(tried)
		if s != nil || err != nil {
			return s, err
		}
		cinnabar.Block(ctx, func() {
			select {
			case <-changed:
			case <-ctx.Done():
				err = &cinnabar.Error{Op: "choose a server", Code: codes.Of(ctx.Err()), Err: ctx.Err()}
			}
		})
		if err != nil {
			return nil, err
		}
	}
}

// tryAcquire returns a server, or a channel to wait for, or an error.
func (c *Client) tryAcquire(tried map[*server]bool) (*server, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, nil, ErrClosed
	}
	if s := c.chooseLocked(tried); s != nil {
		s.calls++
		return s, nil, nil
	}
	waits := !c.resolved
	for _, s := range c.servers {
		waits = waits || s.state == connecting
	}
	if !waits {
		c.want()
		return nil, nil, c.nothingLocked()
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return nil, c.changed, nil
}

// chooseLocked returns a server that is ready, nil if there is none.
// +checklocks:c.mu
func (c *Client) chooseLocked(tried map[*server]bool) *server {
	var list []*server
	for _, fresh := range []bool{true, false} {
		for _, s := range c.servers {
			if s.state == ready && !(fresh && tried[s]) {
				list = append(list, s)
			}
		}
		if len(list) > 0 {
			break
		}
	}
	if len(list) == 0 {
		return nil
	}
	if c.cfg.Policy == PickFirst {
		return list[0]
	}
	c.turn++
	best := list[c.turn%uint(len(list))]
	if c.cfg.Policy == LeastLoaded {
		for i := range list {
			if s := list[(c.turn+uint(i))%uint(len(list))]; s.calls < best.calls {
				best = s
			}
		}
	}
	return best
}

// maxListed is the number of servers that an error lists.
const maxListed = 8

// nothingLocked returns the error of a call when no server is ready. The code is codes.Draining if all servers are draining, and codes.HostUnreach
// otherwise.
// +checklocks:c.mu
func (c *Client) nothingLocked() error {
	code, causes := codes.Draining, []error{}
	var text strings.Builder
	if len(c.servers) == 0 {
		code = codes.HostUnreach
		text.WriteString("the resolver lists no servers")
	} else {
		fmt.Fprintf(&text, "none of %d servers is ready", len(c.servers))
	}
	for i, s := range c.servers {
		if s.state != draining {
			code = codes.HostUnreach
		}
		if i < maxListed {
			fmt.Fprintf(&text, "; %s is %v", s.name, s.state)
			if s.cause != nil {
				causes = append(causes, fmt.Errorf("%s: %w", s.name, s.cause))
			}
		}
	}
	err := errors.New(text.String())
	if c.problem != nil {
		causes = append(causes, c.problem)
	}
	if len(causes) > 0 {
		err = fmt.Errorf("%w: %w", err, errors.Join(causes...))
	}
	return &cinnabar.Error{Op: "choose a server", Code: code, Err: err}
}

// jitter returns a random time between half of d and d, so that clients which lost a server together do not return together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
