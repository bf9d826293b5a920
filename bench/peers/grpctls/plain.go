package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// plainService copies payloads over TLS into memory. A client sends the length of a payload and its bytes, and the service answers with one byte. It answers no
// length with the flag inStream, but endOfStream, the flag without a length.
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

const (
	inStream    = 1 << 31 // flag of a length
	endOfStream = inStream
	// recordBytes is the plaintext in bytes of a full record. Both sides of a stream pass as many bytes to crypto/tls in each call, because that is the fastest.
	recordBytes = 16 << 10
)

func receivePayloads(c net.Conn) error {
	var head [4]byte
	var into []byte
	r := bufio.NewReaderSize(c, recordBytes)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		length := binary.BigEndian.Uint32(head[:])
		n := length &^ inStream
		if n > 1<<30 {
			return errors.New("the payload is too long")
		}
		if int(n) > len(into) {
			into = make([]byte, n)
		}
		if _, err := io.ReadFull(r, into[:n]); err != nil {
			return err
		}
		if length > inStream {
			continue
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

type plainClient struct {
	mu   sync.Mutex // of call: one at a time
	c    *tls.Conn
	head [4 + recordBytes]byte
}

func dialPlain(addr string, cfg *tls.Config) (client, error) {
	c, err := tls.Dial("tcp", addr, cfg)
	if err != nil {
		return nil, err
	}
	return &plainClient{c: c}, nil
}

func (c *plainClient) call(_ context.Context, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	head := binary.BigEndian.AppendUint32(c.head[:0], uint32(len(data)))
	if len(data) < recordBytes { // one record
		head = append(head, data...)
		data = nil
	}
	if _, err := c.c.Write(head); err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := c.c.Write(data); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c.c, head[:1])
	return err
}

func (c *plainClient) stream(_ context.Context, data []byte, d time.Duration) (n int, err error) {
	w := bufio.NewWriterSize(c.c, recordBytes)
	head := binary.BigEndian.AppendUint32(nil, inStream|uint32(len(data)))
	for end := time.Now().Add(d); n&63 != 0 || time.Now().Before(end); n++ {
		if _, err := w.Write(head); err != nil {
			return n, err
		}
		if _, err := w.Write(data); err != nil {
			return n, err
		}
	}
	binary.BigEndian.PutUint32(head, endOfStream)
	if _, err := w.Write(head); err != nil {
		return n, err
	}
	if err := w.Flush(); err != nil {
		return n, err
	}
	_, err = io.ReadFull(c.c, head[:1])
	return n, err
}

func (c *plainClient) close() error { return c.c.Close() }
