package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
)

// streams are what a command reads and writes. Commands take them as values
// so that tests see every byte.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// mayPrint reports whether one more line about a peer's failure may be printed. A host gets as many as it gets in logs,
// so that no peer fills a terminal or a disk. more is the end of the line, about failures that were not printed.
func mayPrint(peer netip.AddrPort) (more string, ok bool) {
	n, ok := audit.Allow(hostquota.HostOf(peer.Addr()))
	if n > 0 {
		more = fmt.Sprintf(" (and %d failures of this host were not printed)", n)
	}
	return more, ok
}

// notePeer prints a line about a peer's failure, if it may.
func (s streams) notePeer(peer net.Addr, format string, args ...any) {
	at, _ := netip.ParseAddrPort(peer.String()) // zero if it is no address of a network
	if more, ok := mayPrint(at); ok {
		s.notef("%s%s\n", fmt.Sprintf(format, args...), more)
	}
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
