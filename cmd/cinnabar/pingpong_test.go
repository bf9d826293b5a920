package main

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

	"cinnabar/verbs"
)

func TestDestOnTheWire(t *testing.T) {
	d := destOf(0x1000002, netip.MustParseAddrPort("127.0.0.1:18515")) // numbers have 24 bits
	const want = "0000:000002:004853:00000000000000000000ffff7f000001\x00"
	if got := string(appendDest(nil, d)); got != want {
		t.Errorf("encoded as %q, want %q", got, want)
	}
	got, err := parseDest([]byte(want))
	if err != nil || got != d {
		t.Errorf("got %+v, %v, want %+v", got, err, d)
	}
	at, err := got.addrPort()
	if err != nil || at.String() != "127.0.0.1:18515" {
		t.Errorf("address %v, %v", at, err)
	}
	if got := destLine("local", d); got != "  local address:  LID 0x0000, QPN 0x000002, PSN 0x004853, GID ::ffff:127.0.0.1\n" {
		t.Errorf("line %q", got)
	}
	if got := destLine("remote", dest{}); got != "  remote address: LID 0x0000, QPN 0x000000, PSN 0x000000, GID ::\n" {
		t.Errorf("line %q", got)
	}
}

func TestDestMalformed(t *testing.T) {
	const good = "0001:0000a2:3c6bd2:fe800000000000000000000000000002\x00"
	if _, err := parseDest([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", good[:51], good + "0",
		"0001-0000a2:3c6bd2:fe800000000000000000000000000002\x00",
		"00010:000a2:3c6bd2:fe800000000000000000000000000002\x00",
		"000x:0000a2:3c6bd2:fe800000000000000000000000000002\x00",
		"+001:0000a2:3c6bd2:fe800000000000000000000000000002\x00",
		"0001:0000a2:3c6bd2:ge800000000000000000000000000002\x00",
		"0001:0000a2:3c6bd2:fe80000000000000000000000000000222",
	} {
		if d, err := parseDest([]byte(bad)); err == nil {
			t.Errorf("%q was taken for %+v", bad, d)
		}
	}
}

func TestDestOfHandMadeConnection(t *testing.T) {
	d, err := parseDest([]byte("0001:0000a2:3c6bd2:00000000000000000000000000000000\x00"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.addrPort()
	wantError(t, err, "by hand", "cinnabar pingpong")
}

func FuzzParseDest(f *testing.F) {
	f.Add([]byte("0001:0000a2:3c6bd2:fe800000000000000000000000000002\x00"))
	f.Add([]byte("0000:000002:004853:00000000000000000000ffff7f000001\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDest(b)
		if err != nil {
			return
		}
		if again := appendDest(nil, d); !bytes.EqualFold(again, b) {
			t.Errorf("%q decodes to %+v, which encodes to %q", b, d, again)
		}
		d.addrPort()
	})
}

func TestSettingsOnTheWire(t *testing.T) {
	p := pingpongSettings{size: 4096, iters: 1000}
	b := appendSettings(nil, p)
	if want := "ppng\x00\x00\x10\x00\x00\x00\x03\xe8"; string(b) != want {
		t.Errorf("encoded as %q, want %q", b, want)
	}
	if got, err := parseSettings(append(b, 0, 0)); err != nil || got != p { // padded
		t.Errorf("got %+v, %v, want %+v", got, err, p)
	}
	for n := range b {
		if _, err := parseSettings(b[:n]); err == nil {
			t.Errorf("the first %d bytes were accepted", n)
		}
	}
	if _, err := parseSettings([]byte("PPNG\x00\x00\x10\x00\x00\x00\x03\xe8")); err == nil {
		t.Error("another magic was accepted")
	}
}

// The lines are compared with what C's printf makes of the same numbers, and
// the numbers with the wall clock.
func TestPingpongResult(t *testing.T) {
	for _, tt := range []struct {
		r    pingpongResult
		want string
	}{
		{pingpongResult{4096, 1000, 10 * time.Millisecond},
			"8192000 bytes in 0.01 seconds = 6553.60 Mbit/sec\n1000 iters in 0.01 seconds = 10.00 usec/iter\n"},
		{pingpongResult{1 << 20, 1000, 2 * time.Second}, // 2000 MiB both ways: 8388.608 Mbit/s
			"2097152000 bytes in 2.00 seconds = 8388.61 Mbit/sec\n1000 iters in 2.00 seconds = 2000.00 usec/iter\n"},
		{pingpongResult{0, 1, 1234567 * time.Nanosecond},
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

// testPingpong runs a server and a client on dev.
func testPingpong(t *testing.T, dev *verbs.Device, server, client pingpongOptions) (outS, outC *output, errS, errC error) {
	t.Helper()
	l, addr := listenLocal(t)
	outS, outC = &output{}, &output{}
	errS, errC = both(
		func() error { return pingpongServer(t.Context(), dev, l, &server, outS.streams()) },
		func() error { return pingpongClient(t.Context(), dev, addr, &client, outC.streams()) },
	)
	return outS, outC, errS, errC
}

func pingpongDefaults() pingpongOptions {
	return pingpongOptions{ibPort: 1, size: 4096, rxDepth: 500, iters: 100, check: true}
}

// pingpongLines is what both sides print, as ibv_rc_pingpong does.
var pingpongLines = regexp.MustCompile(`^  local address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x000000, GID (::|::ffff:127\.0\.0\.1)
  remote address: LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ::ffff:127\.0\.0\.1
[0-9]+ bytes in [0-9]+\.[0-9]{2} seconds = [0-9]+\.[0-9]{2} Mbit/sec
[0-9]+ iters in [0-9]+\.[0-9]{2} seconds = [0-9]+\.[0-9]{2} usec/iter
$`)

func TestPingpongOutput(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*pingpongOptions)
	}{
		{"default", func(*pingpongOptions) {}},
		{"events", func(o *pingpongOptions) { o.events = true }},
		{"one receive", func(o *pingpongOptions) { o.rxDepth = 2 }},
		{"no bytes", func(o *pingpongOptions) { o.size = 0 }},
		{"odd size", func(o *pingpongOptions) { o.size = 12289 }},
		{"one exchange", func(o *pingpongOptions) { o.iters = 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := pingpongDefaults()
			tt.change(&o)
			outS, outC, errS, errC := testPingpong(t, memory(t, 0), o, o)
			if errS != nil || errC != nil {
				t.Fatalf("server: %v; client: %v", errS, errC)
			}
			for _, out := range []*output{outS, outC} {
				if !pingpongLines.MatchString(out.out.String()) {
					t.Errorf("printed\n%s", &out.out)
				}
			}
		})
	}
}

func TestPingpongSettingsMismatch(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*pingpongOptions)
		texts  []string
	}{
		{"size", func(o *pingpongOptions) { o.size = 8192 }, []string{"size (-s) is 4096 at the server and 8192 at the client"}},
		{"iters", func(o *pingpongOptions) { o.iters = 7 }, []string{"iters (-n) is 100 at the server and 7 at the client"}},
		{"both", func(o *pingpongOptions) { o.size, o.iters = 1, 2 }, []string{"size (-s)", "iters (-n)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := pingpongDefaults()
			tt.change(&client)
			_, _, errS, errC := testPingpong(t, memory(t, 0), pingpongDefaults(), client)
			for _, err := range []error{errS, errC} {
				wantError(t, err, tt.texts...)
				if got := exitCode(t.Context(), err); got != 1 {
					t.Errorf("exit code %d, want 1", got)
				}
			}
		})
	}
}

func TestPingpongStrangersDoNoHarm(t *testing.T) {
	dev := memory(t, 0)
	l, addr := listenLocal(t)
	o := pingpongDefaults()
	var out output
	served := make(chan error)
	go func() { served <- pingpongServer(t.Context(), dev, l, &o, out.streams()) }()
	for _, text := range []string{"", "GET / HTTP/1.1\r\n", strings.Repeat("x", destLen),
		string(appendDest(nil, dest{})) + "gone\x00"} {
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
	}
	if err := pingpongClient(t.Context(), dev, addr, &o, (&output{}).streams()); err != nil {
		t.Errorf("client: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	if got := strings.Count(out.err.String(), "\n"); got != 4 {
		t.Errorf("%d strangers were noted, want 4:\n%s", got, &out.err)
	}
}

func TestPingpongServerInterrupted(t *testing.T) {
	dev := memory(t, 0)
	l, _ := listenLocal(t)
	o := pingpongDefaults()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := pingpongServer(ctx, dev, l, &o, (&output{}).streams()); !errors.Is(err, stop) {
		t.Errorf("the server ended with %v", err)
	}
}

func TestPingpongClientWithoutServer(t *testing.T) {
	l, addr := listenLocal(t)
	l.Close()
	o := pingpongDefaults()
	err := pingpongClient(t.Context(), memory(t, 0), addr, &o, (&output{}).streams())
	wantError(t, err, addr.String(), "server running there")
}

func TestPingpongLimits(t *testing.T) {
	l, _ := listenLocal(t)
	dev := memory(t, 0)
	for _, tt := range []struct {
		change func(*pingpongOptions)
		text   string
	}{
		{func(o *pingpongOptions) { o.ibPort = 2 }, "no port 2"},
		{func(o *pingpongOptions) { o.rxDepth = 5000 }, "MaxQPWR"},
	} {
		o := pingpongDefaults()
		tt.change(&o)
		wantError(t, pingpongServer(t.Context(), dev, l, &o, (&output{}).streams()), tt.text)
	}
}

func TestCheckPingpong(t *testing.T) {
	b := make([]byte, 3*pingpongPage)
	fillPingpong(b)
	if err := checkPingpong(b); err != nil {
		t.Errorf("good bytes: %v", err)
	}
	b[2*pingpongPage+5]++
	wantError(t, checkPingpong(b), "page 2", "byte 8197")
}
