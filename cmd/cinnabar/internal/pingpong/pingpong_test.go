package pingpong

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/verbs"
	"cinnabar/verbs/oob"
)

func TestAddressLine(t *testing.T) {
	in := oob.QPInfo{LID: 1, QPN: 0x84, PSN: 0x3c6bd2, GID: netip.MustParseAddr("::ffff:10.9.0.1").As16()}
	if got := addressLine("local", in); got != "  local address:  LID 0x0001, QPN 0x000084, PSN 0x3c6bd2, GID ::ffff:10.9.0.1\n" {
		t.Errorf("line %q", got)
	}
	if got := addressLine("remote", oob.QPInfo{}); got != "  remote address: LID 0x0000, QPN 0x000000, PSN 0x000000, GID ::\n" {
		t.Errorf("line %q", got)
	}
}

// The lines are compared with what C's printf makes of the same numbers, and
// the numbers with the wall clock.
func TestResult(t *testing.T) {
	for _, tt := range []struct {
		r    result
		want string
	}{
		{result{4096, 1000, 10 * time.Millisecond},
			"8192000 bytes in 0.01 seconds = 6553.60 Mbit/sec\n1000 iters in 0.01 seconds = 10.00 usec/iter\n"},
		{result{1 << 20, 1000, 2 * time.Second}, // 2000 MiB both ways: 8388.608 Mbit/s
			"2097152000 bytes in 2.00 seconds = 8388.61 Mbit/sec\n1000 iters in 2.00 seconds = 2000.00 usec/iter\n"},
		{result{0, 1, 1234567 * time.Nanosecond},
			"0 bytes in 0.00 seconds = 0.00 Mbit/sec\n1 iters in 0.00 seconds = 1234.57 usec/iter\n"},
	} {
		var b bytes.Buffer
		if err := tt.r.write(&b); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// listenLocal stands for the server's TCP port.
func listenLocal(t *testing.T) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, netip.MustParseAddrPort(l.Addr().String())
}

// testBoth runs a server and a client on dev.
func testBoth(t *testing.T, dev *verbs.Device, server, client options) (outS, outC *clitest.Output, errS, errC error) {
	t.Helper()
	l, addr := listenLocal(t)
	outS, outC = &clitest.Output{}, &clitest.Output{}
	errS, errC = clitest.Both(
		func() error { return runServer(t.Context(), dev, l, &server, outS.Streams()) },
		func() error { return runClient(t.Context(), dev, addr, &client, outC.Streams()) },
	)
	return outS, outC, errS, errC
}

func defaults() options {
	return options{ibPort: 1, size: 4096, rxDepth: 500, iters: 100, check: true, mtu: 1024, gid: -1, timeout: defaultTimeout}
}

// outputLines is what both sides print, as ibv_rc_pingpong does.
var outputLines = regexp.MustCompile(`^  local address:  LID 0x[0-9a-f]{4}, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:.]+
  remote address: LID 0x[0-9a-f]{4}, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:.]+
[0-9]+ bytes in [0-9]+\.[0-9]{2} seconds = [0-9]+\.[0-9]{2} Mbit/sec
[0-9]+ iters in [0-9]+\.[0-9]{2} seconds = [0-9]+\.[0-9]{2} usec/iter
$`)

// parity: V71
func TestOutput(t *testing.T) { clitest.EachDevice(t, testOutput) }

func testOutput(t *testing.T, open func(*testing.T) *verbs.Device) {
	for _, tt := range []struct {
		name   string
		change func(*options)
	}{
		{"default", func(*options) {}},
		{"events", func(o *options) { o.events = true }},
		{"one receive", func(o *options) { o.rxDepth = 2 }},
		{"no bytes", func(o *options) { o.size = 0 }},
		{"odd size", func(o *options) { o.size = 12289 }},
		{"one exchange", func(o *options) { o.iters = 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := defaults()
			tt.change(&o)
			outS, outC, errS, errC := testBoth(t, open(t), o, o)
			if errS != nil || errC != nil {
				t.Fatalf("server: %v; client: %v", errS, errC)
			}
			for _, out := range []*clitest.Output{outS, outC} {
				if !outputLines.MatchString(out.Out.String()) {
					t.Errorf("printed\n%s", &out.Out)
				}
			}
		})
	}
}

// parity: V71 V78
func TestSettingsMismatch(t *testing.T) { clitest.EachDevice(t, testSettingsMismatch) }

func testSettingsMismatch(t *testing.T, open func(*testing.T) *verbs.Device) {
	for _, tt := range []struct {
		name   string
		change func(*options)
		texts  []string
	}{
		{"size", func(o *options) { o.size = 8192 }, []string{"size", `"4096"`, `"8192"`}},
		{"iters", func(o *options) { o.iters = 7 }, []string{"iters", `"100"`, `"7"`}},
		{"both", func(o *options) { o.size, o.iters = 1, 2 }, []string{"size is", "iters is"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := defaults()
			tt.change(&client)
			_, _, errS, errC := testBoth(t, open(t), defaults(), client)
			for _, err := range []error{errS, errC} {
				clitest.WantError(t, err, tt.texts...)
				if got := cli.ExitCode(t.Context(), err); got != 1 {
					t.Errorf("exit code %d, want 1", got)
				}
			}
		})
	}
}

func TestStrangersDoNoHarm(t *testing.T) {
	clitest.EachDevice(t, testStrangersDoNoHarm)
}

func testStrangersDoNoHarm(t *testing.T, open func(*testing.T) *verbs.Device) {
	dev := open(t)
	l, addr := listenLocal(t)
	o := defaults()
	var out clitest.Output
	served := make(chan error)
	go func() { served <- runServer(t.Context(), dev, l, &o, out.Streams()) }()
	for _, text := range []string{"", "GET / HTTP/1.1\r\n", strings.Repeat("x", 1<<16),
		"0001:0000a2:3c6bd2:fe800000000000000000000000000002\x00"} {
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c) // until the server hangs up
		c.Close()
	}
	if err := runClient(t.Context(), dev, addr, &o, (&clitest.Output{}).Streams()); err != nil {
		t.Errorf("client: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	if got := strings.Count(out.Err.String(), "\n"); got != 4 {
		t.Errorf("%d strangers were noted, want 4:\n%s", got, &out.Err)
	}
}

func TestServerInterrupted(t *testing.T) {
	dev := clitest.MemoryDevice(t, 0)
	l, _ := listenLocal(t)
	o := defaults()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := runServer(ctx, dev, l, &o, (&clitest.Output{}).Streams()); !errors.Is(err, stop) {
		t.Errorf("the server ended with %v", err)
	}
}

func TestClientWithoutServer(t *testing.T) {
	l, addr := listenLocal(t)
	l.Close()
	o := defaults()
	err := runClient(t.Context(), clitest.MemoryDevice(t, 0), addr, &o, (&clitest.Output{}).Streams())
	clitest.WantError(t, err, addr.String(), "server running there")
}

func TestLimits(t *testing.T) {
	l, _ := listenLocal(t)
	dev := clitest.MemoryDevice(t, 0)
	for _, tt := range []struct {
		change func(*options)
		text   string
	}{
		{func(o *options) { o.ibPort = 2 }, "no port 2"},
		{func(o *options) { o.rxDepth = 5000 }, "MaxQPWR"},
	} {
		o := defaults()
		tt.change(&o)
		clitest.WantError(t, runServer(t.Context(), dev, l, &o, (&clitest.Output{}).Streams()), tt.text)
	}
}

func TestCheck(t *testing.T) {
	b := make([]byte, 3*pageSize)
	fill(b)
	if err := check(b); err != nil {
		t.Errorf("good bytes: %v", err)
	}
	b[2*pageSize+5]++
	clitest.WantError(t, check(b), "page 2", "byte 8197")
}
