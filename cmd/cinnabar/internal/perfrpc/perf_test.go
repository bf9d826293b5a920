package perfrpc

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codec"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
)

// The bytes are those of the C programs' structures.
func TestMessagesOnTheWire(t *testing.T) {
	info := bwInfo{Op: opPull, Handle: 2, Handles: 3, Count: 4, SizeMax: 5, Clients: 6, Target: 7, Targets: 8, Checking: true}
	for _, tt := range []struct {
		value any
		want  string
	}{
		{&info, "0000000000000000 01000000 02000000 03000000 04000000 05000000 06000000 07000000 08000000 01"},
		{&transfer{Handle: 1, Size: 4096}, "0000000000000000 01000000 00100000"},
		{&block{[]byte{0xaa, 0xbb}}, "02000000 aabb"},
		{&block{}, "00000000"},
		{&pattern{9}, "09000000 00000000 01000000 00"},
		{&count{3}, "03000000 000000"},
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
func TestBlockLengthThatLies(t *testing.T) {
	for _, claimed := range []uint32{3, 1 << 31, 1<<32 - 1} {
		b := append(binary.LittleEndian.AppendUint32(nil, claimed), 1, 2)
		for _, d := range []codec.Decoder{&block{}, &count{}, &pattern{}} {
			if _, err := d.DecodeProc(b); !errors.Is(err, codec.ErrOverflow) {
				t.Errorf("%T with length %d where 2 bytes follow: %v", d, claimed, err)
			}
		}
	}
}

// A handle of a client's memory is refused before it is copied if it is larger than any client's.
func TestRemoteIsBounded(t *testing.T) {
	b := append(binary.LittleEndian.AppendUint64(nil, maxRemote+1), make([]byte, maxRemote+1)...)
	if _, err := new(remoteHandle).DecodeProcWith(hgproc.Codec{}, b); !errors.Is(err, codes.Overflow) {
		t.Errorf("a handle of %d bytes: %v, want OVERFLOW", maxRemote+1, err)
	}
	for n := range 9 {
		if _, err := new(remoteHandle).DecodeProcWith(hgproc.Codec{}, append([]byte{1}, make([]byte, n)...)); err == nil {
			t.Errorf("%d bytes were taken for a handle", n+1)
		}
	}
}

func TestPattern(t *testing.T) {
	b := make([]byte, 3*10)
	fillAll(b, 10, 7)
	if got, want := hex.EncodeToString(b[10:20]), "07000000010000000000"; got != want {
		t.Errorf("pattern %s, want %s", got, want)
	}
	if err := checkAll(b, 10, 10, 7); err != nil {
		t.Error(err)
	}
	clitest.WantError(t, checkAll(b, 10, 10, 6), "that of handle 7, want that of handle 6")
	b[25]++
	clitest.WantError(t, checkAll(b, 10, 10, 7), "integer 1 is 257, want 1")
	if err := checkAll(b, 10, 3, 7); err != nil {
		t.Errorf("3 bytes of each part hold no whole integer: %v", err)
	}
}

// parity: H122
func TestExitCodes(t *testing.T) {
	clitest.WantExits(t, []clitest.Exit{
		{Args: "perf --help"},
		{Args: "perf nonsense", Code: 2, Text: "cinnabar perf"},
		{Args: "perf serve", Code: 2, Text: "usage: cinnabar perf serve ADDRESS"},
		{Args: "perf serve tcp --memory lots", Code: 2, Text: "--memory"},
		{Args: "perf serve nosuch://", Code: 2, Text: "HG_PROTONOSUPPORT"},
		{Args: "perf serve ofi+tcp://127.0.0.1:0 --port-file no/such/directory", Code: 1, Text: "port file"},
		{Args: "perf rate", Code: 2, Text: "no server"},
		{Args: "perf serve tcp --classes 0", Code: 2, Text: "--classes"},
		{Args: "perf serve tcp --timeout 0s", Code: 2, Text: "--timeout"},
		{Args: "perf serve ofi+tcp://127.0.0.1:65535 --classes 2", Code: 1, Text: "server 2 of those at ofi+tcp://127.0.0.1:65535 has no port"},
		{Args: "perf rate tcp://127.0.0.1:1 --port-file x", Code: 2, Text: "one is enough"},
		{Args: "perf rate --port-file no-such-file", Code: 1, Text: "no-such-file"},
		{Args: "perf rate --port-file /dev/null", Code: 1, Text: "is empty"},
		{Args: "perf rate x --size 0 --count -1", Code: 2, Text: "measures nothing"},
		{Args: "perf rate x --size 1GiB", Code: 2, Text: "512 MiB"},
		{Args: "perf rate x --duration 0s", Code: 2, Text: "measures nothing"},
		{Args: "perf rate x --inflight 0", Code: 2, Text: "--inflight"},
		{Args: "perf rate x --inflight 4097", Code: 2, Text: "--inflight"},
		{Args: "perf rate x --clients 0", Code: 2, Text: "--clients"},
		{Args: "perf rate x --clients 10001", Code: 2, Text: "--clients"},
		{Args: "perf rate x --clients 3 --inflight 4096", Code: 2, Text: "more than 10000"},
		{Args: "perf rate x --timeout -1s", Code: 2, Text: "--timeout"},
		{Args: "perf rate x --late -1s", Code: 2, Text: "--late"},
		{Args: "perf serve tcp --toll -1s", Code: 2, Text: "--toll"},
		{Args: "perf serve tcp --progress eager", Code: 2, Text: `--progress: mode "eager" is unknown`},
		{Args: "perf bw-read x --progress eager", Code: 2, Text: `--progress: mode "eager" is unknown`},
		{Args: "perf rate x --transfers 2", Code: 2, Text: "unknown flag"},
		{Args: "perf bw-read x --size 0", Code: 2, Text: "--size"},
		{Args: "perf bw-read x --transfers 0", Code: 2, Text: "--transfers"},
		{Args: "perf bw-read x --transfers 65536 --size 1GiB", Code: 2, Text: "need 64 TiB together"},
		{Args: "perf bw-write x --bidirectional", Code: 2, Text: "unknown flag"},
		{Args: "perf rate ofi+tcp://127.0.0.1:1", Code: 1, Text: "127.0.0.1:1"},
		{Args: "perf serve tcp --device software", Code: 2, Text: "only engines on ofi+verbs"},
		{Args: "perf serve ofi+verbs://nosuch0/127.0.0.1:1 --device other0", Code: 2, Text: "choose one"},
		{Args: "perf serve verbs --device nosuch0", Code: 1, Text: "RDMA"},
		{Args: "perf rate nosuch://127.0.0.1:1", Code: 2, Text: "HG_PROTONOSUPPORT"},
		{Args: "perf rate ofi+tcp://127.0.0.1", Code: 2, Text: "neither an address and port"},
	}, nil)
}

func TestReport(t *testing.T) {
	w := newStopwatch(newCallTimes())
	for _, d := range []time.Duration{8, 9, 12} {
		w.calls.add(d * time.Microsecond)
	}
	w.took = 29 * time.Microsecond
	result := result{size: 1024, calls: 3, bytes: 3 * 1024, watch: w}
	var table, object clitest.Output
	for _, r := range []*report{
		{op: "rate", transport: "tcp", o: &options{inflight: 1}, w: &table.Out},
		{op: "rate", transport: "tcp", o: &options{inflight: 1, json: true}, w: &object.Out},
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
func TestReportOfClients(t *testing.T) {
	var results []result
	for _, took := range []time.Duration{20, 25, 40} {
		w := newStopwatch(newCallTimes())
		w.calls.add(took * time.Microsecond)
		w.took = took * time.Microsecond
		results = append(results, result{size: 1024, calls: 10, bytes: 10 * 1024, watch: w})
	}
	var out clitest.Output
	for _, o := range []options{
		{clients: 3},
		{clients: 3, barrier: true},
		{clients: 3, megabytes: true},
		{clients: 3, megabytes: true, json: true},
		{clients: 3, barrier: true, json: true},
	} {
		o.inflight = 2
		r := &report{op: "bw-read", transport: "tcp", servers: 8, o: &o, w: &out.Out}
		if err := errors.Join(r.header(), r.line(results...)); err != nil {
			t.Fatal(err)
		}
	}
	clitest.Golden(t, "perf-clients.golden", out.Out.String())
}

// TestReportOfSharedTimes counts a call once, although the clients share their histogram.
func TestReportOfSharedTimes(t *testing.T) {
	calls := newCallTimes()
	var results []result
	for range 3 {
		calls.add(time.Microsecond)
		w := newStopwatch(calls)
		w.took = time.Microsecond
		results = append(results, result{calls: 1, watch: w})
	}
	if n := (&report{o: &options{clients: 3}}).total(results).histogram.TotalCount(); n != 3 {
		t.Errorf("%d times of 3 calls", n)
	}
}

// TestLocalOf spreads thousands of clients of a loopback server over addresses, and leaves all others where they are.
func TestLocalOf(t *testing.T) {
	const here = "ofi+tcp://127.0.0.1:0"
	spread := here
	if runtime.GOOS == "linux" {
		spread = "ofi+tcp://127.0.0.5:0"
	}
	for _, tt := range []struct {
		local         string
		rank, clients int
		want          string
	}{
		{here, 3, 1000, here},
		{here, 3, 10_000, spread},
		{here, 13, 10_000, spread},
		{"ofi+tcp://192.0.2.1:0", 3, 10_000, "ofi+tcp://192.0.2.1:0"},
		{"ofi+tcp://[::1]:0", 3, 10_000, "ofi+tcp://[::1]:0"},
		{"na+sm", 3, 10_000, "na+sm"},
	} {
		if got := localOf(tt.local, tt.rank, tt.clients); got != tt.want {
			t.Errorf("client %d of %d at %s: %s, want %s", tt.rank, tt.clients, tt.local, got, tt.want)
		}
	}
}

// TestCheckFiles names the limit of open files and the number of clients that it has room for.
func TestCheckFiles(t *testing.T) {
	limit, known := openFiles()
	if !known {
		t.Skip("this system has no limit of open files")
	}
	if err := checkFiles(1, 1, "tcp"); err != nil {
		t.Error(err)
	}
	clients := limit/(engineFiles+connectionFiles) + 1
	clitest.WantError(t, checkFiles(clients, 1, "tcp"), fmt.Sprintf("--clients %d over tcp", clients), fmt.Sprintf("the limit is %d", limit), "ulimit -n", "take at most")
}

// Ports of several servers count up from the one that is given.
func TestClassAddress(t *testing.T) {
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
func TestTargets(t *testing.T) {
	servers := []*cinnabar.Endpoint{new(cinnabar.Endpoint), new(cinnabar.Endpoint), new(cinnabar.Endpoint)}
	type place struct{ Handle, Server, Number uint32 }
	var got []place
	for rank := range 2 {
		r := &run{o: &options{clients: 2}, rank: rank, servers: servers}
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
func TestVerifyFindsWrongPush(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{4096}, transfers: 2, inflight: 2, verify: true})
	c := p.prepare(t, prepareBwRead)
	if err := p.run.checked(t.Context(), c, 4096, newStopwatch(newCallTimes())); err != nil {
		t.Fatal(err)
	}
	h, err := p.server.memory.find(handleKey{0, p.run.engine.Addr(), 1})
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.local.Bytes()[4096+40]++
	h.mu.Unlock()
	clitest.WantError(t, p.run.checked(t.Context(), c, 4096, newStopwatch(newCallTimes())), "wrong data", "integer 10 is 11")
}

// parity: D28
func TestVerifyFindsWrongPull(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{4096}, verify: true})
	c := p.prepare(t, prepareBwWrite).(*bulkCaller)
	if err := c.call(t.Context(), 4096); err != nil {
		t.Fatal(err)
	}
	c.bulk[0].Bytes()[4095]++
	if err := c.call(t.Context(), 4096); !errors.Is(err, codes.Fault) {
		t.Errorf("a wrong byte: %v, want FAULT", err)
	}
	if err := c.call(t.Context(), 4092); err != nil {
		t.Errorf("without the wrong byte: %v", err)
	}
}

func TestVerifyFindsWrongRateData(t *testing.T) {
	for _, bidirectional := range []bool{false, true} {
		p := newPair(t, serveOptions{verify: true, bidirectional: bidirectional}, options{sizes: []int64{64}, bidirectional: bidirectional})
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
		if err := c.call(t.Context(), 64); !errors.Is(err, codes.Fault) {
			t.Errorf("bidirectional %t: a wrong byte: %v, want FAULT", bidirectional, err)
		}
	}
}

func TestVerifyFindsWrongEcho(t *testing.T) {
	p := newPair(t, serveOptions{bidirectional: true}, options{sizes: []int64{64}, bidirectional: true, verify: true})
	answer := func(change func(block) block) error {
		err := errors.Join(echoRPC.Remove(p.server.engine), echoRPC.Handle(p.server.engine,
			func(_ context.Context, in block) (block, error) { return change(in), nil }))
		if err != nil {
			t.Fatal(err)
		}
		return p.prepare(t, prepareRate).call(t.Context(), 64)
	}
	clitest.WantError(t, answer(func(b block) block { b.data[4]++; return b }), "wrong data")
	clitest.WantError(t, answer(func(b block) block { return block{b.data[:8]} }), "8 B instead of 64 B")
}

// A server that was not told to send data back is named as what is wrong.
func TestEchoOfPlainServer(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{64}, bidirectional: true})
	clitest.WantError(t, p.prepare(t, prepareRate).call(t.Context(), 64), "--bidirectional")
}

// What a client says is checked before memory is made for it.
func TestServerRefusesNonsense(t *testing.T) {
	p := newPair(t, serveOptions{memory: 1 << 20}, options{sizes: []int64{64}})
	good := bwInfo{Count: 1, SizeMax: 64, Targets: 1}
	for _, tt := range []struct {
		name   string
		change func(*bwInfo)
		code   codes.Code
	}{
		{"no targets", func(i *bwInfo) { i.Targets = 0 }, codes.InvalidArg},
		{"no transfers", func(i *bwInfo) { i.Count = 0 }, codes.InvalidArg},
		{"no bytes", func(i *bwInfo) { i.SizeMax = 0 }, codes.InvalidArg},
		{"unknown direction", func(i *bwInfo) { i.Op = 2 }, codes.InvalidArg},
		{"many handles", func(i *bwInfo) { i.Handle = maxHandles }, codes.Overflow},
		{"many transfers", func(i *bwInfo) { i.Count = maxTransfers + 1 }, codes.Overflow},
		{"many small transfers", func(i *bwInfo) { i.SizeMax, i.Count = 1, 1<<20/transferRoom }, codes.NoMem},
		{"over the budget", func(i *bwInfo) { i.SizeMax = 1<<20 + 1 }, codes.NoMem},
		{"far over the budget", func(i *bwInfo) { i.SizeMax, i.Count = 1<<32-1, maxTransfers }, codes.NoMem},
	} {
		in := good
		tt.change(&in)
		if _, err := bwInitRPC.Call(t.Context(), p.run.servers[0], in); !errors.Is(err, tt.code) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.code)
		}
	}
	p.wantMemory(t, 0, 0)
	if _, err := bwInitRPC.Call(t.Context(), p.run.servers[0], good); err != nil {
		t.Fatal(err)
	}
	short, err := p.run.engine.Alloc(cinnabar.WriteOnly, 63)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		rpc  *cinnabar.RPC[transfer, none]
		call transfer
	}{
		{"handle that was not announced", bwReadRPC, transfer{Handle: 1, Size: 64}},
		{"more than announced", bwReadRPC, transfer{Size: 65}},
		{"other direction", bwWriteRPC, transfer{Size: 64}},
		{"no memory given at all", bwReadRPC, transfer{Size: 64}},
		{"less memory than asked for", bwReadRPC, transfer{Bulk: remoteHandle{short.Handle()}, Size: 64}},
	} {
		if _, err := tt.rpc.Call(t.Context(), p.run.servers[0], tt.call); !errors.Is(err, codes.InvalidArg) {
			t.Errorf("%s: %v, want INVALID_ARG", tt.name, err)
		}
	}
}

// The memory that a client has made the server hold goes when the client says that it is done, when it announces a
// handle again, and when it is gone.
func TestServerFreesMemory(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{64}})
	other := p.client(t, *p.run.o)
	announce := func(r *run, number, size uint32) {
		t.Helper()
		if _, err := bwInitRPC.Call(t.Context(), r.servers[0], bwInfo{Handle: number, Count: 2, SizeMax: size, Targets: 1}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(bytes int64, handles int) {
		t.Helper()
		p.wantMemory(t, bytes+2*transferRoom*int64(handles), handles)
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

// TestServerMemoryIsBoundedInAll checks that the clients of a server make it hold no more memory than --memory allows, all together and by
// many handles, that announcing a handle anew costs no more, and that a client which leaves makes room for another.
func TestServerMemoryIsBoundedInAll(t *testing.T) {
	const budget = 1 << 20
	p := newPair(t, serveOptions{memory: budget}, options{sizes: []int64{64}})
	other := p.client(t, *p.run.o)
	in := bwInfo{Count: 1, SizeMax: 64<<10 - transferRoom, Targets: 1}
	announce := func(r *run, number uint32) error {
		in.Handle = number
		_, err := bwInitRPC.Call(t.Context(), r.servers[0], in)
		return err
	}
	granted := uint32(0)
	for range 3 * budget >> 16 {
		err := announce(p.run, granted)
		if err == nil {
			granted++
		} else if !errors.Is(err, codes.NoMem) {
			t.Fatal(err)
		}
		if used, _ := p.memory(); used > budget {
			t.Fatalf("%d bytes are in use, --memory allows %d", used, budget)
		}
	}
	if granted != budget>>16 {
		t.Errorf("%d handles of 64 KiB were granted of a budget of %d bytes", granted, budget)
	}
	if err := announce(other, 0); !errors.Is(err, codes.NoMem) {
		t.Errorf("another client's handle beyond the budget: %v", err)
	}
	if err := p.run.finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := announce(other, 0); err != nil {
		t.Errorf("another client after the first one is done: %v", err)
	}
}

// A handle that is announced while its client goes, or the server closes, does not stay.
func TestHandleThatComesLate(t *testing.T) {
	p := newPair(t, serveOptions{}, options{sizes: []int64{64}})
	m := p.server.memory
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	in := bwInfo{Count: 1, SizeMax: 64, Targets: 1}
	for _, ctx := range []context.Context{gone, t.Context()} {
		h, err := newHandle(p.server.engine, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.reserve(charge(in)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.enter(ctx, handleKey{}, h); err != nil {
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
