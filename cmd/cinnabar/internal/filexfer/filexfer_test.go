package filexfer

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/verbs"
	"cinnabar/xfer"
)

func TestHostPort(t *testing.T) {
	for _, tt := range []struct{ text, host, port string }{
		{"server", "server", "12345"}, {"server:7", "server", "7"},
		{"127.0.0.1", "127.0.0.1", "12345"}, {"127.0.0.1:80", "127.0.0.1", "80"},
		{"::1", "::1", "12345"}, {"[::1]", "::1", "12345"},
		{"[::1]:80", "::1", "80"}, {"fe80::1%eth0", "fe80::1%eth0", "12345"},
		{"[fe80::1%eth0]:80", "fe80::1%eth0", "80"}, {":80", "", "80"},
		{"", "", "12345"},
	} {
		if host, port, err := hostPort(tt.text); err != nil || host != tt.host || port != tt.port {
			t.Errorf("%q: %q, %q, %v, want %q, %q", tt.text, host, port, err, tt.host, tt.port)
		}
	}
	for _, text := range []string{"server:", "a:b:c", "[::1", "[::1]80", "::1]:80"} {
		if host, port, err := hostPort(text); err == nil {
			t.Errorf("%q was taken for %q, %q", text, host, port)
		}
	}
}

// parity: B35
func TestParseChunk(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
	}{
		{"4k", 4096}, {"4K", 4096}, {"4KiB", 4096}, {"5KB", 5000}, {"1MiB", 1 << 20}, {"1m", 1 << 20}, {"1g", 1 << 30},
		{"1.5M", 3 << 19}, {"65536", 65536}, {"64 k", 65536},
	} {
		if got, err := parseChunk("--chunk", tt.text, minChunk, maxChunk); err != nil || got != tt.want {
			t.Errorf("%q: %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
	for _, text := range []string{"", "k", "-4k", "4x", "1k", "2g", "4095", "1e"} {
		got, err := parseChunk("--chunk", text, minChunk, maxChunk)
		if err == nil {
			t.Errorf("%q was taken for %d", text, got)
		} else if strings.Contains(err.Error(), "iB\":") {
			t.Errorf("the error about %q quotes something else: %v", text, err)
		}
	}
}

func TestListenAny(t *testing.T) {
	dev := clitest.MemoryDevice(t, 0)
	first, err := listenAny(dev, []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = listenAny(dev, []netip.AddrPort{first.Addr(), netip.MustParseAddrPort("127.0.0.1:0")})
	clitest.WantError(t, err, "listen on "+first.Addr().String())
}

func TestAddressesByFamily(t *testing.T) {
	six, four := netip.MustParseAddrPort("[::1]:1"), netip.MustParseAddrPort("127.0.0.1:1")
	if got := ipv4First([]netip.AddrPort{six, four}); got[0] != four || got[1] != six {
		t.Errorf("got %v", got)
	}
}

// A receiver without --listen serves no other machine.
func TestRecvListensOnLoopback(t *testing.T) {
	for _, c := range []struct{ listen, want string }{
		{NewRecv(cli.Streams{}).Flag("listen").DefValue, "127.0.0.1:12345"},
		{"", "127.0.0.1:12345"},
		{":7", "127.0.0.1:7"},
		{"0.0.0.0:7", "0.0.0.0:7"},
		{"0.0.0.0", "0.0.0.0:12345"},
		{"[::]:7", "[::]:7"},
		{"::1", "[::1]:12345"},
		{"[::1]:7", "[::1]:7"},
	} {
		addrs, err := listenAddrs(t.Context(), c.listen)
		if err != nil || addrs[0].String() != c.want {
			t.Errorf("recv --listen %s: %v, %v, want %s", c.listen, addrs, err, c.want)
		}
	}
	_, err := listenAddrs(t.Context(), "7000") // a port without its colon
	clitest.WantError(t, err, "write :7000")
}

// Results of transfers, for the lines.
var (
	samplePeer  = netip.MustParseAddrPort("192.0.2.7:12345")
	sampleBasic = xfer.Result{
		Name: "test-file", Peer: samplePeer, Size: 25 << 20, Protocol: xfer.Basic, Immediate: true,
		Buffers: 1, Chunk: 10 << 20, Chunks: 3, Duration: 250 * time.Millisecond,
	}
	samplePlain = xfer.Result{Name: "empty", Peer: samplePeer, Protocol: xfer.Basic, Buffers: 1, Chunk: 10 << 20, Duration: time.Millisecond}
	sampleFast  = xfer.Result{
		Name: "test-file", Peer: samplePeer, Size: 25 << 20, Protocol: xfer.Fast, Buffers: 8, Chunk: 1 << 20, Chunks: 25,
		Digest: xfer.SHA256, Sum: [32]byte{0x9f, 0x86, 31: 1}, Duration: 50 * time.Millisecond,
	}
	sampleFailure = &xfer.Error{
		Op: "send", Name: "test-file", Peer: samplePeer, Code: xfer.CodeExists, Remote: true,
		Err: errors.New(`the receiver has a file "test-file" and does not overwrite`),
	}
)

// clock is a time that tests move.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

// sampleReporter prints to o, in the time of the clock.
func sampleReporter(words words, jsonLines bool, o *clitest.Output) (*reporter, *clock) {
	c := &clock{time.Unix(1_000_000_000, 0)}
	r := newReporter(context.Background(), words, jsonLines, o.Streams())
	r.now, r.interval = c.now, 0 // the test looks
	return r, c
}

func TestLines(t *testing.T) {
	var o clitest.Output
	r, c := sampleReporter(sendWords, false, &o)
	for _, res := range []xfer.Result{sampleBasic, samplePlain, sampleFast} {
		p := r.watch()
		p.Start(res)
		for range 3 {
			c.Time = c.Add(6 * time.Second)
			p.Advance(res.Size / 4)
		}
		p.Finish(res, nil)
		if err := r.finished("/tmp/"+res.Name, res, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.words = recvWords
	unknown := sampleBasic
	unknown.Size = -1
	p := r.watch()
	p.Start(unknown)
	c.Time = c.Add(time.Minute)
	p.Advance(10 << 20)
	if err := r.finished("", sampleBasic, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.finished("", sampleBasic, sampleFailure); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "transfer.golden", "standard error:\n"+o.Err.String()+"standard output:\n"+o.Out.String())
}

func TestJSON(t *testing.T) {
	var o clitest.Output
	r, _ := sampleReporter(sendWords, true, &o)
	for _, res := range []xfer.Result{sampleBasic, sampleFast} {
		if err := r.finished("/tmp/test-file", res, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.finished("/tmp/test-file", xfer.Result{Name: "test-file", Peer: samplePeer}, r.explain(sampleFailure)); err != nil {
		t.Fatal(err)
	}
	if err := r.finished("/tmp/test-file", xfer.Result{}, errors.New("open the file to send: no such file")); err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, "transfer.json.golden", o.Out.String())
}

// What a peer says must not steer the terminal.
func TestHostileText(t *testing.T) {
	var o clitest.Output
	r, _ := sampleReporter(recvWords, false, &o)
	res := sampleFast
	res.Name = "a\x1b[2Jb\r\n\u202e.txt"
	r.watch().Start(res)
	if err := r.finished("", res, nil); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{o.Out.String(), o.Err.String()} {
		if strings.Count(text, "\n") != 1 || strings.ContainsAny(text, "\x1b\r\u202e") || !strings.Contains(text, "a?[2Jb???.txt") {
			t.Errorf("printed %q", text)
		}
	}
}

func TestRemedies(t *testing.T) {
	r := newReporter(t.Context(), sendWords, false, (&clitest.Output{}).Streams())
	clitest.WantError(t, r.explain(sampleFailure), "test-file", "192.0.2.7:12345", "file exists", "--overwrite")
	plain := errors.New("plain")
	if got := r.explain(plain); got != plain { //nolint:errorlint // unchanged is what is asked
		t.Errorf("got %v", got)
	}
	changed := &xfer.Error{Op: "receive", Code: xfer.CodeOther}
	if got := r.explain(changed); got != error(changed) { //nolint:errorlint // unchanged is what is asked
		t.Errorf("got %v", got)
	}
}

func TestConcernsFile(t *testing.T) {
	for code, want := range map[xfer.Code]bool{
		xfer.CodeExists: true, xfer.CodeName: true, xfer.CodeSource: true,
		xfer.CodeLost: false, xfer.CodeTimeout: false, xfer.CodeCanceled: false, xfer.CodeBusy: false,
	} {
		if got := concernsFile(&xfer.Error{Code: code}); got != want {
			t.Errorf("%v: %t, want %t", code, got, want)
		}
	}
	if !concernsFile(os.ErrNotExist) {
		t.Error("a file that cannot be opened keeps the others")
	}
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"short", "short"}, {"exactly-10", "exactly-10"}, {"eleven-long", "eleve…long"}, {"ääääääääääää", "äääää…ääää"},
	} {
		if got := shorten(tt.name, 10); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A list of files that cannot be sent whole is not begun: nobody is connected to.
// parity: B17
func TestSendLooksBeforeItConnects(t *testing.T) {
	a, b := clitest.WriteTemp(t, "same", nil), clitest.WriteTemp(t, "same", nil)
	var o clitest.Output
	if code := clitest.Run(t.Context(), []string{"send", a, b, "192.0.2.1"}, o.Streams()); code != cli.ExitUsage {
		t.Errorf("two files of one name: exit code %d", code)
	}
	if text := o.Err.String(); !strings.Contains(text, a) || !strings.Contains(text, b) {
		t.Errorf("stderr %q does not name both", text)
	}
}

// A name with several addresses: the one where nobody listens is passed over.
func TestSendTriesEveryAddress(t *testing.T) {
	dev := clitest.MemoryDevice(t, 0)
	l := clitest.Listen(t, dev)
	dir, err := xfer.OpenDir(t.Context(), t.TempDir(), xfer.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var o clitest.Output
	r, _ := sampleReporter(sendWords, false, &o)
	path := clitest.WriteTemp(t, "data", []byte("words"))
	s := &sending{o: &sendOptions{files: []string{path}}, dev: dev, r: r, peers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1"), l.Addr()}}
	errS, errR := clitest.Both(
		func() error { return s.all(t.Context()) },
		func() error {
			r := xfer.Receiver{Open: dir.Open}
			_, err := r.ServeOne(t.Context(), l)
			return err
		},
	)
	if errS != nil || errR != nil {
		t.Fatalf("sender: %v; receiver: %v; %s", errS, errR, &o.Err)
	}
	if len(s.peers) != 1 || s.peers[0] != l.Addr() {
		t.Errorf("further files would go to %v", s.peers)
	}
}

// parity: B47
func TestUnreachable(t *testing.T) {
	if !unreachable(&xfer.Error{Code: xfer.CodeLost, Err: syscall.ECONNREFUSED}) || unreachable(&xfer.Error{Code: xfer.CodeLost}) {
		t.Error("only addresses where nobody answers may be passed over")
	}
}

// A transfer that the end of the program cuts short is the program's failure; one
// that failed before is its sender's.
func TestRecvCutShort(t *testing.T) {
	var o clitest.Output
	r := &receiving{o: &recvOptions{}, r: newReporter(t.Context(), recvWords, false, o.Streams())}
	ctx, cancel := context.WithCancelCause(t.Context())
	r.done(ctx, sampleFast, sampleFailure)
	if r.cut.Load() {
		t.Error("a failed transfer counts as cut short")
	}
	cancel(cli.SignalError{Signal: os.Interrupt})
	r.done(ctx, sampleFast, nil)
	if r.cut.Load() {
		t.Error("a complete transfer counts as cut short")
	}
	r.done(ctx, sampleFast, sampleFailure)
	if r.cut.Load() {
		t.Error("a transfer that was refused before the end, and reported after it, counts as cut short")
	}
	if got := strings.Count(o.Err.String(), "--overwrite"); got != 2 {
		t.Errorf("%d failures were explained, want 2:\n%s", got, &o.Err)
	}
	r.done(ctx, sampleFast, &xfer.Error{Op: "receive", Code: xfer.CodeCanceled, Remote: true})
	if r.cut.Load() {
		t.Error("a transfer that its sender gave up counts as cut short")
	}
	r.done(ctx, sampleFast, &xfer.Error{Op: "receive", Code: xfer.CodeCanceled, Err: context.Cause(ctx)})
	if !r.cut.Load() {
		t.Error("a transfer that was cut short does not count")
	}
}

// The device without immediates is one, whatever the machine has.
func TestNoImmediatesDevice(t *testing.T) {
	o := options{noImmediates: true}
	dev, err := o.openDevice(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if attr, err := dev.Query(); err != nil || attr.Caps.Has(verbs.CapWriteImm) {
		t.Errorf("%v, %v", attr.Caps, err)
	}
}
