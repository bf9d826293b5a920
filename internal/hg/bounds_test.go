package hg

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/hostquota"
	"cinnabar/internal/logtest"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// TestUnreadResponses has a host leave as many responses unread as it may. Its further requests are dropped, with a line in
// the log, and those of another host are answered, which once were dropped too.
// parity: D31
func TestUnreadResponses(t *testing.T) {
	book := hostquota.NewBook(hostquota.Limits{hostquota.Unsent: 64})
	n := natest.New(natest.Config{Direct: true, Quota: book})
	log := &logtest.Buffer{}
	audit.Reset()
	server := open(t, n, Config{Dispatch: inline{}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	bad, good := openRaw(n), open(t, n, Config{})
	head := make([]byte, wire.FormShort.Size())
	wire.PutRequest(head, wire.Request{ID: 1})
	account := server.at(t, bad.ep).Account()
	for account.Take(hostquota.Unsent, 1) == nil { // as if they waited
	}
	bad.request(server.ep.Addr(), head)
	if s := server.Stats(); s.RequestsDropped != 1 || s.RequestsActive != 0 || !strings.Contains(log.String(), "responses are not read") {
		t.Errorf("%+v, log %q", s, log)
	}
	if _, err := call(t, good, server.ep.Addr(), 1, nil); err != nil {
		t.Errorf("a call of another host: %v", err)
	}
	account.Give(hostquota.Unsent, account.Used(hostquota.Unsent))
	bad.request(server.ep.Addr(), head)
	if s := server.Stats(); s.ResponsesSent != 2 || book.Used(hostquota.Unsent) != 0 {
		t.Errorf("afterwards: %+v, %d unsent", s, book.Used(hostquota.Unsent))
	}
}

// TestForgottenPeers: a process that calls ever new peers holds as much for it as it has connections.
func TestForgottenPeers(t *testing.T) {
	n := natest.New(natest.Config{Direct: true})
	client := open(t, n, Config{Checksums: wire.Detect})
	for range 3 * minSweep {
		c := New(Config{})
		ep := n.Open(c)
		c.Attach(ep)
		c.Serve()
		if _, err := call(t, client, client.at(t, ep), 1, nil); codeFrom(t, err) != codes.NoEntry {
			t.Fatal(err)
		}
		n.Cut(client.ep, ep)
	}
	client.peers.mu.Lock()
	defer client.peers.mu.Unlock()
	if got := len(client.peers.byAddr); got > minSweep {
		t.Errorf("%d peers are remembered, none has a connection", got)
	}
}

// TestLingeringBudget: payloads that are left to peers by calls that were given up hold a bounded amount of memory.
func TestLingeringBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := hostquota.NewBook(hostquota.Limits{hostquota.Memory: 60000}) // one host may have 33750
		n := natest.New(natest.Config{Quota: book})
		deaf := n.Open(mute{})
		client := open(t, n, Config{})
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			k := client.NewCall()
			k.Start(client.at(t, deaf), 1, CallOptions{}, make([]byte, 10000))
			if err := k.Wait(ctx); codeFrom(t, err) != codes.Timeout {
				t.Error(err)
			}
			cancel()
			k.Free()
		}
		synctest.Wait()
		if got := client.ep.Registered(); got != 3 {
			t.Errorf("%d payloads are lent, want 3", got)
		}
		elapse(2 * ackTime)
		if got := client.ep.Registered(); got != 0 || book.Used(hostquota.Memory) != 0 {
			t.Errorf("%d payloads are lent for ever, %d bytes", got, book.Used(hostquota.Memory))
		}
	})
}

// TestErrorSaysThingsOnce: an error of the transport does not repeat what the error around it says.
func TestErrorSaysThingsOnce(t *testing.T) {
	n := natest.New(natest.Config{Direct: true})
	client, server := open(t, n, Config{}), open(t, n, Config{})
	n.Kill(server.ep)
	_, err := call(t, client, server.ep.Addr(), 1, nil)
	addr := server.ep.Addr().String()
	if got, want := err.Error(), "hg: call "+addr+": HG_HOSTUNREACH: request: unreachable"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if na.KindOf(err) != na.Unreachable {
		t.Errorf("kind %v", na.KindOf(err))
	}
	other := &na.Error{Kind: na.Unreachable, Op: "get", Addr: "elsewhere"}
	if got := newError("pull", server.ep.Addr(), codes.HostUnreach, other).Error(); !strings.Contains(got, "elsewhere") {
		t.Errorf("another address is lost: %q", got)
	}
	wrapped := fmt.Errorf("closing: %w", other)
	if got := newError("pull", server.ep.Addr(), codes.HostUnreach, wrapped); got.Err != wrapped { //nolint:errorlint // identity is meant
		t.Errorf("a wrapped error becomes %v", got.Err)
	}
}
