package call

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/codec/cereal"
	"cinnabar/codec/hgproc"
	"cinnabar/margo"
)

func TestMain(m *testing.M) {
	clitest.Main(m, func(s cli.Streams) *cobra.Command { return cli.NewRoot(s, New(s), NewPing(s), NewID(s)) })
}

// many has a field of each kind of type.
type many struct {
	B   bool
	I8  int8
	I16 int16
	I32 int32
	I64 int64
	U8  uint8
	U16 uint16
	U32 uint32
	U64 uint64
	F   float32
	D   float64
	S   string
	A   [3]uint16
	L   []string `proc:"counted=uint64"`
	R   []byte   `proc:"counted=uint64"`
}

const (
	manyTypes = "bool,int8,int16_t,int32,int64,uint8,uint16,uint32,uint64,float,double,hg_string_t,uint16[3],string[],uint8[]"
	manyArgs  = `[true,-1,-2,-3,-4,1,2,3,18446744073709551615,0.5,-0.25,"a\u001b\"b",[1,2,3],["x",""],"AQI="]`
)

// TestEveryType sends a value of each type, and receives it.
// parity: P01
func TestEveryType(t *testing.T) {
	for _, flavor := range []cinnabar.Flavor{cinnabar.Margo, cinnabar.Mercury, cinnabar.Thallium} {
		t.Run(flavorNames[flavor], func(t *testing.T) {
			e := clitest.Engine(t, nil)
			echo := cinnabar.NewRPC[many, many]("echo", cinnabar.WithFlavor(flavor))
			if err := echo.Handle(e, func(_ context.Context, in many) (many, error) { return in, nil }); err != nil {
				t.Fatal(err)
			}
			o := clitest.WantRun(t, 0, []string{"call", e.Addr(), "echo", "-f", flavorNames[flavor], "--in", manyTypes, "--args", manyArgs, "--out", manyTypes})
			var got, want []any
			if err := json.Unmarshal(o.Out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(manyArgs), &want); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || strings.ContainsRune(o.Out.String(), 0x1b) || !strings.Contains(o.Out.String(), "18446744073709551615") {
				t.Errorf("sent %s, received %s", manyArgs, &o.Out)
			}
		})
	}
}

// TestProviderAndNumbers calls an RPC of a provider, whose result is a number that JSON does not have.
func TestProviderAndNumbers(t *testing.T) {
	e := clitest.Engine(t, nil)
	p, err := e.NewProvider(7, "numbers")
	if err != nil {
		t.Fatal(err)
	}
	divide := cinnabar.NewRPC[[2]float64, float64]("divide")
	if err := divide.Handle(p, func(_ context.Context, in [2]float64) (float64, error) { return in[0] / in[1], nil }); err != nil {
		t.Fatal(err)
	}
	clitest.WantRun(t, 0, []string{"call", e.Addr(), "divide", "--provider", "7", "--in", "double,double", "--args", "[1,0]", "--out", "double"}, "\"+Inf\"\n")
	clitest.WantRun(t, 0, []string{"call", e.Addr(), "divide", "--provider", "7", "--in", "double[2]", "--args", "[[1,2]]", "--out", "double"}, "0.5\n")
	clitest.WantRun(t, cli.ExitFailure, []string{"call", e.Addr(), "divide", "--provider", "8", "--in", "double[2]", "--args", "[[1,2]]"}, "HG_NOENTRY")
	clitest.WantRun(t, cli.ExitFailure, []string{"call", e.Addr(), "divide", "--provider", "7", "--in", "double[2]", "--args", "[[1,2]]", "--out", "string"}, "does not have the types of --out string")
	o := clitest.WantRun(t, 0, []string{"call", e.Addr(), "divide", "--provider", "7", "--in", "double[2]", "--args", "[[1,2]]"})
	if got, want := o.Err.String(), "note: the response has 8 bytes more than --out describes: 000000000000e03f\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
}

// bulks is two memories, as C's structures with two hg_bulk_t have them.
type bulks struct{ From, To cinnabar.BulkHandle }

// copier serves an RPC that copies the bytes of the first memory to the second.
func copier(t *testing.T) string {
	t.Helper()
	e := clitest.Engine(t, nil)
	err := cinnabar.NewRPC[bulks, int64]("copy").Handle(e, func(ctx context.Context, in bulks) (int64, error) {
		peer := cinnabar.InfoFrom(ctx).Peer
		local, err := e.Alloc(cinnabar.ReadWrite, max(1, in.From.Len()))
		if err != nil {
			return 0, err
		}
		defer cli.Shut(local)
		if _, err := in.From.On(peer).Pull(ctx, local); err != nil {
			return 0, err
		}
		return in.To.On(peer).Push(ctx, local)
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.Addr()
}

// TestBulk calls a server that copies one file of the command to another one.
// parity: P01
func TestBulk(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	from, to := clitest.WriteTemp(t, "from", data), filepath.Join(t.TempDir(), "to:1")
	args := []string{"call", copier(t), "copy", "--in", "bulk,hg_bulk_t", "--bulk-in", from, "--out", "int64", "--bulk-out"}
	clitest.WantRun(t, 0, append(args, to+":1000003"), "1000000\n")
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, append(data, 0, 0, 0)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	clitest.WantRun(t, cli.ExitFailure, append(args, to+":5"), "exists")
	if again, err := os.ReadFile(to); err != nil || !bytes.Equal(again, got) {
		t.Errorf("the file that existed has %d bytes, %v", len(again), err)
	}
}

// TestBulkOfFailure removes the file of a call that fails.
func TestBulkOfFailure(t *testing.T) {
	e := clitest.Engine(t, nil)
	to := filepath.Join(t.TempDir(), "to")
	clitest.WantRun(t, cli.ExitFailure, []string{"call", e.Addr(), "nothing", "--in", "bulk", "--bulk-out", to + ":5"}, "HG_NOENTRY")
	if _, err := os.Lstat(to); !os.IsNotExist(err) {
		t.Errorf("the file of a call that failed: %v", err)
	}
}

// TestBulkOfInterrupt interrupts a call while the server has its memory. The command removes its file.
func TestBulkOfInterrupt(t *testing.T) {
	e := clitest.Engine(t, nil)
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	err := cinnabar.NewRPC[cinnabar.BulkHandle, struct{}]("hold").Handle(e, func(context.Context, cinnabar.BulkHandle) (struct{}, error) {
		close(began)
		<-release
		return struct{}{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	to, ended := filepath.Join(t.TempDir(), "to"), make(chan int)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var o clitest.Output
	go func() {
		ended <- clitest.Run(ctx, []string{"call", e.Addr(), "hold", "--in", "bulk", "--bulk-out", to + ":5"}, o.Streams())
	}()
	select {
	case <-began:
	case code := <-ended:
		t.Fatalf("exit code %d: %s", code, &o.Err)
	}
	if s, err := os.Stat(to); err != nil || s.Size() != 5 {
		t.Errorf("the file while the server has it: %v, %v", s, err)
	}
	cancel()
	if code := <-ended; code == 0 {
		t.Error("the command succeeds")
	}
	if _, err := os.Lstat(to); !os.IsNotExist(err) {
		t.Errorf("the file of a call that was interrupted: %v", err)
	}
}

// TestOneWay exposes a file to a server that does not respond.
func TestOneWay(t *testing.T) {
	e := clitest.Engine(t, nil)
	read := make(chan string, 1)
	err := cinnabar.NewOneWay[cinnabar.BulkHandle]("do_rdma", cinnabar.WithFlavor(cinnabar.Thallium)).Handle(e, func(ctx context.Context, h cinnabar.BulkHandle) error {
		b := make([]byte, h.Len())
		_, err := h.On(cinnabar.InfoFrom(ctx).Peer).ReadAt(ctx, b, 0)
		read <- string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	from := clitest.WriteTemp(t, "from", []byte("Matthieu"))
	clitest.WantRun(t, 0, []string{"call", e.Addr(), "do_rdma", "--flavor", "thallium", "--in", "bulk", "--bulk-in", from, "--one-way", "--grace", "200ms"})
	if got := <-read; got != "Matthieu" {
		t.Errorf("the server has read %q", got)
	}
}

// TestWrongCalls has command lines that no server sees.
func TestWrongCalls(t *testing.T) {
	for args, text := range map[string]string{
		"--in uint31":            `--in: type 1, "uint31": unknown`,
		"--out string,":          `--out: type 2, "": unknown`,
		"--in bulk[]":            "memory has no lists",
		"--in int8[4":            "want one pair of brackets",
		"--in int8[4][4]":        "want one pair of brackets",
		"--in int8[0]":           `"0" elements; want 1 to 1048576`,
		"--in int8[99999999999]": "elements; want 1 to",
		"--in " + strings.Repeat("bool,", 64) + "bool":                                   "65 types; at most 64",
		"--in string[1048576],string[1048576],string[1048576],string[1048576],string[1]": "types 1 to 5 take",
		"--in uint8":                      "--args has 0 values; --in has 1 types",
		"--in uint8 --args [256]":         "value 1, a uint8: json: cannot unmarshal number 256",
		"--in uint8 --args [null]":        "null is no value",
		"--in uint8[2] --args [\"AQI=\"]": "cannot unmarshal string",
		"--in int8[2] --args [[1,2,3]]":   "3 elements instead of 2",
		"--in int8[] --args [[1,null]]":   "element 2: null is no value",
		"--in uint8 --args [1]x":          `at byte 3: "x" stands behind`,
		"--in uint8 --args 1":             "is no JSON array: ",
		"--in uint8 --args [1":            "is no JSON array: ",
		"--in bulk":                       "--in has 1 types bulk; --bulk-in and --bulk-out name 0 files",
		"--bulk-in main_test.go":          "--in has 0 types bulk; --bulk-in and --bulk-out name 1 files",
		"--bulk-out x":                    "has no size",
		"--bulk-out x:0":                  "--bulk-out",
		"--one-way --out uint8":           "an RPC without response has no results",
		"--one-way --grace -1s":           "--grace is -1s",
		"--flavor c":                      `unknown flavour "c"`,
		"--flavor mercury -p 5":           "have no providers",
	} {
		clitest.WantRun(t, cli.ExitUsage, append([]string{"call", "ofi+tcp://127.0.0.1:1", "name"}, strings.Fields(args)...), text)
	}
}

// TestPing measures round trips, to an engine with a provider and to one without.
// parity: P01
func TestPing(t *testing.T) {
	e := clitest.Engine(t, nil)
	clitest.WantRun(t, 0, []string{"ping", e.Addr(), "-n", "2", "-i", "0"}, "tcp  ", "rpc  ", "handler     not tried: the process has no provider 0", "2 round trips over tcp to "+e.Addr()+"\nleast ")
	if _, err := e.NewProvider(0, "zero"); err != nil {
		t.Fatal(err)
	}
	o := clitest.WantRun(t, 0, []string{"ping", e.Addr(), "-n", "3", "-i", "0", "-j"})
	var p pinged
	if err := json.Unmarshal(o.Out.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range p.Layers {
		names = append(names, l.Layer+l.Note)
	}
	if fmt.Sprint(names) != "[tcp rpc handler]" || p.Count != 3 || p.Min <= 0 || p.Min > p.Mean || p.Mean > p.Max || p.Transport != "tcp" || p.Address != e.Addr() {
		t.Errorf("%+v", p)
	}
}

// TestPingCombined pings a process over shared memory.
// parity: P01 N06
func TestPingCombined(t *testing.T) {
	if _, _, err := margo.ChooseAddr(t.Context(), "na+sm", nil); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	e := clitest.Engine(t, &cinnabar.Config{AutoSM: true})
	clitest.WantRun(t, 0, []string{"ping", e.Addr(), "-n", "2", "-i", "0"}, "tcp  ", "rpc  ", "2 round trips over sm to "+e.Addr()+"\nleast ")
}

// TestSilentLayers pings processes of which one layer does not answer.
// parity: P01
func TestSilentLayers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	address := "ofi+tcp://" + l.Addr().String()
	clitest.WantRun(t, cli.ExitFailure, []string{"ping", "-t", "300ms", address}, "connection: the process does not answer the protocol's connection request")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for c := range accepted {
		cli.Shut(c)
	}
	clitest.WantRun(t, cli.ExitFailure, []string{"ping", address}, "tcp does not answer", "connection refused", "see whether the process runs")
}

// TestSilentHandler pings a process whose only worker is busy.
func TestSilentHandler(t *testing.T) {
	e := clitest.Engine(t, &cinnabar.Config{MaxHandlers: 1})
	if _, err := e.NewProvider(0, "zero"); err != nil {
		t.Fatal(err)
	}
	began, release := make(chan struct{}), make(chan struct{})
	block := cinnabar.NewRPC[struct{}, struct{}]("block")
	if err := block.Handle(e, func(context.Context, struct{}) (struct{}, error) { close(began); <-release; return struct{}{}, nil }); err != nil {
		t.Fatal(err)
	}
	client := clitest.Engine(t, nil)
	ep, err := client.Lookup(e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	blocked := block.Start(t.Context(), ep, struct{}{})
	<-began
	o := clitest.WantRun(t, cli.ExitFailure, []string{"ping", "-t", "500ms", e.Addr()}, "handler: the RPC layer answers, and the handler does not")
	if !strings.Contains(o.Out.String(), "rpc  ") {
		t.Errorf("the layers that answer: %q", &o.Out)
	}
	close(release)
	if _, err := blocked.Wait(); err != nil {
		t.Error(err)
	}
}

// TestID compares the ids of a name with those that C programs compute: Margo's and Thallium's from their logs, Mercury's from HG_Register_name.
// parity: P01
func TestID(t *testing.T) {
	o := clitest.WantRun(t, 0, []string{"id", "sum"})
	if got, want := o.Out.String(), "FLAVOUR   HEX                 DECIMAL\n"+
		"margo     0x1c8857ad0000ffff  2055989630435655679\n"+
		"thallium  0x1c8857ad00000000  2055989630435590144\n"+
		"mercury   0x000000000b88ab9a  193506202\n"; got != want {
		t.Errorf("ids:\n%swant\n%s", got, want)
	}
	o = clitest.WantRun(t, 0, []string{"id", "sum", "--provider", "42", "--json"})
	var list []identified
	if err := json.Unmarshal(o.Out.Bytes(), &list); err != nil || len(list) != 2 || list[0].ID != 0x1c8857ad0000002a || *list[0].Provider != 42 {
		t.Errorf("%s, %v", &o.Out, err)
	}
	clitest.WantRun(t, cli.ExitUsage, []string{"id", ""}, "NAME is empty")
}

// FuzzResults decodes hostile responses, and prints their values.
func FuzzResults(f *testing.F) {
	f.Add(manyTypes, []byte("\x01\xff"), true)
	f.Add("string[],bulk,float32[2]", bytes.Repeat([]byte{1, 0, 0, 0, 0, 0, 0, 0}, 20), false)
	f.Fuzz(func(t *testing.T, types string, raw []byte, isCereal bool) {
		l, err := parseTypes("--out", types)
		if err != nil || len(types) > 200 || l.all.Size() > 1<<16 {
			return
		}
		m := message{codec: hgproc.Codec{}, raw: raw}
		if isCereal {
			m.codec = cereal.Codec{}
		}
		values, rest, err := l.results(m)
		if err != nil {
			return
		}
		if rest < 0 || rest > len(raw) {
			t.Fatalf("%d of %d bytes are left", rest, len(raw))
		}
		if _, err := json.Marshal(values); err != nil {
			t.Fatal(err)
		}
	})
}
