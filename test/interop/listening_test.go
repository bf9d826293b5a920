//go:build linux

package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar"
	"cinnabar/codes"
)

// listensAt waits until a program answers requests, and returns its address. Not all of those that come with the C libraries
// print it, so the kernel is asked at which port the process listens.
func (p *process) listensAt() string {
	p.t.Helper()
	ctx := limited(p.t, patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if port := listeningPort(p.t, p.Pid()); port != 0 {
			addr := fmt.Sprintf("%s:%d", tcp, port)
			awaitAnswer(p.t, ctx, addr)
			return addr
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("%s does not listen within %v\n%s", p.name, patience, p.log())
		}
	}
}

// listeningPort returns the port of TCP on 127.0.0.1 at which a process listens, 0 if there is none.
func listeningPort(t *testing.T, pid int) (port uint16) {
	t.Helper()
	const loopback, listening = "0100007F", "0A"
	sockets := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil { // it may be closed already
			sockets[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	f, err := os.Open("/proc/net/tcp")
	must(t, err)
	defer func() { _ = f.Close() }() // nothing is lost
	for in := bufio.NewScanner(f); in.Scan(); {
		w := strings.Fields(in.Text())
		if len(w) < 10 || w[3] != listening || !sockets[w[9]] {
			continue
		}
		if ip, hex, _ := strings.Cut(w[1], ":"); ip == loopback {
			_, err := fmt.Sscanf(hex, "%X", &port)
			must(t, err)
		}
	}
	return port
}

// awaitAnswer waits until the program at addr answers a request for an RPC that it has not.
func awaitAnswer(t *testing.T, ctx context.Context, addr string) {
	t.Helper()
	e, err := cinnabar.Open(ctx, tcp, &cinnabar.Config{DialRetry: patience})
	must(t, err)
	defer closeEngine(t, e)
	to, err := e.Lookup(addr)
	must(t, err)
	if _, err := mercury.unknown.Call(ctx, to, none{}); !errors.Is(err, codes.NoEntry) {
		t.Fatalf("%s answers %v; want %v", addr, err, codes.NoEntry)
	}
}
