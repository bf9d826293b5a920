package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// plainService copies payloads over TLS into memory: the length of a payload, its bytes, and one byte back.
type plainService struct {
	ln net.Listener
	wg sync.WaitGroup
}

func servePlain(cfg *tls.Config) (service, error) {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		return nil, err
	}
	s := &plainService{ln: ln}
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				_ = receivePayloads(c) // the client sees an end
			})
		}
	})
	return s, nil
}

func receivePayloads(c net.Conn) error {
	var head [4]byte
	var into []byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > 1<<30 {
			return errors.New("the payload is too long")
		}
		if int(n) > len(into) {
			into = make([]byte, n)
		}
		if _, err := io.ReadFull(c, into[:n]); err != nil {
			return err
		}
		if _, err := c.Write(head[:1]); err != nil {
			return err
		}
	}
}

func (s *plainService) addr() string { return s.ln.Addr().String() }

func (s *plainService) close() error {
	err := s.ln.Close()
	s.wg.Wait() // the clients are gone
	return err
}

type plainClient struct{ c *tls.Conn }

func dialPlain(addr string, cfg *tls.Config) (client, error) {
	c, err := tls.Dial("tcp", addr, cfg)
	if err != nil {
		return nil, err
	}
	return &plainClient{c}, nil
}

func (c *plainClient) call(_ context.Context, data []byte) error {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	if _, err := c.c.Write(head); err != nil {
		return err
	}
	if _, err := c.c.Write(data); err != nil {
		return err
	}
	_, err := io.ReadFull(c.c, head[:1])
	return err
}

func (c *plainClient) stream(context.Context, []byte, time.Duration) (int, error) {
	return 0, errors.ErrUnsupported
}

func (c *plainClient) close() error { return c.c.Close() }
