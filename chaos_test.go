package cinnabar

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"cinnabar/codes"
	"cinnabar/stats"
)

// chaosIn are the arguments and results of the RPCs of chaos: from nothing to more than fits into a message, and memory.
type chaosIn struct {
	N    uint32
	Data []byte `proc:"count=N"`
	Bulk BulkHandle
}

// chaos is a server and a client that do everything at once, until one of them is ended.
type chaos struct {
	server, client *Engine
	ep             *Endpoint
	stop           chan struct{}
}

var (
	chaosShort  = NewRPC[chaosIn, chaosIn]("chaos short")
	chaosLong   = NewRPC[chaosIn, chaosIn]("chaos long")
	chaosOneWay = NewOneWay[chaosIn]("chaos one-way")
)

// TestChaos ends servers and clients, in good order or at once, in whatever order, while calls, transfers and cancels of
// all kinds go on. Everything ends in time, and nothing is left.
func TestChaos(t *testing.T) {
	rounds := 25
	if brief() {
		rounds = 10
	}
	for range rounds {
		c := newChaos(t)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { c.load(t) })
		}
		elapse(rand.N(40 * time.Millisecond))
		c.endServer(t)
		if rand.N(2) == 0 {
			close(c.stop)
			wg.Wait()
			must(t, c.client.Close())
		} else {
			must(t, c.client.Close())
			close(c.stop)
			wg.Wait()
		}
		waitFor(t, func() bool { return isIdle(c.server.Stats()) && isIdle(c.client.Stats()) })
	}
}

func isIdle(s stats.Snapshot) bool {
	one := s.Pools["one"]
	return s.CallsActive == 0 && s.RequestsActive == 0 && s.TransfersActive == 0 && s.OverflowBytes == 0 &&
		s.Handlers.Running+s.Handlers.Waiting+s.Handlers.Queued == 0 && one.Running+one.Waiting+one.Queued == 0
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{stop: make(chan struct{}), client: calling(t, nil)}
	c.server = listening(t, &Config{Logger: slog.New(slog.DiscardHandler), MaxHandlers: 6, MaxQueued: 20, Pools: []PoolConfig{{Name: "one"}}})
	c.ep = reach(t, c.client, c.server)
	must(t, chaosShort.Handle(c.server, c.handle, WithPool(c.server.LookupPool("one"))))
	must(t, chaosLong.HandleCall(c.server, c.handleLong))
	must(t, chaosOneWay.Handle(c.server, func(ctx context.Context, in chaosIn) error {
		_, err := c.handle(ctx, in)
		return err
	}))
	return c
}

// endServer ends the server. A Shutdown has no time for answers that nobody fetches.
func (c *chaos) endServer(t *testing.T) {
	t.Helper()
	if rand.N(2) == 0 {
		must(t, c.server.Close())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := c.server.Shutdown(ctx); err != nil && codes.Of(err) != codes.Timeout {
		t.Error(err)
	}
}

// handle pulls and pushes the memory that it is told of, and answers with its arguments.
func (c *chaos) handle(ctx context.Context, in chaosIn) (chaosIn, error) {
	out := chaosIn{N: in.N, Data: in.Data}
	if in.Bulk == (BulkHandle{}) {
		return out, nil
	}
	local, err := c.server.Alloc(ReadWrite, in.Bulk.Len())
	if err != nil {
		return out, err
	}
	remote := in.Bulk.On(InfoFrom(ctx).Peer)
	_, err = remote.Pull(ctx, local)
	if err == nil {
		_, err = remote.StartPush(ctx, local).Wait()
	}
	return out, errors.Join(err, local.Close())
}

// handleLong answers now, later, with an error, or not at all.
func (c *chaos) handleLong(call *Call[chaosIn, chaosIn]) {
	switch rand.N(4) {
	case 0:
		go func() { _ = call.Respond(call.Context(), call.In) }() // the engine may have ended
	case 1:
		panic("as it may happen")
	case 2:
		go func() {
			<-call.Context().Done()
			_ = call.Fail(codes.Busy)
		}()
		_ = call.Respond(call.Context(), chaosIn{})
	default:
		out, err := c.handle(call.Context(), call.In)
		if err != nil {
			_ = call.Fail(err)
			return
		}
		_ = call.Respond(call.Context(), out)
	}
}

// load makes calls until it is told to stop or the client has ended.
func (c *chaos) load(t *testing.T) {
	mem, err := c.client.Expose(ReadWrite, make([]byte, 20000))
	if err != nil {
		return
	}
	defer closeBulk(t, mem)
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		in := chaosIn{N: rand.Uint32N(8000)}
		in.Data = make([]byte, in.N)
		if rand.N(3) == 0 {
			in.Bulk = mem.Slice(0, rand.Int64N(3)*9999).Handle()
		}
		if errors.Is(c.call(t, in), ErrClosed) {
			return
		}
	}
}

// call makes one call of a random kind.
func (c *chaos) call(t *testing.T, in chaosIn) (err error) {
	limit := testLimit
	if rand.N(5) == 0 {
		limit = rand.N(300 * time.Microsecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	var out chaosIn
	switch rand.N(4) {
	case 0:
		out, err = chaosShort.Call(ctx, c.ep, in)
	case 1:
		out, err = chaosLong.Start(ctx, c.ep, in).Wait()
	case 2:
		err = chaosOneWay.Send(ctx, c.ep, in)
	default:
		p := chaosShort.Start(ctx, c.ep, in)
		p.cancel()
		if rand.N(2) == 0 {
			out, err = p.Wait()
		}
	}
	if took := time.Since(start); took > testLimit/2 {
		t.Errorf("took %v: %v", took, err)
	}
	if len(out.Data) != 0 && out.N != in.N {
		t.Errorf("%d bytes back of %d", out.N, in.N)
	}
	return err
}
