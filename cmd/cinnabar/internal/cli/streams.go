package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"

	"cinnabar/internal/audit"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/sockio"

	"github.com/vbauerster/mpb/v8/cwriter"
)

// Streams are the input and the outputs of a command. Commands take them as values
// so that tests see every byte.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// MayPrint reports whether one more line about a peer's failure may be printed. A host gets as many as it gets in logs,
// so that no peer fills a terminal or a disk. more is the end of the line, about failures that were not printed.
func MayPrint(peer netip.AddrPort) (more string, ok bool) {
	n, ok := audit.Allow(hostquota.HostOf(peer.Addr()))
	if n > 0 {
		more = fmt.Sprintf(" (and %d failures of this host were not printed)", n)
	}
	return more, ok
}

// NotePeer prints a line about a peer's failure, if it may.
func (s Streams) NotePeer(peer net.Addr, format string, args ...any) {
	at, _ := netip.ParseAddrPort(peer.String()) // zero if it is no address of a network
	if more, ok := MayPrint(at); ok {
		s.Notef("%s%s\n", fmt.Sprintf(format, args...), more)
	}
}

// Notef prints a note on standard error. It drops the error of the write,
// because there is no other place to report it.
func (s Streams) Notef(format string, args ...any) { _, _ = fmt.Fprintf(s.Err, format, args...) }

// SyncWriter lets several goroutines write whole lines to one writer.
type SyncWriter struct {
	mu sync.Mutex
	W  io.Writer // +checklocks:mu
}

func (s *SyncWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.W.Write(b)
}

// Shut closes c without an error, for a closer that is not used any more or
// has failed already.
func Shut(c io.Closer) { _ = c.Close() }

// Interrupt makes the calls on c fail once ctx ends, until the returned
// function is called.
func Interrupt(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(sockio.Past) }) // fails only on a closed connection
}

// InterruptAccept makes l.Accept fail once ctx ends, until the returned
// function is called.
func InterruptAccept(ctx context.Context, l net.Listener) (stop func() bool) {
	return context.AfterFunc(ctx, func() { Shut(l) })
}

// IsTerminal reports whether a person may be looking at w.
func IsTerminal(w io.Writer) (is bool) {
	withDescriptor(w, func(fd int) { is = cwriter.IsTerminal(fd) })
	return is
}

// withDescriptor calls f with the descriptor of w if that is a file. It does not use [os.File.Fd], because that would make deadlines of reads
// ineffective, with which the command top ends.
func withDescriptor(w io.Writer, f func(fd int)) {
	file, ok := w.(*os.File)
	if !ok {
		return
	}
	if c, err := file.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { f(int(fd)) }) // fails only on a closed file, which is no terminal
	}
}

// Columns returns the number of columns of the terminal w, at most [Width]. If w is no terminal, it returns Width.
func Columns(w io.Writer) int {
	width := Width
	withDescriptor(w, func(fd int) {
		if columns, _, err := cwriter.GetSize(fd); err == nil && columns > 0 {
			width = min(columns, Width)
		}
	})
	return width
}
