package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"cinnabar"
	"cinnabar/native"
)

type blob struct {
	Data []byte `proc:"counted=uint64"`
}

var (
	nativeCall   = native.New[blob, struct{}]("bench call")
	nativePull   = native.New[memory, struct{}]("bench pull")
	nativeStream = native.NewStream[blob, struct{}]("bench stream")
)

// memory is a payload in the memory of the client.
type memory struct {
	Handle cinnabar.BulkHandle
}

type nativeService struct {
	e    *cinnabar.Engine
	into *cinnabar.Bulk // the memory of all pulls, as the plain path has one buffer for a connection
}

func serveNative(cfg *tls.Config) (service, error) {
	e, err := cinnabar.Listen(context.Background(), "ofi+tcps://127.0.0.1", &cinnabar.Config{TLS: cfg})
	if err != nil {
		return nil, err
	}
	s := &nativeService{e: e}
	if s.into, err = e.Alloc(cinnabar.WriteOnly, largeSize); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	err = errors.Join(
		nativePull.Handle(e, s.pull),
		nativeCall.Handle(e, func(context.Context, blob) (struct{}, error) { return struct{}{}, nil }),
		nativeStream.Handle(e, func(ctx context.Context, s *native.ServerStream[blob, struct{}]) error {
			for _, err := range s.Receive(ctx) {
				if err != nil {
					return err
				}
			}
			return nil
		}))
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// pull pulls a payload.
func (s *nativeService) pull(ctx context.Context, in memory) (struct{}, error) {
	n, err := in.Handle.On(cinnabar.InfoFrom(ctx).Peer).Pull(ctx, s.into)
	if err == nil && n != in.Handle.Len() {
		err = fmt.Errorf("%d bytes of %d were pulled", n, in.Handle.Len())
	}
	return struct{}{}, err
}

func (s *nativeService) addr() string { return s.e.Addr() }
func (s *nativeService) close() error { return errors.Join(s.into.Close(), s.e.Close()) }

type nativeClient struct {
	e  *cinnabar.Engine
	to *cinnabar.Endpoint
}

func dialNative(addr string, cfg *tls.Config) (client, error) {
	e, err := cinnabar.Open(context.Background(), "ofi+tcps://127.0.0.1", &cinnabar.Config{TLS: cfg})
	if err != nil {
		return nil, err
	}
	to, err := e.Lookup(addr)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &nativeClient{e, to}, nil
}

func (c *nativeClient) call(ctx context.Context, data []byte) error {
	_, err := nativeCall.Call(ctx, c.to, blob{data})
	return err
}

func (c *nativeClient) stream(ctx context.Context, data []byte, d time.Duration) (n int, err error) {
	s, err := nativeStream.Open(ctx, c.to)
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(d); n&63 != 0 || time.Now().Before(end); n++ {
		if err := s.Send(ctx, blob{data}); err != nil {
			return n, err
		}
	}
	if err := s.CloseSend(); err != nil {
		return n, err
	}
	return n, s.Wait(ctx)
}

func (c *nativeClient) close() error { return c.e.Close() }

// bulkClient is a nativeClient whose server pulls the payload.
type bulkClient struct {
	nativeClient
	lent *cinnabar.Bulk
}

func dialBulk(addr string, cfg *tls.Config) (client, error) {
	c, err := dialNative(addr, cfg)
	if err != nil {
		return nil, err
	}
	b := &bulkClient{nativeClient: *c.(*nativeClient)}
	if b.lent, err = b.e.Alloc(cinnabar.ReadOnly, largeSize); err != nil {
		return nil, errors.Join(err, b.e.Close())
	}
	return b, nil
}

func (b *bulkClient) call(ctx context.Context, _ []byte) error {
	_, err := nativePull.Call(ctx, b.to, memory{b.lent.Handle()})
	return err
}

func (b *bulkClient) close() error { return errors.Join(b.lent.Close(), b.e.Close()) }
