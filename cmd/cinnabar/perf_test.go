package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
)

// The bytes are those of the C programs' structures.
func TestPerfMessagesOnTheWire(t *testing.T) {
	info := perfBwInfo{Op: perfPull, Handle: 2, Handles: 3, Count: 4, SizeMax: 5, Clients: 6, Target: 7, Targets: 8, Checking: true}
	for _, tt := range []struct {
		value any
		want  string
	}{
		{&info, "0000000000000000 01000000 02000000 03000000 04000000 05000000 06000000 07000000 08000000 01"},
		{&perfTransfer{Handle: 1, Size: 4096}, "0000000000000000 01000000 00100000"},
		{&perfBlock{[]byte{0xaa, 0xbb}}, "02000000 aabb"},
		{&perfBlock{}, "00000000"},
		{&perfPattern{9}, "09000000 00000000 01000000 00"},
		{&perfCount{3}, "03000000 000000"},
		{&none{}, ""},
	} {
		typ := reflect.TypeOf(tt.value).Elem()
		plan, err := hgproc.Codec{}.Plan(typ)
		if err != nil {
			t.Fatal(err)
		}
		b, err := plan.Append(nil, tt.value)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := hex.EncodeToString(b), strings.ReplaceAll(tt.want, " ", ""); got != want {
			t.Errorf("%v is %s, want %s", typ, got, want)
		}
		back := reflect.New(typ)
		if n, err := plan.Decode(b, back.Interface()); err != nil || n != len(b) {
			t.Errorf("%v: %d of %d bytes decoded: %v", typ, n, len(b), err)
		}
		for n := range b {
			if _, err := plan.Decode(b[:n], back.Interface()); err == nil {
				t.Errorf("%v: the first %d bytes were accepted", typ, n)
			}
		}
	}
}

// A length that lies is refused before anything is allocated for it.
func TestPerfBlockLengthThatLies(t *testing.T) {
	for _, claimed := range []uint32{3, 1 << 31, 1<<32 - 1} {
		b := append(binary.LittleEndian.AppendUint32(nil, claimed), 1, 2)
		for _, d := range []codec.Decoder{&perfBlock{}, &perfCount{}, &perfPattern{}} {
			if _, err := d.DecodeProc(b); !errors.Is(err, codec.ErrOverflow) {
				t.Errorf("%T with length %d where 2 bytes follow: %v", d, claimed, err)
			}
		}
	}
}

// A handle of a client's memory is refused before it is copied if it is larger than any client's.
func TestPerfRemoteIsBounded(t *testing.T) {
	b := append(binary.LittleEndian.AppendUint64(nil, perfMaxRemote+1), make([]byte, perfMaxRemote+1)...)
	if _, err := new(perfRemote).DecodeProc(b); !errors.Is(err, cinnabar.CodeOverflow) {
		t.Errorf("a handle of %d bytes: %v, want OVERFLOW", perfMaxRemote+1, err)
	}
	for n := range 9 {
		if _, err := new(perfRemote).DecodeProc(append([]byte{1}, make([]byte, n)...)); err == nil {
			t.Errorf("%d bytes were taken for a handle", n+1)
		}
	}
}

func TestPerfPattern(t *testing.T) {
	b := make([]byte, 3*10)
	perfFillAll(b, 10, 7)
	if got, want := hex.EncodeToString(b[10:20]), "07000000010000000000"; got != want {
		t.Errorf("pattern %s, want %s", got, want)
	}
	if err := perfCheckAll(b, 10, 10, 7); err != nil {
		t.Error(err)
	}
	clitest.WantError(t, perfCheckAll(b, 10, 10, 6), "that of handle 7, want that of handle 6")
	b[25]++
	clitest.WantError(t, perfCheckAll(b, 10, 10, 7), "integer 1 is 257, want 1")
	if err := perfCheckAll(b, 10, 3, 7); err != nil {
		t.Errorf("3 bytes of each part hold no whole integer: %v", err)
	}
}

// parity: H122
func TestPerfExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		text string
	}{
		{"perf --help", 0, ""},
		{"perf nonsense", 2, "cinnabar perf"},
		{"perf serve", 2, "usage: cinnabar perf serve ADDRESS"},
		{"perf serve tcp --memory lots", 2, "--memory"},
		{"perf serve nosuch://", 1, "HG_PROTONOSUPPORT"},
		{"perf serve ofi+tcp://127.0.0.1:0 --port-file no/such/directory", 1, "port file"},
		{"perf rate", 2, "no server"},
		{"perf serve tcp --classes 0", 2, "--classes"},
		{"perf serve tcp --timeout 0s", 2, "--timeout"},
		{"perf serve ofi+tcp://127.0.0.1:65535 --classes 2", 1, "server 2 of those at ofi+tcp://127.0.0.1:65535 has no port"},
		{"perf rate tcp://127.0.0.1:1 --port-file x", 2, "one is enough"},
		{"perf rate --port-file no-such-file", 1, "no-such-file"},
		{"perf rate --port-file /dev/null", 1, "is empty"},
		{"perf rate x --size 0 --count -1", 2, "measures nothing"},
		{"perf rate x --size 1GiB", 2, "512 MiB"},
		{"perf rate x --duration 0s", 2, "measures nothing"},
		{"perf rate x --inflight 0", 2, "--inflight"},
		{"perf rate x --inflight 4097", 2, "--inflight"},
		{"perf rate x --clients 0", 2, "--clients"},
		{"perf rate x --clients 257", 2, "--clients"},
		{"perf rate x --clients 2 --inflight 4096", 2, "more than 4096"},
		{"perf rate x --timeout -1s", 2, "--timeout"},
		{"perf rate x --transfers 2", 2, "unknown flag"},
		{"perf bw-read x --size 0", 2, "--size"},
		{"perf bw-read x --transfers 0", 2, "--transfers"},
		{"perf bw-read x --transfers 65536 --size 1GiB", 2, "need 64 TiB together"},
		{"perf bw-write x --bidirectional", 2, "unknown flag"},
		{"perf rate ofi+tcp://127.0.0.1:1", 1, "127.0.0.1:1"},
		{"perf rate nosuch://127.0.0.1:1", 1, "HG_PROTONOSUPPORT"},
		{"perf rate ofi+tcp://127.0.0.1", 1, "neither an address and port"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var o clitest.Output
			if got := clitest.Run(t.Context(), strings.Fields(tt.args), o.Streams()); got != tt.code {
				t.Errorf("exit code %d, want %d; stderr: %s", got, tt.code, &o.Err)
			}
			if !strings.Contains(o.Err.String(), tt.text) {
				t.Errorf("stderr %q does not mention %q", &o.Err, tt.text)
			}
		})
	}
}

func TestPerfReport(t *testing.T) {
	w := newStopwatch()
	for _, d := range []time.Duration{8, 9, 12} {
		if err := w.calls.RecordValue(int64(d * time.Microsecond)); err != nil {
			t.Fatal(err)
		}
	}
	w.took = 29 * time.Microsecond
	result := perfResult{size: 1024, calls: 3, bytes: 3 * 1024, watch: w}
	var table, object clitest.Output
	for _, r := range []*perfReport{
		{op: "rate", transport: "tcp", o: &perfOptions{inflight: 1}, w: &table.Out},
		{op: "rate", transport: "tcp", o: &perfOptions{inflight: 1, json: true}, w: &object.Out},
	} {
		if err := errors.Join(r.header(), r.line(result)); err != nil {
			t.Fatal(err)
		}
	}
	clitest.Golden(t, "perf.golden", table.Out.String())
	clitest.Golden(t, "perf.json.golden", object.Out.String())
	var fields map[string]any
	if err := json.Unmarshal(object.Out.Bytes(), &fields); err != nil || len(fields) != 10 {
		t.Errorf("%d fields: %v", len(fields), err)
	}
}

// The rates of several clients are added up, or, with a common end, their calls are divided by the time of the slowest.
func TestPerfReportOfClients(t *testing.T) {
	var results []perfResult
	for _, took := range []time.Duration{20, 25, 40} {
		w := newStopwatch()
		if err := w.calls.RecordValue(int64(took * time.Microsecond)); err != nil {
			t.Fatal(err)
		}
		w.took = took * time.Microsecond
		results = append(results, perfResult{size: 1024, calls: 10, bytes: 10 * 1024, watch: w})
	}
	var out clitest.Output
	for _, o := range []perfOptions{
		{clients: 3},
		{clients: 3, barrier: true},
		{clients: 3, megabytes: true},
		{clients: 3, megabytes: true, json: true},
		{clients: 3, barrier: true, json: true},
	} {
		o.inflight = 2
		r := &perfReport{op: "bw-read", transport: "tcp", servers: 8, o: &o, w: &out.Out}
		if err := errors.Join(r.header(), r.line(results...)); err != nil {
			t.Fatal(err)
		}
	}
	clitest.Golden(t, "perf-clients.golden", out.Out.String())
}

// Ports of several servers count up from the one that is given.
func TestPerfClassAddress(t *testing.T) {
	for _, tt := range []struct {
		address string
		class   int
		want    string
	}{
		{"tcp", 1, "tcp"},
		{"ofi+tcp://127.0.0.1", 1, "ofi+tcp://127.0.0.1"},
		{"ofi+tcp://127.0.0.1:0", 1, "ofi+tcp://127.0.0.1:0"},
		{"ofi+tcp://127.0.0.1:1000", 0, "ofi+tcp://127.0.0.1:1000"},
		{"ofi+tcp://127.0.0.1:1000", 2, "ofi+tcp://127.0.0.1:1002"},
		{"ofi+tcp://[::1]:1000", 2, "ofi+tcp://[::1]:1002"},
		{"ofi+tcp://127.0.0.1:x", 2, "ofi+tcp://127.0.0.1:x"},
		{"na+sm://1-2", 2, "na+sm://1-2"},
	} {
		if got, err := classAddress(tt.address, tt.class); err != nil || got != tt.want {
			t.Errorf("server %d of %s: %s, %v, want %s", tt.class, tt.address, got, err, tt.want)
		}
	}
}

// Handles are numbered over all clients and go to the servers in turn, as hg_perf_set_handles has it.
// parity: H122
func TestPerfTargets(t *testing.T) {
	servers := []*cinnabar.Endpoint{new(cinnabar.Endpoint), new(cinnabar.Endpoint), new(cinnabar.Endpoint)}
	type place struct{ Handle, Server, Number uint32 }
	var got []place
	for rank := range 2 {
		r := &perfRun{o: &perfOptions{clients: 2}, rank: rank, servers: servers}
		for i := range 3 {
			server, number := r.target(i)
			got = append(got, place{r.handle(i), uint32(slices.Index(servers, server)), number})
		}
	}
	want := []place{{0, 0, 0}, {2, 2, 0}, {4, 1, 1}, {1, 1, 0}, {3, 0, 1}, {5, 2, 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// parity: D28
func TestPerfVerifyFindsWrongPush(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{}, perfOptions{sizes: []int64{4096}, transfers: 2, inflight: 2, verify: true})
	c := p.prepare(t, prepareBwRead)
	if err := p.run.checked(t.Context(), c, 4096, newStopwatch()); err != nil {
		t.Fatal(err)
	}
	h, err := p.server.memory.find(perfKey{0, p.run.engine.Addr(), 1})
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.local.Bytes()[4096+40]++
	h.mu.Unlock()
	clitest.WantError(t, p.run.checked(t.Context(), c, 4096, newStopwatch()), "wrong data", "integer 10 is 11")
}

// parity: D28
func TestPerfVerifyFindsWrongPull(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{}, perfOptions{sizes: []int64{4096}, verify: true})
	c := p.prepare(t, prepareBwWrite).(*bulkCaller)
	if err := c.call(t.Context(), 4096); err != nil {
		t.Fatal(err)
	}
	c.bulk[0].Bytes()[4095]++
	if err := c.call(t.Context(), 4096); !errors.Is(err, cinnabar.CodeFault) {
		t.Errorf("a wrong byte: %v, want FAULT", err)
	}
	if err := c.call(t.Context(), 4092); err != nil {
		t.Errorf("without the wrong byte: %v", err)
	}
}

func TestPerfVerifyFindsWrongRateData(t *testing.T) {
	for _, bidirectional := range []bool{false, true} {
		p := newPerfPair(t, perfServeOptions{verify: true, bidirectional: bidirectional}, perfOptions{sizes: []int64{64}, bidirectional: bidirectional})
		c := p.prepare(t, prepareRate)
		if err := c.call(t.Context(), 64); err != nil {
			t.Fatal(err)
		}
		switch c := c.(type) {
		case *rateCaller:
			c.data[60]++
		case *echoCaller:
			c.data[60]++
		}
		if err := c.call(t.Context(), 64); !errors.Is(err, cinnabar.CodeFault) {
			t.Errorf("bidirectional %t: a wrong byte: %v, want FAULT", bidirectional, err)
		}
	}
}

func TestPerfVerifyFindsWrongEcho(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{bidirectional: true}, perfOptions{sizes: []int64{64}, bidirectional: true, verify: true})
	answer := func(change func(perfBlock) perfBlock) error {
		err := errors.Join(perfEcho.Remove(p.server.engine), perfEcho.Handle(p.server.engine,
			func(_ context.Context, in perfBlock) (perfBlock, error) { return change(in), nil }))
		if err != nil {
			t.Fatal(err)
		}
		return p.prepare(t, prepareRate).call(t.Context(), 64)
	}
	clitest.WantError(t, answer(func(b perfBlock) perfBlock { b.data[4]++; return b }), "wrong data")
	clitest.WantError(t, answer(func(b perfBlock) perfBlock { return perfBlock{b.data[:8]} }), "8 B instead of 64 B")
}

// A server that was not told to send data back is named as what is wrong.
func TestPerfEchoOfPlainServer(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{}, perfOptions{sizes: []int64{64}, bidirectional: true})
	clitest.WantError(t, p.prepare(t, prepareRate).call(t.Context(), 64), "--bidirectional")
}

// What a client says is checked before memory is made for it.
func TestPerfServerRefusesNonsense(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{memory: 1 << 20}, perfOptions{sizes: []int64{64}})
	good := perfBwInfo{Count: 1, SizeMax: 64, Targets: 1}
	for _, tt := range []struct {
		name   string
		change func(*perfBwInfo)
		code   cinnabar.Code
	}{
		{"no targets", func(i *perfBwInfo) { i.Targets = 0 }, cinnabar.CodeInvalidArg},
		{"no transfers", func(i *perfBwInfo) { i.Count = 0 }, cinnabar.CodeInvalidArg},
		{"no bytes", func(i *perfBwInfo) { i.SizeMax = 0 }, cinnabar.CodeInvalidArg},
		{"unknown direction", func(i *perfBwInfo) { i.Op = 2 }, cinnabar.CodeInvalidArg},
		{"many handles", func(i *perfBwInfo) { i.Handle = perfMaxHandles }, cinnabar.CodeOverflow},
		{"many transfers", func(i *perfBwInfo) { i.Count = perfMaxTransfers + 1 }, cinnabar.CodeOverflow},
		{"many small transfers", func(i *perfBwInfo) { i.SizeMax, i.Count = 1, 1<<20/perfTransferRoom }, cinnabar.CodeNoMem},
		{"over the budget", func(i *perfBwInfo) { i.SizeMax = 1<<20 + 1 }, cinnabar.CodeNoMem},
		{"far over the budget", func(i *perfBwInfo) { i.SizeMax, i.Count = 1<<32-1, perfMaxTransfers }, cinnabar.CodeNoMem},
	} {
		in := good
		tt.change(&in)
		if _, err := perfBwInit.Call(t.Context(), p.run.servers[0], in); !errors.Is(err, tt.code) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.code)
		}
	}
	p.wantMemory(t, 0, 0)
	if _, err := perfBwInit.Call(t.Context(), p.run.servers[0], good); err != nil {
		t.Fatal(err)
	}
	short, err := p.run.engine.Alloc(cinnabar.WriteOnly, 63)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		rpc  *cinnabar.RPC[perfTransfer, none]
		call perfTransfer
	}{
		{"handle that was not announced", perfBwRead, perfTransfer{Handle: 1, Size: 64}},
		{"more than announced", perfBwRead, perfTransfer{Size: 65}},
		{"other direction", perfBwWrite, perfTransfer{Size: 64}},
		{"no memory given at all", perfBwRead, perfTransfer{Size: 64}},
		{"less memory than asked for", perfBwRead, perfTransfer{Bulk: perfRemote{short.Handle()}, Size: 64}},
	} {
		if _, err := tt.rpc.Call(t.Context(), p.run.servers[0], tt.call); !errors.Is(err, cinnabar.CodeInvalidArg) {
			t.Errorf("%s: %v, want INVALID_ARG", tt.name, err)
		}
	}
}

// The memory that a client has made the server hold goes when the client says that it is done, when it announces a
// handle again, and when it is gone.
func TestPerfServerFreesMemory(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{}, perfOptions{sizes: []int64{64}})
	other := p.client(t, *p.run.o)
	announce := func(r *perfRun, number, size uint32) {
		t.Helper()
		if _, err := perfBwInit.Call(t.Context(), r.servers[0], perfBwInfo{Handle: number, Count: 2, SizeMax: size, Targets: 1}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(bytes int64, handles int) {
		t.Helper()
		p.wantMemory(t, bytes+2*perfTransferRoom*int64(handles), handles)
	}
	announce(p.run, 0, 100)
	announce(p.run, 1, 100)
	announce(other, 0, 1000)
	want(2400, 3)
	announce(p.run, 1, 50)
	want(2300, 3)
	if err := p.run.finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(2000, 1)
	announce(p.run, 0, 100)
	want(2200, 2)
	if err := other.engine.Close(); err != nil {
		t.Fatal(err)
	}
	want(200, 1)
	if err := p.run.engine.Close(); err != nil {
		t.Fatal(err)
	}
	p.wantMemory(t, 0, 0)
}

// A handle that is announced while its client goes, or the server closes, does not stay.
func TestPerfHandleThatComesLate(t *testing.T) {
	p := newPerfPair(t, perfServeOptions{}, perfOptions{sizes: []int64{64}})
	m := p.server.memory
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	in := perfBwInfo{Count: 1, SizeMax: 64, Targets: 1}
	for _, ctx := range []context.Context{gone, t.Context()} {
		h, err := newPerfHandle(p.server.engine, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.reserve(perfCharge(in)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.enter(ctx, perfKey{}, h); err != nil {
			if !errors.Is(err, cinnabar.ErrClosed) {
				t.Error(err)
			}
			m.drop(h)
		}
		m.close()
		if used, count := p.memory(); used != 0 || count != 0 {
			t.Errorf("%d bytes of %d handles in use", used, count)
		}
	}
}
