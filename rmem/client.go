package rmem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/rmem/internal/link"
)

// Client is a process that allocates memory at a server. Its regions without a lease are freed when it closes, or dies.
type Client struct {
	srv           server
	session       uint64
	maxRegionSize int64
	stop          context.CancelFunc // ends the watch
	done          chan struct{}      // closed when the session has ended

	mu sync.Mutex
	// +checklocks:mu
	closed bool
}

// server is a server as its clients see it, with a session or without.
type server struct {
	wire
	strict bool
}

// wire is the way to a server: over the RPCs of an engine, or over a queue pair.
type wire interface {
	// ask sends a request. The error is why the server was not reached.
	ask(ctx context.Context, q *request) (*response, error)
	// reach makes a region's memory reachable, at the place that the response names.
	reach(r *response) (reachable, error)
	// handle names a region.
	handle(id uint64) Handle
}

// reachable is a region's memory that is read and written without the server's part.
type reachable interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
}

// ask sends a request. The error is one of this package's, or why the server was not reached.
func (s server) ask(ctx context.Context, q *request) (*response, error) {
	r, err := s.wire.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	return r, r.meaning()
}

func (s server) String() string { return s.handle(0).Server }

func (s server) error(operation string, id uint64, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: operation, Server: s.String(), ID: id, Err: err}
}

// rpcWire is a provider of an engine.
type rpcWire struct{ to cinnabar.ProviderHandle }

func (w rpcWire) ask(ctx context.Context, q *request) (*response, error) {
	r, err := rpcRequest.Call(ctx, w.to, *q)
	return &r, err
}

func (w rpcWire) reach(r *response) (reachable, error) {
	var h cinnabar.BulkHandle
	if err := h.UnmarshalBinary(r.Bulk); err != nil || h.Len() != r.Size {
		return nil, ErrProtocol
	}
	return h.On(w.to.Endpoint), nil
}

func (w rpcWire) handle(id uint64) Handle {
	return Handle{Server: w.to.Endpoint.String(), Provider: w.to.ID, ID: id}
}

// byeTime bounds the wait of Close for the server's response.
const byeTime = 2 * time.Second

// Dial makes a client of the server that is the provider to.
func Dial(ctx context.Context, to cinnabar.ProviderHandle) (*Client, error) {
	c := &Client{srv: server{wire: rpcWire{to}}}
	r, err := c.srv.ask(ctx, &request{Op: uint32(opHello)})
	if err != nil {
		return nil, c.srv.error("dial", 0, err)
	}
	c.session, c.maxRegionSize, c.srv.strict = r.Session, r.Limit, r.Strict
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop, c.done = stop, make(chan struct{})
	go c.watch(watching, to)
	return c, nil
}

// watch has a call under way by which the server sees that this client lives, until the session ends. If the connection is
// lost it calls again.
func (c *Client) watch(ctx context.Context, to cinnabar.ProviderHandle) {
	defer close(c.done)
	for rest := link.LeastPause; ; rest = min(2*rest, link.MostPause) {
		r, err := rpcWatch.Call(ctx, to, request{Session: c.session})
		switch {
		case err == nil && r.Status != 0, ctx.Err() != nil, errors.Is(err, cinnabar.ErrClosed):
			return
		case errors.Is(err, codes.NoEntry): // the process is there, and lends no memory any more
			return
		}
		link.Pause(ctx, rest)
		if ctx.Err() != nil {
			return
		}
	}
}

// MaxRegionSize returns how many bytes a region may have, as the server says.
func (c *Client) MaxRegionSize() int64 { return c.maxRegionSize }

// Done returns a channel that is closed when the session has ended, and with it all regions without a lease: after Close, after
// the end of the engine, and when the server answers that it has ended the session or lends no memory. A server that cannot be
// reached does not end the session over an engine, because the client connects again; over verbs the end of the connection ends it.
func (c *Client) Done() <-chan struct{} { return c.done }

// Alloc allocates size bytes of zeroed memory that live until Free, or the end of the client.
func (c *Client) Alloc(ctx context.Context, size int64) (*Region, error) {
	return c.AllocWith(ctx, size, AllocOptions{})
}

// AllocLease is Alloc for memory that lives as long as the lease, which the server may cut ([Region.Lease]), and may outlive
// the client. Every process with the token can renew it.
func (c *Client) AllocLease(ctx context.Context, size int64, lease time.Duration) (*Region, error) {
	if lease <= 0 {
		return nil, c.srv.error("allocate", 0, ErrNoLease)
	}
	return c.AllocWith(ctx, size, AllocOptions{Lease: lease})
}

// AllocOptions holds the options of an allocation. The zero value is a region of the client's, as [Client.Alloc] makes.
type AllocOptions struct {
	// Lease is as of [Client.AllocLease]; 0: none.
	Lease time.Duration

	// Once lends the region for one read to the processes that have its handle. The first of them that calls ReadAt claims the
	// region; when that read has ended, also with an error, the region's key dies and its memory goes back to the server. All
	// others get ErrUsed, and ErrOnce for every operation but a read. A reader that dies meanwhile keeps its claim for a minute.
	// The owner, and every process with the token, uses the region as any other until it is read.
	Once bool

	// Wipe is as Config.Wipe of the server, for one region.
	Wipe bool
}

// AllocWith is Alloc with options.
func (c *Client) AllocWith(ctx context.Context, size int64, on AllocOptions) (*Region, error) {
	const operation = "allocate"
	if on.Lease < 0 {
		return nil, c.srv.error(operation, 0, ErrNoLease)
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, c.srv.error(operation, 0, ErrClosed)
	}
	r, err := c.srv.ask(ctx, &request{Op: uint32(opAlloc), Session: c.session, Size: size, Lease: int64(on.Lease), Once: on.Once, Wipe: on.Wipe})
	if err != nil {
		return nil, c.srv.error(operation, 0, err)
	}
	region, err := newRegion(c.srv, r)
	if err == nil && r.Size != size {
		err = ErrProtocol
	}
	if err != nil {
		return nil, c.srv.error(operation, r.ID, err)
	}
	return region, nil
}

// Open returns a region that another client of the same server has allocated, over this client's connection: the only way
// to do it over verbs. The region is not this client's, and must not be used after Close.
func (c *Client) Open(ctx context.Context, h Handle) (*Region, error) {
	if here := c.srv.handle(h.ID); here != h {
		return nil, c.srv.error("open", h.ID, fmt.Errorf("%w here: it is of provider %d of %s", ErrUnknown, h.Provider, h.Server))
	}
	return open(ctx, c.srv, h.ID, nil)
}

// Close ends the session: the server frees the regions without a lease. They must not be used any more.
// The error says why the server was not reached; it then ends the session when the engine's connection to it has ended.
func (c *Client) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), byeTime)
	defer cancel()
	_, err := c.srv.ask(ctx, &request{Op: uint32(opBye), Session: c.session})
	c.stop()
	<-c.done
	if errors.Is(err, cinnabar.ErrClosed) || errors.Is(err, codes.NoEntry) {
		err = nil // this engine or the server is closed, and the session with it
	}
	return c.srv.error("close", 0, err)
}
