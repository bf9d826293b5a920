package hg

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"cinnabar/codes"
	"cinnabar/internal/audit"
	"cinnabar/internal/hg/wire"
	"cinnabar/internal/logtest"
	"cinnabar/internal/na"
	"cinnabar/internal/na/natest"
)

// raw is a process that sends what it likes.
type raw struct {
	ep     *natest.Endpoint
	answer []byte // to each request, if not nil
	send   na.Op
}

func openRaw(n *natest.Network) *raw {
	p := &raw{}
	p.ep = n.Open(p)
	p.send.Done = p
	return p
}

func (p *raw) Complete(*na.Op) {}

func (p *raw) Request(m *na.Message) na.Task {
	if p.answer != nil {
		p.respond(m.From, m.Tag, p.answer)
	}
	return nil
}

func (p *raw) respond(to na.Addr, tag uint32, b []byte) {
	p.ep.SendExpected(&p.send, to, tag, append(make([]byte, p.ep.Limits().ResponseRoom), b...))
}

func (p *raw) request(to na.Addr, b []byte) {
	p.ep.SendRequest(&p.send, to, 1, append(make([]byte, p.ep.Limits().RequestRoom), b...))
}

// overflowing returns descriptors of overflows that make no sense, or more sense than there is memory.
func overflowing(t testing.TB) map[string][]byte {
	one := func(base, n uint64) []byte {
		d := wire.NewBulk(wire.BulkReadOnly, []wire.Segment{{Base: base, Length: n}}, func(b []byte, _ int) []byte {
			for _, w := range []uint64{1, n, 1, 1, base, n} {
				b = binary.LittleEndian.AppendUint64(b, w)
			}
			return b
		}, nil)
		return d.AppendProc(nil)
	}
	lent := func(n uint64) []byte { return one(wire.LentBase, n) }
	return map[string][]byte{
		"2^63 bytes":             lent(1 << 63),
		"2^64-1 bytes":           lent(1<<64 - 1),
		"one byte too many":      lent(1<<20 + 1),
		"of somebody else":       lent(1 << 20),
		"nothing":                nil,
		"null":                   golden(t, "proc_null"),
		"cut off":                golden(t, "proc_pull")[:50],
		"not to be read":         changed(golden(t, "proc_pull"), wordSize+flagsAt, wire.BulkWriteOnly),
		"without handle":         one(0, 9),
		"handle of another kind": changed(golden(t, "proc_pull"), wordSize+56, 2),
		"empty":                  one(0, 0),
	}
}

// TestHostileRequests has a peer send overflows that cannot be: no memory is taken for them, and others are served.
// parity: H61 D05
func TestHostileRequests(t *testing.T) {
	for name, desc := range overflowing(t) {
		n := natest.New(natest.Config{Direct: true})
		log := &logtest.Buffer{}
		trail := audit.NewWithLimiter(slog.New(slog.NewTextHandler(log, nil)), audit.NewLimiter())
		server := open(t, n, Config{Dispatch: handler(echo), MaxOverflow: 1 << 20, Audit: trail})
		client, bad := open(t, n, Config{}), openRaw(n)
		for _, flags := range []uint8{wire.FlagMoreData, wire.FlagMoreData | wire.FlagNoResponse} {
			head := make([]byte, wire.FormShort.Size())
			wire.PutRequest(head, wire.Request{ID: 1, Flags: flags})
			bad.request(server.ep.Addr(), append(head, desc...))
		}
		if err := server.tasks.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := server.Stats()
		if s.RequestsActive != 0 || s.OverflowBytes != 0 || s.TransfersActive != 0 {
			t.Errorf("%s: left over %+v", name, s)
		}
		if name != "empty" && (s.RequestsDropped != 2 || strings.Count(log.String(), "input cannot be fetched") != 2) {
			t.Errorf("%s: %d requests dropped, log %q", name, s.RequestsDropped, log)
		}
		if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
			t.Errorf("%s: another client: %v", name, err)
		}
	}
}

// TestHostileResponses is the same for responses; the peer is told in any case that nobody needs its memory any more,
// unless the connection is lost.
func TestHostileResponses(t *testing.T) {
	for name, desc := range overflowing(t) {
		n := natest.New(natest.Config{Direct: true})
		client, bad := open(t, n, Config{MaxOverflow: 1 << 20}), openRaw(n)
		head := make([]byte, wire.FormShort.Size())
		wire.PutResponse(head, wire.Response{Flags: wire.FlagMoreData})
		bad.answer = append(head, desc...)
		k := client.NewCall()
		k.Start(bad.ep.Addr(), 1, CallOptions{}, nil)
		err := k.Wait(t.Context())
		if (err == nil) != (name == "empty") {
			t.Errorf("%s: %v", name, err)
		}
		k.Free()
		lost := name == "of somebody else"
		if acks := client.ep.Counts().Responses; (acks == 0) != lost {
			t.Errorf("%s: %d acks, %v", name, acks, err)
		}
	}
}

// TestOverflowBudgetOfCalls has responses that are too much together.
func TestOverflowBudgetOfCalls(t *testing.T) {
	n := natest.New(natest.Config{})
	server := open(t, n, Config{Dispatch: handler(func(r *Request) { _ = r.Respond(context.Background(), make([]byte, 10000)) })})
	client := open(t, n, Config{OverflowBudget: 15000})
	first := client.NewCall()
	first.Start(server.ep.Addr(), 1, CallOptions{}, nil)
	if err := first.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := call(t, client, server.ep.Addr(), 1, nil); codeFrom(t, err) != codes.Again || !strings.Contains(err.Error(), "all payloads together may have 15000 (Config.OverflowBudget)") {
		t.Error(err)
	}
	first.Free()
	if _, err := call(t, client, server.ep.Addr(), 1, nil); err != nil {
		t.Error(err)
	}
}

// TestGarbageIsCounted sends garbage from several hosts: all of it is counted by its cause, and some of it is logged.
// parity: H61
func TestGarbageIsCounted(t *testing.T) {
	n := natest.New(natest.Config{Direct: true})
	log := &logtest.Buffer{}
	trail := audit.NewWithLimiter(slog.New(slog.NewTextHandler(log, nil)), audit.NewLimiter())
	server := open(t, n, Config{Audit: trail})
	for range 3 {
		bad := openRaw(n)
		for range 50 {
			bad.request(server.ep.Addr(), []byte("GET / HTTP/1.1\r\n\r\n"))
		}
	}
	if got := strings.Count(log.String(), "no Mercury RPC"); got != 3*audit.LinesPerHost {
		t.Errorf("%d lines for 3 hosts:\n%s", got, log)
	}
	if got := server.Stats().RequestsDropped; got != 150 {
		t.Errorf("%d requests dropped, want 150", got)
	}
	if got, want := trail.Counts(), []audit.Count{{Event: audit.Broken, Cause: "malformed request", N: 150}}; !slices.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// FuzzRequest sends any message to a server.
func FuzzRequest(f *testing.F) {
	for _, b := range goldens(f, "request_") {
		f.Add(b, uint8(wire.Detect))
	}
	for _, desc := range overflowing(f) {
		head := make([]byte, wire.FormShort.Size())
		wire.PutRequest(head, wire.Request{ID: 1, Flags: wire.FlagMoreData})
		f.Add(append(head, desc...), uint8(wire.NoChecksums))
	}
	f.Fuzz(func(t *testing.T, b []byte, mode uint8) {
		n := natest.New(natest.Config{Direct: true})
		server := open(t, n, Config{Checksums: wire.ChecksumMode(mode % 3), Dispatch: handler(echo), MaxOverflow: 1 << 16})
		bad := openRaw(n)
		bad.request(server.ep.Addr(), b[:min(len(b), bad.ep.Limits().MaxRequest)])
		if err := server.tasks.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzResponse answers a call with any message.
func FuzzResponse(f *testing.F) {
	for _, b := range goldens(f, "response_") {
		f.Add(b, uint8(wire.NoChecksums))
		f.Add(b, uint8(wire.Checksums))
		f.Add(b, uint8(wire.Detect))
	}
	for _, desc := range overflowing(f) {
		head := make([]byte, wire.FormShort.Size())
		wire.PutResponse(head, wire.Response{Flags: wire.FlagMoreData})
		f.Add(append(head, desc...), uint8(wire.NoChecksums))
	}
	f.Fuzz(func(t *testing.T, b []byte, mode uint8) {
		n := natest.New(natest.Config{Direct: true})
		client, bad := open(t, n, Config{Checksums: wire.ChecksumMode(mode % 3), MaxOverflow: 1 << 16}), openRaw(n)
		bad.answer = bytes.Clone(b[:min(len(b), bad.ep.Limits().MaxResponse)])
		if bad.answer == nil {
			bad.answer = []byte{}
		}
		_, _ = call(t, client, bad.ep.Addr(), 1, []byte("question"))
	})
}
