package hello_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"cinnabar"
	"cinnabar/codes"
	"cinnabar/examples/hello"
	"cinnabar/regmem/pool"
)

func explain(err error) string {
	e, ok := errors.AsType[*cinnabar.Error](err)
	switch {
	case err == nil:
		return "it worked"
	case errors.Is(err, context.DeadlineExceeded): // is codes.Timeout too
		return "no answer in time"
	case errors.Is(err, codes.NoEntry):
		return "the server does not know this procedure"
	case errors.Is(err, codes.HostUnreach):
		return "there is nobody, or not any more"
	case ok && e.Remote:
		return "the server answers " + e.Code.Error()
	}
	return err.Error()
}

// greetAll calls all servers at once and returns their greetings in the order in which they come.
func greetAll(ctx context.Context, servers []*cinnabar.Endpoint, name string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // gives up the others if one fails
	var calls []*cinnabar.Pending[hello.Out]
	for _, s := range servers {
		calls = append(calls, hello.Greet.Start(ctx, s, hello.In{Name: name}))
	}
	var greetings []string
	for _, call := range cinnabar.Completed(ctx, calls...) {
		out, err := call.Wait()
		if err != nil {
			return nil, err
		}
		greetings = append(greetings, out.Greeting)
	}
	return greetings, ctx.Err()
}

// serveTwo serves the same RPC by two providers of one process.
func serveTwo(engine *cinnabar.Engine) error {
	for id, language := range map[uint16]string{1: "hello", 2: "salut"} {
		p, err := engine.NewProvider(id, "greeter")
		if err != nil {
			return err
		}
		err = hello.Greet.Handle(p, func(_ context.Context, in hello.In) (hello.Out, error) {
			return hello.Out{Greeting: language + ", " + in.Name}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func inFrench(ctx context.Context, server *cinnabar.Endpoint, name string) (hello.Out, error) {
	return hello.Greet.Call(ctx, server.Provider(2), hello.In{Name: name})
}

var Note = cinnabar.NewOneWay[hello.In]("note")

func note(ctx context.Context, server *cinnabar.Endpoint, name string) error {
	return Note.Send(ctx, server, hello.In{Name: name}) // the request has left; no more is known
}

// queue answers its calls when their turn comes, from a goroutine of its own.
type queue chan *cinnabar.Call[hello.In, hello.Out]

func (q queue) serve(engine *cinnabar.Engine) error {
	return hello.Greet.HandleCall(engine, func(c *cinnabar.Call[hello.In, hello.Out]) { q <- c })
}

func (q queue) work() {
	for c := range q {
		if c.Context().Err() != nil {
			_ = c.Fail(c.Context().Err()) // the caller is gone
			continue
		}
		_ = c.Respond(c.Context(), hello.Out{Greeting: "at last, " + c.In.Name})
	}
}

// forward serves a call by making another one.
func forward(engine *cinnabar.Engine, next *cinnabar.Endpoint) error {
	return hello.Greet.Handle(engine, func(ctx context.Context, in hello.In) (hello.Out, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return hello.Greet.Call(ctx, next, in)
	})
}

// logging makes an interceptor that logs every call.
func logging(log *slog.Logger) cinnabar.Interceptor {
	return func(ctx context.Context, c *cinnabar.CallInfo, next func(context.Context) error) error {
		start := time.Now()
		err := next(ctx)
		log.InfoContext(ctx, c.RPC, "server", c.Server, "peer", c.Peer, "took", time.Since(start), "error", err)
		return err
	}
}

// bounded opens an engine with a pool of two workers beside its other handlers.
func bounded(ctx context.Context, address string, log *slog.Logger) (*cinnabar.Engine, *cinnabar.HandlerPool, error) {
	engine, err := cinnabar.Listen(ctx, address, &cinnabar.Config{
		MaxHandlers:  256,
		MaxQueued:    1024,
		Pools:        []cinnabar.PoolConfig{{Name: "disk", Workers: 2, Queue: 64}},
		Interceptors: []cinnabar.Interceptor{logging(log)},
	})
	if err != nil {
		return nil, nil, err
	}
	return engine, engine.LookupPool("disk"), nil
}

type CountIn struct {
	Text cinnabar.BulkHandle
}

type CountOut struct {
	Words uint64
}

var Count = cinnabar.NewRPC[CountIn, CountOut]("count")

// countWords exposes text to the server for the time of the call.
func countWords(ctx context.Context, engine *cinnabar.Engine, server *cinnabar.Endpoint, text []byte) (uint64, error) {
	lent, err := engine.Expose(cinnabar.ReadOnly, text)
	if err != nil {
		return 0, err
	}
	defer func() { _ = lent.Close() }()
	out, err := Count.Call(ctx, server, CountIn{Text: lent.Handle()})
	return out.Words, err
}

// serveCount pulls the text of each call into memory of its own and counts there.
func serveCount(engine *cinnabar.Engine) error {
	const most = 64 << 20
	return Count.Handle(engine, func(ctx context.Context, in CountIn) (CountOut, error) {
		if n := in.Text.Len(); n > most {
			return CountOut{}, fmt.Errorf("%w: text of %d bytes, at most %d are taken", codes.MsgSize, n, most)
		}
		text, err := engine.Alloc(cinnabar.WriteOnly, in.Text.Len())
		if err != nil {
			return CountOut{}, err
		}
		defer func() { _ = text.Close() }()
		if _, err := in.Text.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, text); err != nil {
			return CountOut{}, err
		}
		return CountOut{Words: uint64(len(bytes.Fields(text.Bytes())))}, nil
	})
}

// second pulls the second half of the remote memory into the first half of local, a MiB at a time.
func second(ctx context.Context, remote cinnabar.RemoteBulk, local *cinnabar.Bulk) (int64, error) {
	half := remote.Len() / 2
	return remote.Slice(half, half).PullChunks(ctx, local.Slice(0, half), 1<<20, 4)
}

// listing names the files in an archive that lies in another process's memory, of which it reads the directory only.
func listing(ctx context.Context, remote cinnabar.RemoteBulk) ([]string, error) {
	archive, err := zip.NewReader(remote.Reader(ctx), remote.Len())
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range archive.File {
		names = append(names, f.Name)
	}
	return names, nil
}

// makeBuffers makes a pool of 16 buffers of 1 MiB.
func makeBuffers(engine *cinnabar.Engine) (*pool.Pool[*cinnabar.Bulk], error) {
	return pool.New(16, func() (*cinnabar.Bulk, error) { return engine.Alloc(cinnabar.WriteOnly, 1<<20) })
}

// serveCountFromPool is serveCount with buffers of a pool. A handler that finds the pool empty waits for a buffer.
func serveCountFromPool(engine *cinnabar.Engine, buffers *pool.Pool[*cinnabar.Bulk]) error {
	return Count.Handle(engine, func(ctx context.Context, in CountIn) (CountOut, error) {
		buf, err := buffers.Get(ctx)
		if err != nil {
			return CountOut{}, err
		}
		defer func() { _ = buffers.Release(buf) }()
		n, err := in.Text.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, buf)
		if err != nil {
			return CountOut{}, err
		}
		return CountOut{Words: uint64(len(bytes.Fields(buf.Bytes()[:n])))}, nil
	})
}

// fromOwner pulls from the process that the handle names, which need not be the one that sent the handle.
func fromOwner(ctx context.Context, engine *cinnabar.Engine, h cinnabar.BulkHandle, into *cinnabar.Bulk) (int64, error) {
	owner, err := h.Owner(engine)
	if err != nil {
		return 0, err
	}
	return h.On(owner).Pull(ctx, into)
}

// lendFile lets peers read a file without reading it here.
func lendFile(engine *cinnabar.Engine, name string) (*cinnabar.Bulk, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	return engine.ExposeFile(cinnabar.ReadOnly, f)
}
