package rping

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/link"
	"cinnabar/verbs"
)

// captured reads the messages of a C rping's conversation.
func captured(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/rping.hex")
	if err != nil {
		t.Fatal(err)
	}
	messages := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] != "#" {
			if messages[f[0]+" "+f[1]], err = hex.DecodeString(f[2]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return messages
}

// parity(recorded): V73
func TestAdvertOfCapture(t *testing.T) {
	for name, want := range map[string]advert{
		"source 0":  {verbs.RemoteAddr{Addr: 0x55ac42099010, RKey: 0x6d51b500}, 3000},
		"sink 0":    {verbs.RemoteAddr{Addr: 0x55ac42098410, RKey: 0x5fea2200}, 3000},
		"goahead 1": {},
	} {
		b := captured(t)[name]
		got, err := parseAdvert(b)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
		if again := appendAdvert(nil, want); !bytes.Equal(again, b) {
			t.Errorf("%s: encoded as %x, want %x", name, again, b)
		}
		for n := range b {
			if _, err := parseAdvert(b[:n]); err == nil {
				t.Errorf("%s: the first %d bytes were accepted", name, n)
			}
		}
	}
}

// parity(recorded): V73
func TestPingDataOfCapture(t *testing.T) {
	for n := range int32(2) {
		want := captured(t)[fmt.Sprintf("data %d", n)]
		got := make([]byte, len(want))
		fillPing(got, n)
		if !bytes.Equal(got, want) {
			t.Errorf("round %d: got %q, want %q", n, got, want)
		}
		if got := echoLen(want); got != len(want) {
			t.Errorf("round %d: %d of %d bytes would be written back", n, got, len(want))
		}
	}
}

func TestFillPing(t *testing.T) {
	for _, tt := range []struct {
		n    int32
		size int
		want string
	}{
		{0, 64, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\x00"},
		{57, 23, "rdma-ping-57: zABCDEFG\x00"},
		{58, 23, "rdma-ping-58: ABCDEFGH\x00"},
		{2147483647, 23, "rdma-ping-2147483647: \x00"},
		{12, 4, "rdm\x00"},
		{12, 0, ""},
	} {
		b := bytes.Repeat([]byte{0xff}, tt.size)
		fillPing(b, tt.n)
		if got := string(b); got != tt.want {
			t.Errorf("round %d in %d bytes: got %q, want %q", tt.n, tt.size, got, tt.want)
		}
	}
	if got := nextPing(2147483647); got != 0 {
		t.Errorf("the round after the last is %d, want 0", got)
	}
}

func TestPingTextWithoutEnd(t *testing.T) {
	b := []byte("no end")
	if got := pingText(b); string(got) != "no end" {
		t.Errorf("got %q", got)
	}
	if got := echoLen(b); got != len(b) {
		t.Errorf("%d bytes would be written back of %d", got, len(b))
	}
}

func FuzzParseAdvert(f *testing.F) {
	for _, b := range captured(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAdvert(b)
		if err != nil {
			return
		}
		if again := appendAdvert(nil, a); !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, a, again)
		}
		if a.check(maxSize) == nil && (a.size == 0 || a.size > maxSize) {
			t.Errorf("%d bytes were accepted", a.size)
		}
	})
}

// testBoth runs a server and a client on dev.
func testBoth(t *testing.T, dev *verbs.Device, server, client options) (outS, outC *clitest.Output, errS, errC error) {
	t.Helper()
	l := clitest.Listen(t, dev)
	server.server, client.client, client.addr = true, true, l.Addr()
	server.idle, client.idle = idleLimit, idleLimit
	outS, outC = &clitest.Output{}, &clitest.Output{}
	errS, errC = clitest.Both(
		func() error { return runServer(t.Context(), dev, l, &server, outS.Streams()) },
		func() error { return runClient(t.Context(), dev, &client, outC.Streams()) },
	)
	return outS, outC, errS, errC
}

func TestOutput(t *testing.T) { clitest.EachDevice(t, testOutput) }

func testOutput(t *testing.T, open func(*testing.T) *verbs.Device) {
	o := options{size: 32, count: 2, verbose: true, validate: true}
	outS, outC, errS, errC := testBoth(t, open(t), o, o)
	if errS != nil || errC != nil {
		t.Fatalf("server: %v; client: %v", errS, errC)
	}
	const data = "ping data: rdma-ping-%d: %s\n"
	want := fmt.Sprintf(data, 0, "ABCDEFGHIJKLMNOPQR") + fmt.Sprintf(data, 1, "BCDEFGHIJKLMNOPQRS")
	if got := outC.Out.String(); got != want {
		t.Errorf("client printed %q, want %q", got, want)
	}
	want = strings.ReplaceAll(want, "ping data", "server ping data")
	if got := outS.Out.String(); got != want {
		t.Errorf("server printed %q, want %q", got, want)
	}
	if got := outS.Err.String(); got != "server DISCONNECT EVENT...\n" {
		t.Errorf("server printed %q on stderr", got)
	}
	if got := outC.Err.String(); got != "client DISCONNECT EVENT...\n" {
		t.Errorf("client printed %q on stderr", got)
	}
}

// A peer's ping data may hold control sequences of a terminal.
func TestPrintsNoControlCharacters(t *testing.T) {
	dev, out := clitest.MemoryDevice(t, 0), &clitest.Output{}
	l := clitest.Listen(t, dev)
	server := options{server: true, size: 64, verbose: true, idle: idleLimit}
	client := options{client: true, size: 64, idle: idleLimit, addr: l.Addr()}
	errS, errC := clitest.Both(
		func() error { return runServer(t.Context(), dev, l, &server, out.Streams()) },
		func() error {
			e, err := newEnd(dev, &client, (&clitest.Output{}).Streams())
			if err != nil {
				return err
			}
			if err := e.Dial(t.Context(), l.Addr(), e.param()); err != nil {
				return errors.Join(err, e.Release())
			}
			copy(e.start.Bytes(), "\x1b]0;title\x07\u202eab\x00")
			for _, mr := range []*verbs.MR{e.start, e.data} {
				err = e.do(t.Context(), e.sendWR(advert{remote: mr.Remote(), size: 64}))
				if err == nil {
					_, err = e.message(t.Context())
				}
			}
			return e.finish(t.Context(), err)
		},
	)
	if errS != nil || errC != nil {
		t.Fatalf("server: %v; client: %v", errS, errC)
	}
	if got := out.Out.String(); got != "server ping data: ?]0;title??ab\n" {
		t.Errorf("the server prints %q", got)
	}
}

// The server may write back other bytes than it has read.
func TestClientPrintsNoControlCharacters(t *testing.T) {
	dev, out := clitest.MemoryDevice(t, 0), &clitest.Output{}
	l := clitest.Listen(t, dev)
	server := options{server: true, size: 64, idle: idleLimit}
	client := options{client: true, size: 64, verbose: true, idle: idleLimit, addr: l.Addr()}
	errS, errC := clitest.Both(
		func() error {
			r, err := l.Accept(t.Context())
			if err != nil {
				return err
			}
			e, err := newEnd(dev, &server, (&clitest.Output{}).Streams())
			if err != nil {
				return errors.Join(err, r.Reject(nil))
			}
			if err := e.Accept(t.Context(), r, e.param()); err != nil {
				return errors.Join(err, e.Release())
			}
			copy(e.data.Bytes(), "\x1b]0;title\x07\u202eab\x00")
			for range 2 { // the client's source, and its sink
				var of advert
				if of, err = e.message(t.Context()); err != nil {
					return e.finish(t.Context(), err)
				}
				write := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: of.remote, SGL: []verbs.SGE{e.data.SGE(0, 64)}}
				if err = e.do(t.Context(), write, e.sendWR(advert{})); err != nil {
					return e.finish(t.Context(), err)
				}
			}
			<-e.Conn.Done()
			return e.finish(t.Context(), nil)
		},
		func() error {
			e, err := newEnd(dev, &client, out.Streams())
			if err != nil {
				return err
			}
			if err := e.Dial(t.Context(), l.Addr(), e.param()); err != nil {
				return errors.Join(err, e.Release())
			}
			return e.finish(t.Context(), e.ping(t.Context(), 0))
		},
	)
	if errS != nil || errC != nil {
		t.Fatalf("server: %v; client: %v", errS, errC)
	}
	if got := out.Out.String(); got != "ping data: ?]0;title??ab\n" {
		t.Errorf("the client prints %q", got)
	}
}

func TestSizes(t *testing.T) { clitest.EachDevice(t, testSizes) }

func testSizes(t *testing.T, open func(*testing.T) *verbs.Device) {
	for _, size := range []int{minSize, 64, 4097, maxSize} {
		o := options{size: size, count: 60, validate: true, debug: true}
		if _, _, errS, errC := testBoth(t, open(t), o, o); errS != nil || errC != nil {
			t.Errorf("size %d: server: %v; client: %v", size, errS, errC)
		}
	}
}

func TestSizeMismatch(t *testing.T) { clitest.EachDevice(t, testSizeMismatch) }

func testSizeMismatch(t *testing.T, open func(*testing.T) *verbs.Device) {
	_, _, errS, errC := testBoth(t, open(t), options{size: 64}, options{size: 65, count: 1})
	clitest.WantError(t, errS, "65", "64", "-S")
	clitest.WantError(t, errC, "the server left in round 0")
}

func TestSelfQP(t *testing.T) { clitest.EachDevice(t, testSelfQP) }

func testSelfQP(t *testing.T, open func(*testing.T) *verbs.Device) {
	o := options{size: 64, count: 3, validate: true, selfQP: true}
	if _, _, errS, errC := testBoth(t, open(t), o, o); errS != nil || errC != nil {
		t.Errorf("server: %v; client: %v", errS, errC)
	}
}

func TestSourceAddress(t *testing.T) {
	client := options{size: 64, count: 1, source: netip.MustParseAddr("192.0.2.7")}
	_, _, _, errC := testBoth(t, clitest.MemoryDevice(t, 0), options{size: 64}, client)
	clitest.WantError(t, errC, "192.0.2.7", "-I")
}

func TestPersistentServer(t *testing.T) { clitest.EachDevice(t, testPersistentServer) }

func testPersistentServer(t *testing.T, open func(*testing.T) *verbs.Device) {
	dev := open(t)
	l := clitest.Listen(t, dev)
	ctx, cancel := context.WithCancelCause(t.Context())
	var out clitest.Output
	served := make(chan error)
	server := options{server: true, persistent: true, size: 64, idle: idleLimit}
	go func() { served <- runServer(ctx, dev, l, &server, out.Streams()) }()

	clients := make(chan error)
	const several = 5
	for range several {
		go func() {
			c := options{client: true, size: 64, count: 20, validate: true, addr: l.Addr(), idle: idleLimit}
			clients <- runClient(ctx, dev, &c, (&clitest.Output{}).Streams())
		}()
	}
	bad := options{client: true, size: 128, count: 1, addr: l.Addr(), idle: idleLimit} // concerns no other client
	if err := runClient(ctx, dev, &bad, (&clitest.Output{}).Streams()); err == nil {
		t.Error("a client with another size was served")
	}
	for range several {
		if err := <-clients; err != nil {
			t.Errorf("client: %v", err)
		}
	}
	cancel(errors.New("stop"))
	if err := <-served; err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if got := strings.Count(out.Err.String(), "server DISCONNECT EVENT..."); got != several+1 {
		t.Errorf("%d disconnects were noted, want %d:\n%s", got, several+1, &out.Err)
	}
}

// hostileClient connects and sends one message instead of pinging.
func hostileClient(t *testing.T, dev *verbs.Device, addr netip.AddrPort, message []byte) {
	t.Helper()
	l, err := link.New(dev, link.Config{Sends: 4, Receives: 4})
	if err != nil {
		t.Fatal(err)
	}
	mr, err := l.Alloc(4096, verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	copy(mr.Bytes(), message)
	for range 2 { // the go-ahead may come
		if err := l.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(1024, 1024)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Dial(t.Context(), addr, verbs.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if err := l.Post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.SGE(0, len(message))}}); err != nil {
		t.Fatal(err)
	}
	<-l.Conn.Done() // the server hangs up
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// parity: V73
func TestHostileAdverts(t *testing.T) { clitest.EachDevice(t, testHostileAdverts) }

func testHostileAdverts(t *testing.T, open func(*testing.T) *verbs.Device) {
	for _, tt := range []struct {
		name    string
		message []byte
		texts   []string
	}{
		{"short", make([]byte, 15), []string{"15 bytes", "is the peer an rping?"}},
		{"long", make([]byte, 17), nil}, // over the receive, which the device reports
		{"zero size", appendAdvert(nil, advert{}), []string{"0 bytes of ping data"}},
		{"huge size", appendAdvert(nil, advert{size: 1<<32 - 1}), []string{"4294967295", "-S"}},
		{"wrong key", appendAdvert(nil, advert{verbs.RemoteAddr{Addr: 4096, RKey: 12345}, 64}), []string{"read the client's data"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dev := open(t)
			l := clitest.Listen(t, dev)
			o := options{server: true, size: 64, idle: idleLimit}
			done := make(chan error)
			go func() { done <- runServer(t.Context(), dev, l, &o, (&clitest.Output{}).Streams()) }()
			hostileClient(t, dev, l.Addr(), tt.message)
			err := <-done
			clitest.WantError(t, err, tt.texts...)
		})
	}
}

// A client that connects and says nothing is dropped, so that it does not keep
// others from a persistent server for ever.
func TestSilentClient(t *testing.T) { clitest.EachDevice(t, testSilentClient) }

func testSilentClient(t *testing.T, open func(*testing.T) *verbs.Device) {
	dev := open(t)
	l := clitest.Listen(t, dev)
	o := options{server: true, size: 64, idle: time.Millisecond}
	c, err := link.New(dev, link.Config{Sends: 1, Receives: 1})
	if err != nil {
		t.Fatal(err)
	}
	errC, errS := clitest.Both(
		func() error {
			if err := c.Dial(t.Context(), l.Addr(), verbs.ConnParam{}); err != nil {
				return err
			}
			<-c.Conn.Done()
			return c.Close(t.Context())
		},
		func() error { return runServer(t.Context(), dev, l, &o, (&clitest.Output{}).Streams()) },
	)
	if errC != nil {
		t.Error(errC)
	}
	clitest.WantError(t, errS, "the peer has sent nothing for 1ms")
}
