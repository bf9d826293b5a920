package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// streams are what a command reads and writes. Commands take them as values
// so that tests see every byte.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// notef prints a note on standard error. Where even that fails, there is
// nobody left to tell.
func (s streams) notef(format string, args ...any) { _, _ = fmt.Fprintf(s.err, format, args...) }

// syncWriter lets several goroutines write whole lines to one writer.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer // +checklocks:mu
}

func (s *syncWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// shut closes what has done its part, or what failed already: the result of
// closing it would change nothing.
func shut(c io.Closer) { _ = c.Close() }

// past is a deadline that has gone by.
var past = time.Unix(1, 0)

// interrupt makes the calls on c fail once ctx ends, until the returned
// function is called.
func interrupt(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) }) // fails only on a closed connection
}

// interruptAccept makes l.Accept fail once ctx ends, until the returned
// function is called.
func interruptAccept(ctx context.Context, l net.Listener) (stop func() bool) {
	return context.AfterFunc(ctx, func() { shut(l) })
}
