package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"cinnabar"
)

const (
	crossings    = 100 // pairs of engines that call each other for the first time at once
	crossingsNow = 10  // number of pairs that do so at a time
)

// cross opens new engines on this side. Each of them and the server call each other for the first time at once, so that both connect.
func (s *side) cross(ctx context.Context, server *cinnabar.Endpoint, out io.Writer) error {
	ended := make(chan error, crossingsNow)
	var errs []error
	for i := range crossings {
		if i >= crossingsNow {
			errs = append(errs, <-ended)
		}
		go func() { ended <- s.crossOnce(ctx, server) }()
	}
	for range crossingsNow {
		errs = append(errs, <-ended)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d crossing connections\n", crossings)
	return err
}

// crossOnce opens an engine, which calls the server while the server calls it.
func (s *side) crossOnce(ctx context.Context, server *cinnabar.Endpoint) (err error) {
	e, err := cinnabar.Listen(ctx, s.anyPort, &cinnabar.Config{Device: s.dev})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := echo.Handle(e, func(_ context.Context, in content) (content, error) { return in, nil }); err != nil {
		return err
	}
	to, err := e.Lookup(server.String())
	if err != nil {
		return err
	}
	back := callBack.Start(ctx, server, backIn{e.Addr()})
	err = echoed(ctx, to, pattern(1, small))
	if _, backErr := back.Wait(); backErr != nil {
		err = errors.Join(err, fmt.Errorf("the server calls back: %w", backErr))
	}
	return err
}

// back calls an engine of cross.
func (s *side) back(ctx context.Context, in backIn) (none, error) {
	to, err := s.e.Lookup(in.Address)
	if err != nil {
		return none{}, err
	}
	return none{}, echoed(ctx, to, pattern(2, small))
}
