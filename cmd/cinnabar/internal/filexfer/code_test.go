package filexfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cinnabar/cmd/cinnabar/internal/cli"
	"cinnabar/cmd/cinnabar/internal/clitest"
	"cinnabar/cmd/cinnabar/internal/onetime"
	"cinnabar/internal/testproc"
	"cinnabar/verbs"
	"cinnabar/verbs/iwarp"
	"cinnabar/xfer"
)

// startCode starts a send --code of a file to an address at which nothing listens yet. It returns that, and the code.
func startCode(t *testing.T, path string, args ...string) (p *testproc.Process, addr, code string) {
	t.Helper()
	addr = net.JoinHostPort("127.0.0.1", clitest.FreePort(t))
	p = clitest.Start(t, append([]string{"send", "--code", path, addr}, args...)...)
	return p, addr, p.Stdout.Expect(`^code (\d{4}-\d{3}-\d{3}), for 10m0s; on the receiver run: cinnabar recv --code \d{4}-\d{3}-\d{3}$`)[1]
}

// otherCode returns another code.
func otherCode(code string) string {
	for {
		if c := onetime.New().String(); c != code {
			return c
		}
	}
}

// A file and a directory cross with a code and nothing else.
//
// parity: X05
func TestCode(t *testing.T) {
	path := randomFiles(t, 3_000_000)[0]
	for _, typed := range []bool{false, true} {
		sender, addr, code := startCode(t, path)
		dir := t.TempDir()
		args := []string{"recv", "--listen", addr, "--dir", dir, "--code", code}
		if typed {
			args[len(args)-1] = "-"
		}
		server := &recvProcess{Process: clitest.Start(t, args...), dir: dir}
		if typed {
			server.Send(strings.ReplaceAll(code, "-", " "))
		}
		if code := server.ExitCode(); code != 0 || sender.ExitCode() != 0 {
			t.Fatalf("the receiver: %s; the sender: %s", server.Stderr, sender.Stderr)
		}
		server.sameFile(t, path)
	}
}

// A wrong code ends both sides, and nothing is stored.
//
// parity: X05
func TestWrongCode(t *testing.T) {
	sender, addr, code := startCode(t, randomFiles(t, 1000)[0])
	dir := t.TempDir()
	status, server := clitest.RunProcess(t, "recv", "--listen", addr, "--dir", dir, "--code", otherCode(code))
	for name, p := range map[string]*testproc.Process{"the receiver": server, "the sender": sender} {
		if code := p.ExitCode(); code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), "The code is spent; make a new one") {
			t.Errorf("%s: exit code %d: %s", name, code, p.Stderr)
		}
	}
	if list := filesBelow(t, dir); status == 0 || len(list) > 0 {
		t.Errorf("stored %q", list)
	}
}

// A file that the receiver refuses ends both sides with the reason, without a wait for another file.
func TestCodeRefusedFile(t *testing.T) {
	path := randomFiles(t, 1000)[0]
	sender, addr, code := startCode(t, path)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, server := clitest.RunProcess(t, "recv", "--listen", addr, "--dir", dir, "--timeout", "1h", "--code", code)
	for name, p := range map[string]*testproc.Process{"the receiver": server, "the sender": sender} {
		if code := p.ExitCode(); code != cli.ExitFailure || !strings.Contains(p.Stderr.String(), "file exists") {
			t.Errorf("%s: exit code %d: %s", name, code, p.Stderr)
		}
	}
}

// ^C ends both sides while they wait for each other.
func TestCodeInterrupted(t *testing.T) {
	sender, addr, code := startCode(t, randomFiles(t, 1000)[0])
	sender.Interrupt()
	if code := sender.ExitCode(); code != cli.ExitSignal+2 {
		t.Errorf("the sender: exit code %d: %s", code, sender.Stderr)
	}
	server := clitest.Start(t, "recv", "--listen", addr, "--dir", t.TempDir(), "--code", code)
	server.Stdout.Expect("^waiting for one file at ")
	server.Interrupt()
	if code := server.ExitCode(); code != cli.ExitSignal+2 {
		t.Errorf("the receiver: exit code %d: %s", code, server.Stderr)
	}
}

// The key of the exchange protects the transfer: a sender with another key, and one without TLS, are refused.
func TestCodeBindsTransfer(t *testing.T) {
	right, wrong := sha256.Sum256([]byte("right")), sha256.Sum256([]byte("wrong"))
	device := func(key []byte) *verbs.Device {
		cfg := iwarp.Config{}
		if key != nil {
			m, err := newMeeting(key)
			if err != nil {
				t.Fatal(err)
			}
			m.apply(&cfg)
		}
		dev, err := iwarp.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cli.Shut(dev) })
		return dev
	}
	dir, err := xfer.OpenDir(t.Context(), t.TempDir(), xfer.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := verbs.Listen(device(right[:]), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		r := xfer.Receiver{Open: dir.Open}
		ended <- r.Serve(ctx, l)
	}()
	for name, key := range map[string][]byte{"another key": wrong[:], "no key": nil, "the key": right[:]} {
		src := xfer.Source{Name: name, Data: strings.NewReader("words"), Size: 5}
		if _, err := (&xfer.Sender{}).Send(t.Context(), device(key), l.Addr(), src); (err == nil) != (name == "the key") {
			t.Errorf("%s: %v", name, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCodeArguments(t *testing.T) {
	file := clitest.WriteTemp(t, "a", nil)
	code := onetime.New().String()
	last := code[:len(code)-1] + string('0'+(code[len(code)-1]-'0'+1)%10)
	for _, c := range []struct{ args, says string }{
		{"send --code " + file + " " + file + "b 127.0.0.1:1", "good for one file"},
		{"send --code --dry-run " + file + " 127.0.0.1:1", "--dry-run"},
		{"send --code --token-file x " + file + " 127.0.0.1:1", "--token-file was given with --code"},
		{"send --code --device rxe0 " + file + " 127.0.0.1:1", "--device rxe0"},
		{"recv --code " + last, "a digit of the code is wrong"},
		{"recv --code 123", "a code has 10 digits"},
		{"recv --code " + code + " --tls-ca x", "--tls-ca was given with --code"},
	} {
		var o clitest.Output
		if status := clitest.Run(t.Context(), strings.Fields(c.args), o.Streams()); status != cli.ExitUsage || !strings.Contains(o.Err.String(), c.says) {
			t.Errorf("%s: exit code %d, %s", c.args, status, &o.Err)
		}
	}
}

// A sender who has proved the code and sends nothing, or a file that is refused, does not keep the receiver.
func TestCodeWithoutFile(t *testing.T) {
	refuse := func(context.Context, netip.AddrPort, string, xfer.Meta, int64) (xfer.File, error) {
		return nil, errors.New("no room")
	}
	for timeout, says := range map[time.Duration]string{1: "has not begun a file", time.Hour: "the code is used up: no room"} {
		r := &receiving{o: &recvOptions{options: options{timeout: timeout}}}
		ctx, cancel, open := r.untilOpened(t.Context(), refuse)
		defer cancel(nil)
		if r.endRefused(); timeout == time.Hour {
			if _, err := open(t.Context(), netip.AddrPort{}, "a", xfer.Meta{}, 0); err == nil || ctx.Err() != nil {
				t.Errorf("%v, %v", err, ctx.Err())
			}
			r.endRefused()
		}
		<-ctx.Done()
		if err := context.Cause(ctx); !strings.Contains(err.Error(), says) {
			t.Errorf("got %v", err)
		}
	}
}
