package filexfer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
)

// A tree is made equal to the sender's: what differs crosses, and what the sender does not have goes after the list of it.
//
// parity: X02
func TestSendSync(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows lets few users make symbolic links")
	}
	root := makeTree(t)
	p := startRecv(t, "127.0.0.1:0", "--overwrite", "--allow-delete")
	send := func(args ...string) string {
		t.Helper()
		code, client := clitest.RunProcess(t, append(append([]string{"send", "-r", "--exclude", "build/"}, args...), root, p.addr)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, client.Stderr)
		}
		return client.Stdout.String()
	}
	send("--preserve")
	for name, data := range map[string]string{"photos/old": "x", "photos/build/y": "y", "photos/a/one": "changed"} {
		at := filepath.Join(p.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(data), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if out := send("--delete", "--dry-run"); !strings.HasSuffix(out, "\nwould remove photos/old\n") || !strings.Contains(out, "photos/a/one (1 bytes)") {
		t.Errorf("got %q", out)
	}
	if out := send("--delete", "--dry-run", "--json"); !strings.Contains(out, `{"event":"removal","path":"photos/old","kind":"other"}`) {
		t.Errorf("got %q", out)
	}
	for _, name := range []string{"photos/old", "photos/build/y"} {
		if _, err := os.Stat(filepath.Join(p.dir, name)); err != nil {
			t.Errorf("the dry run has removed it: %v", err)
		}
	}
	if out := send("--update", "--delete"); !strings.HasPrefix(out, "removes photos/old\nsent photos/: ") || !strings.Contains(out, ", 5 bytes were there") {
		t.Errorf("got %q", out)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "photos/old")); err == nil {
		t.Error("a file that the sender does not have is there")
	}
	if got, err := os.ReadFile(filepath.Join(p.dir, "photos/a/one")); string(got) != "1" {
		t.Errorf("got %q, %v", got, err)
	}
	if out := send("--checksum", "--json"); !strings.Contains(out, `"kept":6`) {
		t.Errorf("got %q", out)
	}
	p.interrupt(t)
}

// countingRelay passes connections on to an address, and counts the bytes towards it and from there.
type countingRelay struct {
	addr         string
	bytes, comes atomic.Int64
}

// newCountingRelay starts a relay, which ends with the test.
func newCountingRelay(t *testing.T, to string) *countingRelay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &countingRelay{addr: l.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.pass(t, from, to) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return r
}

// pass carries one connection until both sides have ended it.
func (r *countingRelay) pass(t *testing.T, from net.Conn, to string) {
	defer func() { _ = from.Close() }()
	onward, err := net.Dial("tcp", to)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = onward.Close() }()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, io.TeeReader(onward, counter{&r.comes})) // it ends as the connection does
		_ = from.Close()
	})
	_, _ = io.Copy(onward, io.TeeReader(from, counter{&r.bytes}))
	_ = onward.Close()
	back.Wait()
}

// counter counts the bytes that are written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// wantResumed checks the last line of a command with --json that has sent or pulled size bytes: the receiver had at least least of them, and only the rest has crossed.
func wantResumed(t *testing.T, out string, size, least, crossed int64) {
	t.Helper()
	var e transferEvent
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || e.Kept < least || e.Bytes < size || e.Bytes > size+1<<10 {
		t.Errorf("%d bytes were there, %v: %s", e.Kept, err, out)
	}
	// Beside the bytes of the file there are headers, sums and messages.
	if crossed < size-e.Kept || crossed > (size-e.Kept)*101/100+64<<10 {
		t.Errorf("%d bytes have crossed; the receiver had %d of %d", crossed, e.Kept, size)
	}
}

// A file whose sender is killed goes on where it stopped when it is sent again: the bytes before that do not cross again, with any number of lanes.
//
// parity: X02 D47
func TestSendResumes(t *testing.T) {
	needsLocks(t)
	const size, least = 64 << 20, 8 << 20 // bytes of the file, and of the blocks that are there when the sender is killed
	path := randomFiles(t, size)[0]
	for name, c := range map[string]struct {
		server      func() (p *recvProcess)
		first, then string // lanes
	}{
		"recv":            {func() *recvProcess { return startRecv(t, "127.0.0.1:0") }, "1", "1"},
		"recv with lanes": {func() *recvProcess { return startRecv(t, "127.0.0.1:0") }, "4", "3"},
		"serve-files": {func() *recvProcess {
			dir := t.TempDir()
			p, addr := startServer(t, dir, "--write")
			return &recvProcess{Process: p, dir: dir, addr: addr}
		}, "1", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.server()
			client := clitest.Start(t, "send", "--json", "--chunk", "64k", "--limit", "24MiB/s", "--lanes", c.first, path, p.addr)
			client.Stdout.Expect(`"event":"progress".*"bytes":(1[89]|[2-9]\d)\d{6},`)
			client.Kill()
			_ = client.Wait() // it was killed
			relay := newCountingRelay(t, p.addr)
			code, again := clitest.RunProcess(t, "send", "--json", "--lanes", c.then, path, relay.addr)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, again.Stderr)
			}
			wantResumed(t, again.Stdout.String(), size, least, relay.bytes.Load())
			p.sameFile(t, path)
			if names := p.files(t); len(names) != 1 {
				t.Errorf("in the directory: %q", names)
			}
			p.interrupt(t)
		})
	}
}

// A receiver without the options keeps nothing, and removes nothing.
func TestRecvKeepsNothing(t *testing.T) {
	root := makeTree(t)
	p := startRecv(t, "127.0.0.1:0", "--keep-for", "0", "--overwrite")
	code, client := clitest.RunProcess(t, "send", "-r", "--delete", root, p.addr)
	if code != 1 || !strings.Contains(client.Stderr.String(), "this receiver removes nothing for senders") || !strings.Contains(client.Stderr.String(), "--allow-delete") {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if names := p.files(t); len(names) != 0 {
		t.Errorf("in the directory: %q", names)
	}
	p.interrupt(t)
}

func TestSyncOptions(t *testing.T) {
	file := randomFiles(t, 10)[0]
	for _, e := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"send", "--delete", file, "127.0.0.1:1"}, cli.ExitUsage, "--delete is for directories"},
		{[]string{"send", "--update", "--protocol", "basic", file, "127.0.0.1:1"}, cli.ExitUsage, "need the fast protocol"},
		{[]string{"send", "--update", "-", "127.0.0.1:1"}, cli.ExitUsage, "send it by a command of its own"},
		{[]string{"recv", "--keep-for", "1h", "-"}, cli.ExitUsage, "--keep-for was given with -"},
		{[]string{"recv", "--keep-for", "-1s"}, cli.ExitUsage, "invalid --keep-for -1s"},
		{[]string{"recv", "--allow-delete"}, cli.ExitUsage, "which --overwrite lets senders change"},
	} {
		clitest.WantRun(t, e.code, e.args, e.text)
	}
}

// The list of removals has no characters that change how text is shown.
func TestRemovalIsPrintable(t *testing.T) {
	var out, err bytes.Buffer
	r := newReporter(t.Context(), sendWords, false, cli.Streams{Out: &out, Err: &err})
	werr := r.removal("photos/\x1b[31mred", true, false)
	if got := out.String(); werr != nil || strings.Contains(got, "\x1b") || !strings.HasPrefix(got, "removes photos/") || !strings.HasSuffix(got, "red/\n") {
		t.Errorf("got %q", got)
	}
}
