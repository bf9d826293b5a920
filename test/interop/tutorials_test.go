//go:build linux

package interop

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/codec/hgproc"
	"cinnabar/codes"
	"cinnabar/regmem"
)

// tutorials are what is recorded of the servers that come with Mercury, Margo and Thallium. Those of Margo and Thallium are recorded
// with a Mercury that computes checksums, too, under the same names with _sums behind them.
var tutorials = []scene{
	{name: "mercury_perf_push", installed: "hg_perf_server", options: onLoopback, run: visiting(func(v visitor) { v.mercuryPerf(0) })},
	{name: "mercury_perf_pull", installed: "hg_perf_server", options: onLoopback, run: visiting(func(v visitor) { v.mercuryPerf(1) })},
	{name: "mercury_test", installed: "hg_test_server", options: onLoopback, run: visiting(visitor.mercuryTest)},

	{name: "margo_tutorial_hello", installed: "02_margo_server", run: visiting(visitor.margoHello)},
	{name: "margo_tutorial_sum", installed: "03_margo_server", run: visiting(visitor.margoSum)},
	{name: "margo_tutorial_bulk", installed: "04_margo_server", run: visiting(visitor.margoBulk)},
	{name: "margo_tutorial_async", installed: "05_margo_server", run: visiting(visitor.margoAsync)},
	{name: "margo_tutorial_provider", installed: "06_margo_server", run: visiting(visitor.margoProvider)},
	{name: "margo_tutorial_pool", installed: "07_margo_server", run: visiting(visitor.margoProvider)},
	{name: "margo_example", installed: "margo-example-server", options: []string{tcp}, run: visiting(visitor.margoExample)},
	{name: "margo_multiplex", installed: "margo-example-mp-server", options: []string{tcp}, run: visiting(visitor.margoMultiplex)},

	{name: "thallium_tutorial_hello", installed: "02_tl_server", run: visiting(visitor.thalliumHello)},
	{name: "thallium_tutorial_args", installed: "03_tl_server", run: visiting(visitor.thalliumSum)},
	{name: "thallium_tutorial_lambdas", installed: "04_tl_server", run: visiting(visitor.thalliumSum)},
	{name: "thallium_tutorial_stop", installed: "05_tl_server", run: visiting(visitor.thalliumSum)},
	{name: "thallium_tutorial_stl", installed: "06_tl_server", run: visiting(visitor.thalliumName)},
	{name: "thallium_tutorial_serialization", installed: "06_custom_server", run: visiting(visitor.thalliumPoints)},
	{name: "thallium_tutorial_rdma", installed: "08_tl_server", run: visiting(func(v visitor) { v.thalliumRDMA("do_rdma") })},
	{name: "thallium_tutorial_providers", installed: "09_tl_server", run: visiting(visitor.thalliumProvider)},
	{name: "thallium_tutorial_pool", installed: "12_tl_server", run: visiting(visitor.thalliumSum)},
	{name: "thallium_tutorial_async", installed: "14_tl_server", run: visiting(visitor.thalliumAsync)},
	{name: "thallium_tutorial_context", installed: "16_tl_server", run: visiting(visitor.thalliumContext)},
	{name: "thallium_tutorial_timed_rdma", installed: "22_tl_timed_rdma_server", run: visiting(func(v visitor) { v.thalliumRDMA("do_timed_rdma") })},
}

// onLoopback are options of Mercury's own servers.
var onLoopback = []string{"-c", "ofi", "-p", "tcp", "-H", "127.0.0.1"}

func init() {
	scenes = append(scenes, tutorials...)
	for _, s := range tutorials {
		if strings.HasPrefix(s.name, "mercury") {
			continue
		}
		s.name, s.checksums = s.name+"_sums", true
		scenes = append(scenes, s)
	}
}

// visitor is a client of such a server.
type visitor struct {
	t  *testing.T
	e  *cinnabar.Engine
	to *cinnabar.Endpoint
}

func visiting(f func(visitor)) func(*testing.T, *cinnabar.Engine, *cinnabar.Endpoint) {
	return func(t *testing.T, e *cinnabar.Engine, to *cinnabar.Endpoint) {
		t.Helper()
		f(visitor{t, e, to})
	}
}

func (v visitor) ctx() context.Context { return limited(v.t, patience/4) }

// lend exposes memory for the time of f.
func (v visitor) lend(mode cinnabar.Mode, memory []byte, f func(cinnabar.BulkHandle)) {
	v.t.Helper()
	b, err := v.e.Expose(mode, memory)
	must(v.t, err)
	f(b.Handle())
	must(v.t, b.Close())
}

// What hg_perf_server takes: blocks of bytes, the announcement of memory, and requests to transfer.
type (
	perfBlock struct {
		Size  uint32
		Bytes []byte `proc:"count=Size"`
	}
	perfMemory struct {
		Bulk                                                          cinnabar.BulkHandle
		Op, Handle, Handles, Count, SizeMax, Clients, Target, Targets uint32
		Verify                                                        bool
	}
	perfTransfer struct {
		Bulk         cinnabar.BulkHandle
		Handle, Size uint32
	}
)

// mercuryPerf calls as hg_rate and hg_bw_read (op 0, HG_BULK_PUSH) or hg_bw_write (op 1, HG_BULK_PULL) do: ids are numbers, and
// the server transfers twice for each request. The last one ends it.
func (v visitor) mercuryPerf(op uint32) {
	t := v.t
	t.Helper()
	var (
		rateInit = cinnabar.NewRPC[none, none]("rate init", cinnabar.WithID(1))
		rate     = cinnabar.NewRPC[perfBlock, none]("rate", cinnabar.WithID(2))
		first    = cinnabar.NewRPC[none, none]("first", cinnabar.WithID(3))
		announce = cinnabar.NewRPC[perfMemory, none]("bw init", cinnabar.WithID(4))
		read     = cinnabar.NewRPC[perfTransfer, none]("bw read", cinnabar.WithID(5))
		write    = cinnabar.NewRPC[perfTransfer, none]("bw write", cinnabar.WithID(6))
		done     = cinnabar.NewRPC[none, none]("done", cinnabar.WithID(7))
	)
	call := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := first.Call(v.ctx(), v.to, none{})
	call("first", err)
	_, err = rateInit.Call(v.ctx(), v.to, none{})
	call("rate init", err)
	for _, size := range []int{0, 1, 64, 2048, 4000, 65536} {
		_, err := rate.Call(v.ctx(), v.to, perfBlock{uint32(size), pattern(size, 1)})
		call("rate", err)
	}
	const count, size = 2, 8192
	memory, mode, transfer := make([]byte, count*size), cinnabar.WriteOnly, read
	if op == 1 {
		mode, transfer = cinnabar.ReadOnly, write
		for i := range count {
			integers(memory[i*size : (i+1)*size])
		}
	}
	v.lend(mode, memory, func(h cinnabar.BulkHandle) {
		_, err := announce.Call(v.ctx(), v.to, perfMemory{
			Bulk: h, Op: op, Handles: 1, Count: count, SizeMax: size, Clients: 1, Targets: 1, Verify: true,
		})
		call("announcing memory", err)
		for _, n := range []uint32{4, 1024, size} {
			_, err := transfer.Call(v.ctx(), v.to, perfTransfer{Size: n})
			call(transfer.Name(), err)
		}
		_, err = done.Call(v.ctx(), v.to, none{})
		call("done", err)
	})
	want := make([]byte, size)
	integers(want)
	if string(memory[:size]) != string(want) || string(memory[size:]) != string(want) {
		t.Error("the memory holds something else than the integers")
	}
}

// integers fills b with 0, 1, 2 and so on, 4 bytes each.
func integers(b []byte) {
	for i := range len(b) / 4 {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i))
	}
}

// What hg_test_server takes.
type (
	openIn struct {
		Path   hgproc.ConstString
		Cookie uint64
	}
	openOut struct{ Ret, Event int32 }
	writeIn struct {
		File                             int32
		Size, OriginOffset, TargetOffset uint64
		Bulk                             cinnabar.BulkHandle
	}
	writeOut struct{ Ret uint64 }
)

// mercuryTest calls as Mercury's own tests do.
func (v visitor) mercuryTest() {
	t := v.t
	t.Helper()
	mercury := cinnabar.WithFlavor(cinnabar.Mercury)
	if _, err := cinnabar.NewRPC[none, none]("hg_test_rpc_null", mercury).Call(v.ctx(), v.to, none{}); err != nil {
		t.Errorf("null: %v", err)
	}
	const path = "./test.txt" // the server checks its length
	opened, err := cinnabar.NewRPC[openIn, openOut]("hg_test_rpc_open", mercury).Call(v.ctx(), v.to, openIn{path, 12345})
	equal(t, "open", openOut{0, 12345}, opened, err)
	must(t, cinnabar.NewOneWay[openIn]("hg_test_rpc_open_no_resp", mercury).Send(v.ctx(), v.to, openIn{path, 12345}))
	if _, err := cinnabar.NewRPC[string, none]("hg_test_string", mercury).Call(v.ctx(), v.to, path); err != nil {
		t.Errorf("string: %v", err)
	}
	long, err := cinnabar.NewRPC[none, string]("hg_test_overflow", mercury).Call(v.ctx(), v.to, none{})
	if err != nil || len(long) < 4096 {
		t.Errorf("overflow: %d bytes, %v", len(long), err)
	}
	memory := make([]byte, 4<<20)
	for i := range memory {
		memory[i] = byte(i)
	}
	write := cinnabar.NewRPC[writeIn, writeOut]("hg_test_bulk_write", mercury)
	v.lend(cinnabar.ReadOnly, memory, func(h cinnabar.BulkHandle) {
		for _, in := range []writeIn{
			{Size: 4 << 20}, {Size: 1 << 20, OriginOffset: 4096}, {Size: 1000, TargetOffset: 2048}, {Size: 7, OriginOffset: 1025, TargetOffset: 13}, {},
		} {
			in.File, in.Bulk = 1, h
			if out, err := write.Call(v.ctx(), v.to, in); err != nil || out.Ret != in.Size {
				t.Errorf("%d bytes from %d to %d: %d, %v", in.Size, in.OriginOffset, in.TargetOffset, out.Ret, err)
			}
		}
	})
}

func (v visitor) margoHello() {
	v.t.Helper()
	hello := cinnabar.NewOneWay[none]("hello")
	for range 4 { // after which the server ends
		must(v.t, hello.Send(v.ctx(), v.to, none{}))
	}
}

func (v visitor) margoSum() {
	v.t.Helper()
	for i := range int32(4) { // after which the server ends
		out, err := margo.sum.Call(v.ctx(), v.to, sumIn{42 + 2*i, 42 + 2*i + 1})
		equal(v.t, "sum", sumOut{85 + 4*i}, out, err)
	}
}

func (v visitor) margoBulk() {
	v.t.Helper()
	for _, n := range []int{10, 1000, 20000} {
		values := make([]int32, n)
		for i := range values {
			values[i] = int32(i % 7)
		}
		b, err := v.e.Expose(cinnabar.ReadOnly, regmem.Bytes(values))
		must(v.t, err)
		want := tutorialOut{}
		for _, x := range values {
			want.Ret += x
		}
		out, err := tutorial.Call(v.ctx(), v.to, tutorialIn{int32(n), b.Handle()})
		equal(v.t, "sum", want, out, err)
		must(v.t, b.Close())
	}
}

func (v visitor) margoAsync() {
	v.t.Helper()
	for i := range int32(2) {
		p := margo.sum.Start(v.ctx(), v.to, sumIn{42 + 2*i, 42 + 2*i + 1})
		out, err := p.Wait()
		equal(v.t, "sum", sumOut{85 + 4*i}, out, err)
	}
}

func (v visitor) margoProvider() {
	v.t.Helper()
	alpha := cinnabar.NewRPC[sumIn, sumOut]("alpha_sum")
	out, err := alpha.Call(v.ctx(), v.to.Provider(42), sumIn{45, 23})
	equal(v.t, "alpha_sum", sumOut{68}, out, err)
	_, err = alpha.Call(v.ctx(), v.to.Provider(43), sumIn{45, 23})
	equal(v.t, "alpha_sum of another provider", codes.NoEntry, codes.Of(err), nil)
}

// greeting is what the clients of Margo's examples lend.
func greeting() []byte { return append([]byte("Hello world!\n"), make([]byte, 512-13)...) }

func (v visitor) margoExample() {
	v.t.Helper()
	mine := cinnabar.NewRPC[lentDump, sumOut]("my_rpc")
	for i := range int32(4) {
		v.lend(cinnabar.ReadOnly, greeting(), func(h cinnabar.BulkHandle) {
			out, err := mine.Call(v.ctx(), v.to, lentDump{Value: i, Data: h})
			equal(v.t, "my_rpc", sumOut{}, out, err)
		})
	}
	v.end()
}

// end calls the RPC that ends the servers of Margo's examples.
func (v visitor) end() {
	v.t.Helper()
	_, err := cinnabar.NewRPC[none, none]("my_shutdown_rpc").Call(v.ctx(), v.to, none{})
	equal(v.t, "my_shutdown_rpc", none{}, none{}, err)
}

func (v visitor) margoMultiplex() {
	v.t.Helper()
	for _, at := range []struct {
		service string
		id      uint16
	}{{"svc1", 1}, {"svc1", 2}, {"svc2", 3}} {
		for _, name := range []string{"_do_thing", "_do_other_thing"} {
			v.lend(cinnabar.ReadOnly, greeting(), func(h cinnabar.BulkHandle) {
				out, err := cinnabar.NewRPC[lent, sumOut](at.service+name).Call(v.ctx(), v.to.Provider(at.id), lent{int32(at.id), h})
				equal(v.t, at.service+name, sumOut{}, out, err)
			})
		}
	}
	v.end()
}

func (v visitor) thalliumHello() {
	v.t.Helper()
	must(v.t, cinnabar.NewOneWay[none]("hello", inThallium).Send(v.ctx(), v.to, none{}))
}

func (v visitor) thalliumName() {
	v.t.Helper()
	for _, name := range []string{"Matthieu", "", strings.Repeat("x", 1000)} {
		must(v.t, tlHello.Send(v.ctx(), v.to, name))
	}
}

func (v visitor) thalliumSum() {
	v.t.Helper()
	sum, err := tlSum.Call(v.ctx(), v.to, numbers{42, 63})
	equal(v.t, "sum", 105, sum, err)
}

func (v visitor) thalliumAsync() {
	v.t.Helper()
	sum, err := tlSum.Start(v.ctx(), v.to, numbers{42, 63}).Wait()
	equal(v.t, "sum", 105, sum, err)
}

// point is the tutorial's class.
type point struct{ X, Y, Z float64 }

// dotProduct answers with a point whose first coordinate is the product: the tutorial's server makes a point of it.
var dotProduct = cinnabar.NewRPC[[2]point, point]("dot_product", inThallium)

func (v visitor) thalliumPoints() {
	v.t.Helper()
	dot, err := dotProduct.Call(v.ctx(), v.to, [2]point{{1, 2, 3}, {5, 2, 4}})
	equal(v.t, "dot_product", point{X: 21}, dot, err)
}

// thalliumContext sends points as a client in C++ does whose serialization context is (1, 2, 3) and 2.
func (v visitor) thalliumContext() {
	v.t.Helper()
	sum, err := cinnabar.NewRPC[[2]point, point]("process", inThallium).Call(v.ctx(), v.to, [2]point{{10, 14, 18}, {16, 20, 24}})
	equal(v.t, "process", point{3 * 3.5, 2 * 3.5, 1 * 3.5}, sum, err) // it adds points of zeros, whose context is (3, 2, 1) and 3.5
}

// thalliumRDMA lends the tutorial's nine bytes, which travel in the request, and more, of which the server pulls six.
func (v visitor) thalliumRDMA(name string) {
	v.t.Helper()
	rpc := cinnabar.NewRPC[cinnabar.BulkHandle, none](name, inThallium)
	for _, size := range []int{9, 1 << 20} {
		memory := make([]byte, size)
		copy(memory, "Matthieu")
		v.lend(cinnabar.ReadOnly, memory, func(h cinnabar.BulkHandle) {
			_, err := rpc.Call(v.ctx(), v.to, h)
			equal(v.t, name, none{}, none{}, err)
		})
	}
}

func (v visitor) thalliumProvider() {
	v.t.Helper()
	ph := v.to.Provider(22)
	sum, err := tlSum.Call(v.ctx(), ph, numbers{42, 63})
	equal(v.t, "sum", 105, sum, err)
	prod, err := cinnabar.NewRPC[numbers, int32]("prod", inThallium).Call(v.ctx(), ph, numbers{42, 63})
	equal(v.t, "prod", 105, prod, err) // the tutorial adds
	_, err = tlSum.Call(v.ctx(), v.to.Provider(23), numbers{42, 63})
	equal(v.t, "sum of another provider", codes.NoEntry, codes.Of(err), nil)
	must(v.t, cinnabar.NewOneWay[string]("print", inThallium).Send(v.ctx(), ph, "Matthieu"))
}
