package lend

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cinnabar"
	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/hostquota"
	"cinnabar/margo"
	"cinnabar/rmem"
)

// TestCommands borrows a region, puts a file into it, gets it back in parts, and frees it, each with a command of its own.
// parity: S21
func TestCommands(t *testing.T) {
	e := clitest.Engine(t, nil)
	srv, err := rmem.Serve(e, rmem.Config{Provider: 3, Quota: 10 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(srv)
	lines := strings.Fields(clitest.WantRun(t, 0, []string{"mem", "alloc", "-p", "3", "--handle", e.Addr(), "5MiB"}, "rmem-owner:").Out.String())
	if len(lines) != 2 {
		t.Fatalf("%q", lines)
	}
	token, handle := lines[0], lines[1]
	data := bytes.Repeat([]byte("remote memory\n"), 5<<20/14)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.WantRun(t, 0, []string{"mem", "put", token, file})
	if o := clitest.WantRun(t, 0, []string{"mem", "get", handle, "--offset", "7", "--size", "6"}); o.Out.String() != "memory" {
		t.Errorf("%q", &o.Out)
	}
	var in clitest.Output
	from := in.Streams()
	from.In = strings.NewReader("MEMORY")
	if code := clitest.Run(t.Context(), []string{"mem", "put", handle, "--offset", "7"}, from); code != 0 {
		t.Errorf("exit code %d: %s", code, &in.Err)
	}
	copy(data[7:], "MEMORY")
	copied := filepath.Join(t.TempDir(), "copy")
	clitest.WantRun(t, 0, []string{"mem", "get", token, "-o", copied})
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got[:len(data)], data) || len(got) != 5<<20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	clitest.WantRun(t, 1, []string{"mem", "get", token, "-o", copied}, "exists")
	clitest.WantRun(t, 0, []string{"mem", "stat", "-p", "3", e.Addr()}, "5.0 MiB of 10 MiB lent (5242880 of 10485760 bytes), regions: 1")
	var u rmem.Usage
	if err := json.Unmarshal(clitest.WantRun(t, 0, []string{"mem", "stat", "-p", "3", "-j", e.Addr()}).Out.Bytes(), &u); err != nil || u.Regions != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	clitest.WantRun(t, 1, []string{"mem", "free", handle}, "is no token")
	clitest.WantRun(t, 0, []string{"mem", "free", token})
	clitest.WantRun(t, 1, []string{"mem", "free", token}, "was freed")
	clitest.WantRun(t, 1, []string{"mem", "get", handle}, "was freed")
	clitest.WantRun(t, 1, []string{"mem", "alloc", "-p", "3", e.Addr(), "11MiB"}, "impossible size")
	for _, args := range [][]string{
		{"alloc", e.Addr(), "x"}, {"alloc", "--lease", "0s", e.Addr(), "5"}, {"get", "nonsense"}, {"put"}, {"serve", "--quota", "x", "ofi+tcp://127.0.0.1"},
		{"serve", "--longest-lease", "0s", "ofi+tcp://127.0.0.1"},
	} {
		clitest.WantRun(t, 2, append([]string{"mem"}, args...))
	}
}

// TestOverVerbs borrows a region over the software device and frees it.
func TestOverVerbs(t *testing.T) {
	const software = "--device=software"
	borrow(t, `^ofi\+verbs;ofi_rxm://127\.0\.0\.1:\d+$`, []string{"ofi+verbs", software}, software)
}

// TestAutoSM borrows a region of a server that has shared memory beside its network.
// parity: N06
func TestAutoSM(t *testing.T) {
	if _, _, err := margo.ChooseAddr(t.Context(), "na+sm", nil); err != nil {
		t.Skipf("no shared memory: %v", err)
	}
	borrow(t, `^uid://-?\d+#na\+sm://\d+-\d+#ofi\+tcp://127\.0\.0\.1:\d+$`, []string{"ofi+tcp://127.0.0.1", "--auto-sm"})
}

// borrow starts a server with the arguments of serve, which prints an address of the form pattern, borrows a region and frees it. The
// clients get the arguments of client too.
func borrow(t *testing.T, pattern string, serve []string, client ...string) {
	t.Helper()
	mem := func(args ...string) []string { return slices.Concat([]string{"mem"}, args, client) }
	server := clitest.Start(t, slices.Concat([]string{"mem", "serve", "--quota", "8MiB"}, serve)...)
	address := server.Stdout.Expect(pattern)[0]
	token := strings.TrimSpace(clitest.WantRun(t, 0, mem("alloc", address, "1MiB"), "rmem-owner:").Out.String())
	file := filepath.Join(t.TempDir(), "file")
	data := bytes.Repeat([]byte("some text\n"), 1<<20/10)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	clitest.WantRun(t, 0, mem("put", token, file))
	if o := clitest.WantRun(t, 0, mem("get", token, "--size", strconv.Itoa(len(data)))); !bytes.Equal(o.Out.Bytes(), data) {
		t.Errorf("%d bytes came back, not those that were put", o.Out.Len())
	}
	clitest.WantRun(t, 0, mem("stat", address), "regions: 1")
	clitest.WantRun(t, 0, mem("free", token))
	clitest.WantRun(t, 2, mem("free", token, "-t", "0s"), "--timeout")
	server.Interrupt()
	if code := server.ExitCode(); code != 0 {
		t.Errorf("the server ended with exit code %d: %s", code, server.Stderr)
	}
}

// TestOnce puts a secret into memory with --once. The holder of the handle can read the memory once, and no further read succeeds.
// parity: Y10
func TestOnce(t *testing.T) {
	e := clitest.Engine(t, nil)
	srv, err := rmem.Serve(e, rmem.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(srv)
	lines := strings.Fields(clitest.WantRun(t, 0, []string{"mem", "alloc", "--once", "--wipe", "--handle", e.Addr(), "3MiB"}).Out.String())
	if len(lines) != 2 {
		t.Fatalf("%q", lines)
	}
	secret := strings.Repeat("secret!\n", 3<<20/8)
	put := func(to string) (int, string) {
		var in clitest.Output
		from := in.Streams()
		from.In = strings.NewReader(secret)
		return clitest.Run(t.Context(), []string{"mem", "put", to}, from), in.Err.String()
	}
	if code, text := put(lines[1]); code != 1 || !strings.Contains(text, "one read") {
		t.Errorf("exit code %d: %s", code, text)
	}
	if code, text := put(lines[0]); code != 0 {
		t.Fatalf("exit code %d: %s", code, text)
	}
	if o := clitest.WantRun(t, 0, []string{"mem", "get", lines[1]}); o.Out.String() != secret {
		t.Errorf("%d bytes", o.Out.Len())
	}
	clitest.WantRun(t, 1, []string{"mem", "get", lines[1]}, "has had")
	clitest.WantRun(t, 1, []string{"mem", "get", lines[0]}, "has had")
}

// TestTooMuch writes what fits, and says what does not.
// parity: S21
func TestTooMuch(t *testing.T) {
	e := clitest.Engine(t, nil)
	srv, err := rmem.Serve(e, rmem.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(srv)
	token := strings.TrimSpace(clitest.WantRun(t, 0, []string{"mem", "alloc", e.Addr(), "10"}).Out.String())
	var in clitest.Output
	from := in.Streams()
	from.In = strings.NewReader("0123456789A")
	if code := clitest.Run(t.Context(), []string{"mem", "put", token}, from); code != 1 || !strings.Contains(in.Err.String(), "10 bytes") {
		t.Errorf("exit code %d: %s", code, &in.Err)
	}
	clitest.WantRun(t, 0, []string{"mem", "get", token}, "0123456789")
	clitest.WantRun(t, 2, []string{"mem", "get", token, "--offset", "11"}, "10 bytes")
	clitest.WantRun(t, 2, []string{"mem", "put", token, "--offset", "-1"}, "10 bytes")
}

// TestPieces reads in pieces, unless there is one chance, and then no more than fits into memory.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		once    bool
		n, want int64
	}{{false, 100, 100}, {false, 1 << 60, chunkLen}, {true, 0, 0}, {true, 2 * chunkLen, 2 * chunkLen}, {true, maxOnce, maxOnce}} {
		if got, err := pieceLen(c.once, c.n); err != nil || got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	if got, err := pieceLen(true, 1<<60); err == nil || !strings.Contains(err.Error(), "--size") {
		t.Errorf("%d, %v", got, err)
	}
}

// TestServeMemory divides --max-memory, which counts what is lent too.
func TestServeMemory(t *testing.T) {
	half := hostquota.Machine().DefaultMemory()
	for _, c := range []struct{ quota, most, lent, rest int64 }{
		{0, 64 << 20, 32 << 20, 32 << 20}, {0, 4 << 30, 1 << 30, 3 << 30}, {16 << 20, 64 << 20, 16 << 20, 48 << 20}, {half, 0, half, 0},
	} {
		lent, engine := c.quota, cinnabar.Config{MaxMemory: c.most}
		if err := new(serveOptions).memory(&lent, &engine); err != nil || lent != c.lent || engine.MaxMemory != c.rest {
			t.Errorf("%+v: %d lent, %d for the engine, %v", c, lent, engine.MaxMemory, err)
		}
	}
	var o clitest.Output
	if code := clitest.Run(t.Context(), strings.Fields("mem serve ofi+tcp://127.0.0.1:0 --max-memory 64MiB --quota 64MiB"), o.Streams()); code != cli.ExitUsage || !strings.Contains(o.Err.String(), "leaves nothing") {
		t.Errorf("exit code %d: %s", code, &o.Err)
	}
}

// TestCopyFrom has the rule of --copy-from admit the servers that it names, and none without it.
func TestCopyFrom(t *testing.T) {
	e, source := clitest.Engine(t, nil), clitest.Engine(t, nil)
	srv, err := rmem.Serve(source, rmem.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(srv)
	c := &serveOptions{copyFrom: []string{source.Addr()}}
	allowed, err := c.sources(t.Context(), e)
	if err != nil || !allowed(source.Addr()) || allowed(e.Addr()) {
		t.Errorf("the rule is wrong, %v", err)
	}
	if allowed, err := new(serveOptions).sources(t.Context(), e); allowed != nil || err != nil {
		t.Errorf("a rule without --copy-from, %v", err)
	}
	var o clitest.Output
	if code := clitest.Run(t.Context(), strings.Fields("mem serve ofi+tcp://127.0.0.1:0 --copy-from nonsense"), o.Streams()); code == 0 || !strings.Contains(o.Err.String(), "--copy-from nonsense") {
		t.Errorf("exit code %d: %s", code, &o.Err)
	}
}

// A file that does not fit is refused before a byte of it is written; of other input the error says what was written.
func TestPutThatDoesNotFit(t *testing.T) {
	token := clitest.FiveBytes(t, clitest.MemoryServer(t))
	content := func() string { return clitest.WantRun(t, cli.ExitOK, []string{"mem", "get", token}).Out.String() }
	six := clitest.WriteTemp(t, "six", []byte("123456"))
	clitest.WantRun(t, cli.ExitFailure, []string{"mem", "put", token, six}, "6 bytes do not fit: the region has 5 from --offset 0 on; nothing was written")
	clitest.WantRun(t, cli.ExitFailure, []string{"mem", "put", token, "--offset", "4", clitest.WriteTemp(t, "two", []byte("12"))}, "2 bytes do not fit: the region has 1 from --offset 4 on")
	if got := content(); got != "\x00\x00\x00\x00\x00" {
		t.Errorf("the region has %q", got)
	}
	f, err := os.Open(six) // as standard input, of which a byte was read before
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Shut(f)
	if _, err := io.ReadFull(f, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var o clitest.Output
	if code := clitest.Run(t.Context(), []string{"mem", "put", token}, cli.Streams{In: f, Out: &o.Out, Err: &o.Err}); code != cli.ExitOK || content() != "23456" {
		t.Errorf("exit code %d, %s; the region has %q", code, &o.Err, content())
	}
	o = clitest.Output{}
	pipe := cli.Streams{In: strings.NewReader("abcdefg"), Out: &o.Out, Err: &o.Err}
	if code := clitest.Run(t.Context(), []string{"mem", "put", token}, pipe); code != cli.ExitFailure || !strings.Contains(o.Err.String(), "the input is longer than the 5 bytes of the region from --offset 0 on, which were written") {
		t.Errorf("exit code %d, %s", code, &o.Err)
	}
	if got := content(); got != "abcde" {
		t.Errorf("the region has %q", got)
	}
}

// A region that is larger than a server lends is refused with the options that set the limit.
func TestAllocTooLarge(t *testing.T) {
	clitest.WantRun(t, cli.ExitFailure, []string{"mem", "alloc", clitest.MemoryServer(t), "100GiB"}, "--quota, --host-quota, --client-quota and --largest")
}
