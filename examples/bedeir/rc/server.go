package rc

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"cinnabar/verbs"
	"cinnabar/verbs/rdmacm"
)

// ServerLoop listens at hostport, "host:port", and serves connections until ctx
// ends, and returns the cause of that (rc_server_loop). An empty host is every address of
// this machine, port 0 a free one. The error of one connection is passed to
// its Disconnect callback and does not end the loop. When the loop ends, its
// connections are ended in order and every callback has returned.
func (l *Library) ServerLoop(ctx context.Context, hostport string) error {
	ch := rdmacm.NewEventChannel(nil)
	id, err := l.listen(ctx, ch, hostport)
	if err != nil {
		return errors.Join(err, ch.Close())
	}
	if l.cfg.Listening != nil {
		l.cfg.Listening(id.LocalAddr())
	}
	s := &server{lib: l, ch: ch, free: make(chan struct{}, l.cfg.MaxConns)}
	ctx, s.stop = context.WithCancelCause(ctx)
	err = s.loop(ctx)
	s.stop(err)
	_ = ch.Close() // rejects new connections; the established ones have channels of their own
	s.conns.Wait()
	return err
}

// listen binds a new identifier to the first address of hostport that can be had.
func (l *Library) listen(ctx context.Context, ch *rdmacm.EventChannel, hostport string) (*rdmacm.ID, error) {
	addrs, err := verbs.Resolve(ctx, hostport)
	if err != nil {
		return nil, &Error{Op: opListen, Peer: hostport, Err: err}
	}
	id, err := ch.NewID(l.dev)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, addr := range addrs { // "every address" may fail for IPv6 on a machine that has none
		if err := id.Listen(addr, verbs.ListenConfig{}); err != nil {
			errs = append(errs, err)
			continue
		}
		return id, nil
	}
	return nil, &Error{Op: opListen, Peer: hostport, Err: errors.Join(errs...)}
}

// server is a ServerLoop that runs.
type server struct {
	lib   *Library
	ch    *rdmacm.EventChannel
	stop  context.CancelCauseFunc // ends the loop and its connections
	free  chan struct{}           // has room for as many connections as may be served
	conns sync.WaitGroup          // a goroutine for each connection
}

// loop serves requests until ctx or the listener ends.
func (s *server) loop(ctx context.Context) error {
	for {
		select {
		case s.free <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		e, err := s.ch.Get(ctx)
		if err != nil {
			return context.Cause(ctx) // only the end of ctx ends Get here
		}
		if err := s.handle(ctx, e); err != nil {
			return err
		}
	}
}

// handle acts on an event of the listener. It passes the place that loop took
// to the connection, or gives it back.
func (s *server) handle(ctx context.Context, e *rdmacm.Event) error {
	e.Ack()
	switch e.Type {
	case rdmacm.EventConnectRequest:
		s.conns.Go(func() {
			defer func() { <-s.free }()
			s.serve(ctx, e.ID)
		})
		return nil
	case rdmacm.EventConnectError, rdmacm.EventDeviceRemoval:
		return &Error{Op: opListen, Peer: e.ID.LocalAddr().String(), Err: eventError(e)}
	default:
		s.lib.ignored(e)
		<-s.free
		return nil
	}
}

// serve takes one connection from its request to its end.
func (s *server) serve(ctx context.Context, id *rdmacm.ID) {
	c := &Conn{lib: s.lib, id: id, ch: rdmacm.NewEventChannel(nil), peer: id.RemoteAddr().String(), op: opServe}
	if err := id.Migrate(c.ch); err != nil { // the server has stopped, and closed id
		return
	}
	err := c.work(ctx, c.accept)
	told := c.prepared && s.lib.cfg.Disconnect != nil
	switch {
	case isFatal(err):
		s.stop(err)
	case err != nil && !told:
		s.lib.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "connection failed", slog.Any("error", err))
	}
}
