package filexfer

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/internal/audit"
	"cinnabar/xfer"
)

// A stranger's file must not become one that the next shell runs, unless the receiver's user wants it.
func TestRecvRefusesDotFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no execute bits on Windows")
	}
	path := filepath.Join(t.TempDir(), ".bash_aliases")
	if err := os.WriteFile(path, []byte("true"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(path), "program")
	if err := os.WriteFile(program, []byte("#!"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, program} {
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	careful, trusting := startRecv(t, "127.0.0.1:0"), startRecv(t, "127.0.0.1:0", "--allow-dotfiles", "--allow-exec")
	code, client := clitest.RunProcess(t, "send", "--preserve", path, careful.addr)
	if code != 1 || !strings.Contains(client.Stderr.String(), `".bash_aliases" begins with a dot`) || !strings.Contains(client.Stderr.String(), "recv --allow-dotfiles") {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if code, client := clitest.RunProcess(t, "send", "--preserve", program, careful.addr); code != 0 {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	if code, client := clitest.RunProcess(t, "send", "--preserve", program, path, trusting.addr); code != 0 {
		t.Errorf("exit code %d: %s", code, client.Stderr)
	}
	for file, want := range map[string]os.FileMode{
		filepath.Join(careful.dir, "program"): 0o644, filepath.Join(trusting.dir, "program"): 0o755, filepath.Join(trusting.dir, ".bash_aliases"): 0o755,
	} {
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", filepath.Base(file), info, err, want)
		}
	}
	if names := careful.files(t); len(names) != 1 {
		t.Errorf("in the directory: %q", names)
	}
	careful.interrupt(t)
	trusting.interrupt(t)
}

// A receiver listens on loopback by default, so a refused connection has that remedy.
func TestSendToClosedPort(t *testing.T) {
	const addr = "127.0.0.1:1" // no test listens there, as one may at a port that another one has closed
	var o clitest.Output
	code := clitest.Run(t.Context(), []string{"send", randomFiles(t, 1)[0], addr}, o.Streams())
	for _, text := range []string{"connection failed: cannot connect to " + addr, "refused", "started with --listen ADDR"} {
		if code != 1 || !strings.Contains(o.Err.String(), text) {
			t.Errorf("exit code %d: %s does not mention %q", code, &o.Err, text)
		}
	}
}

func TestRecvLimits(t *testing.T) {
	for _, args := range []string{"--max-connections -1", "--max-connections 2000000", "--max-memory 1KiB", "--max-memory much"} {
		var o clitest.Output
		if code := clitest.Run(t.Context(), append([]string{"recv"}, strings.Fields(args)...), o.Streams()); code != cli.ExitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, &o.Err)
		}
	}
}

// A host that is refused again and again must not fill the receiver's terminal.
func TestRecvPrintsBoundedLinesAboutStrangers(t *testing.T) {
	audit.Reset()
	defer audit.Reset()
	var o clitest.Output
	r := newReceiving(t.Context(), &recvOptions{options: options{json: true}}, o.Streams())
	peer := netip.MustParseAddrPort("192.0.2.99:1")
	for range 1000 {
		p := r.r.watch()
		p.Start(xfer.Result{Peer: peer, Name: "a", Protocol: xfer.Fast})
		p.Finish(xfer.Result{}, nil)
		r.done(t.Context(), xfer.Result{Peer: peer}, &xfer.Error{Op: "receive", Peer: peer, Code: xfer.CodeProtocol})
	}
	if n := strings.Count(o.Out.String(), "\n"); n != audit.LinesPerHost {
		t.Errorf("%d lines on standard output, want %d", n, audit.LinesPerHost)
	}
	if n := strings.Count(o.Err.String(), "\n"); n != 2*audit.LinesPerHost { // beginnings and failures
		t.Errorf("%d lines on standard error, want %d", n, 2*audit.LinesPerHost)
	}
}
